"""What the laboratory's figures share: quiet axes, labeled bars, heat maps, curves with the spread of their seeds.

The style itself (fonts, ink) is `chumoku.probe.plot_style.plot_style`, set by the runner around every drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BLUE, LIGHT, RED = "#1c2733", "#3a6ea5", "#9db8d2", "#b23a48"
OCHRE, GREEN, GREY, GRID = "#c98b2b", "#4f7f5b", "#8a949e", "#e3e8ee"
COLORS = (BLUE, RED, OCHRE, GREEN, GREY, LIGHT)

Runs = Sequence[Sequence[float]]  # [seeds][points]


def panels(figure: Figure, across: int, down: int = 1, *, height: float = 3.4, width: float = 7.6) -> list[Axes]:
    """Quiet axes side by side; the figure takes the size that they need. Of one panel, `panels(figure, 1)[0]`."""
    figure.set_size_inches(width, height * down)
    return [quiet(axis) for axis in figure.subplots(down, across, squeeze=False).flat]


def quiet(axis: Axes, *, grid: bool = True) -> Axes:
    """No lines above and to the right, a faint grid below everything."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if grid:
        axis.grid(color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
    return axis


def bars(
    axis: Axes,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    colors: Sequence[str] = COLORS,
    form: str = "{:.3g}",
    numbers: bool = True,
) -> None:
    """A group of bars per label, one bar per series, each with its number on it (where it is finite)."""
    thick = 0.8 / len(series)
    places = np.arange(len(labels))
    for turn, (name, values) in enumerate(series.items()):
        shown = np.asarray(values, dtype=float) + 0.0  # −0 becomes 0
        middle = places + (turn - (len(series) - 1) / 2) * thick
        drawn = axis.bar(middle, shown, thick * 0.92, color=colors[turn % len(colors)], label=name)
        if numbers:
            texts = [form.format(value) if np.isfinite(value) else "" for value in shown]
            axis.bar_label(drawn, texts, fontsize=7.5, padding=2)
    axis.set_xticks(places, labels)
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.14)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8)


def heat(
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
    """A matrix as a picture: a number in every cell when `form` is given, a scale beside it when `bar` names it."""
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


def curves(
    axis: Axes,
    x: Sequence[float],
    series: Mapping[str, Runs],
    *,
    colors: Sequence[str] = COLORS,
    legend: bool = True,
    marker: str = "",
) -> None:
    """The mean over the seeds as a line, and from the least to the greatest seed as a band."""
    for turn, (name, runs) in enumerate(series.items()):
        values = np.asarray(runs, dtype=float).reshape(-1, len(x))
        color = colors[turn % len(colors)]
        axis.plot(x, values.mean(0), color=color, label=name, linewidth=1.5, marker=marker, markersize=3.5)
        if len(values) > 1:
            axis.fill_between(x, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
    if legend:
        axis.legend(frameon=False, fontsize=8)
