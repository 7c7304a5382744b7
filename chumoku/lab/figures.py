"""Shared plotting functions of the lab: axes, labeled bars, heat maps, curves with the range of their seeds.

Fonts and colors come from `chumoku.probe.plot_style.plot_style`, which the runner sets for every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, BLUE, LIGHT, RED = "#1c2733", "#3a6ea5", "#9db8d2", "#b23a48"
OCHRE, GREEN, GRAY, GRID = "#c98b2b", "#4f7f5b", "#8a949e", "#e3e8ee"
COLORS = (BLUE, RED, OCHRE, GREEN, GRAY, LIGHT)

Runs = Sequence[Sequence[float]]  # [seeds][points]


def make_panels(figure: Figure, across: int, down: int = 1, *, height: float = 3.4, width: float = 7.6) -> list[Axes]:
    """Styled axes, `across` × `down`; sets the size of the figure."""
    figure.set_size_inches(width, height * down)
    return [style_axis(axis) for axis in figure.subplots(down, across, squeeze=False).flat]


def style_axis(axis: Axes, *, grid: bool = True) -> Axes:
    """Remove the top and right spines and draw a faint grid behind the data."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if grid:
        axis.grid(color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
    return axis


def plot_bars(
    axis: Axes,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    colors: Sequence[str] = COLORS,
    form: str = "{:.3g}",
    numbers: bool = True,
) -> None:
    """Grouped bars: one group per label, one bar per series, with its value on top if finite."""
    thickness = 0.8 / len(series)
    positions = np.arange(len(labels))
    for index, (name, values) in enumerate(series.items()):
        heights = np.asarray(values, dtype=float) + 0.0  # −0 becomes 0
        centers = positions + (index - (len(series) - 1) / 2) * thickness
        container = axis.bar(centers, heights, thickness * 0.92, color=colors[index % len(colors)], label=name)
        if numbers:
            texts = [form.format(value) if np.isfinite(value) else "" for value in heights]
            axis.bar_label(container, texts, fontsize=7.5, padding=2)
    axis.set_xticks(positions, labels)
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.14)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8)


def plot_seed_bars(
    axis: Axes,
    series: Mapping[str, Sequence[float]],
    *,
    colors: Sequence[str] = COLORS,
    notes: Sequence[str] | None = None,
    note_color: str = INK,
) -> None:
    """A bar for the mean over the seeds and a line from minimum to maximum; above it a note, or the mean."""
    for place, (values, color) in enumerate(zip(series.values(), colors, strict=False)):
        average, top = sum(values) / len(values), max(values)
        axis.bar(place, average, 0.6, color=color)
        axis.vlines(place, min(values), top, color=INK, linewidth=1.2)
        note = notes[place] if notes else f"{average:.2f}"
        axis.annotate(note, (place, top), xytext=(0, 3), textcoords="offset points", ha="center", color=note_color)
    axis.set_xticks(range(len(series)), list(series))
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.12)


def plot_heatmap(
    axis: Axes,
    matrix: Any,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    form: str | None = None,
    cmap: str = "Blues",
    low: float | None = None,
    high: float | None = None,
    bar: str | None = None,
) -> None:
    """A matrix as a heat map: `form` writes the value into every cell, `bar` adds a color bar with this label."""
    values = np.asarray(matrix, dtype=float)
    axis.grid(visible=False)
    picture = axis.imshow(values, cmap=cmap, vmin=low, vmax=high, aspect="auto" if bar else "equal")
    axis.set_xticks(range(values.shape[1]) if columns else [], columns or [])
    axis.set_yticks(range(values.shape[0]) if rows else [], rows or [])
    if form:
        for (row, column), value in np.ndenumerate(values):
            dark = sum(picture.to_rgba(value)[:3]) < 1.5 if np.isfinite(value) else False
            text = form.format(value)
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    if bar is not None and axis.figure is not None:
        axis.figure.colorbar(picture, ax=axis, label=bar, shrink=0.85)


def plot_curves(
    axis: Axes,
    x: Sequence[float],
    series: Mapping[str, Runs],
    *,
    colors: Sequence[str] = COLORS,
    legend: bool = True,
    marker: str = "",
) -> None:
    """The mean over the seeds as a line, and the range from minimum to maximum as a band."""
    for index, (name, runs) in enumerate(series.items()):
        values = np.asarray(runs, dtype=float).reshape(-1, len(x))
        color = colors[index % len(colors)]
        axis.plot(x, values.mean(0), color=color, label=name, linewidth=1.5, marker=marker, markersize=3.5)
        if len(values) > 1:
            axis.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
    if legend:
        axis.legend(frameon=False, fontsize=8)
