"""The common style of all plots, with Japanese labels if a Japanese font is installed, and two plots for training."""

from __future__ import annotations

import functools
import importlib.util
import math
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import font_manager
from torch import Tensor

from chumoku.messages import FIGURES, from_table

INK, PAPER, GRID = "#1c2733", "#ffffff", "#e3e8ee"
MAX_INCHES = 40.0  # of a map
SMALLEST_FONT, POINTS_PER_INCH = 5.0, 30.0  # of labels: the font size, and that which fits a cell of one inch


def draw_attention_maps(
    weights: Tensor,
    *,
    queries: Sequence[str],
    keys: Sequence[str],
    title: str,
    path: Path | str,
    titles: Sequence[str] | None = None,
) -> Path:
    """Draw one attention map per head from weights [H, T, S]: a row per query, a column per key, darker is larger."""
    heads = len(weights)
    titles = titles or [label("head {0}", head) for head in range(heads)]
    across = math.ceil(math.sqrt(heads))
    down = math.ceil(heads / across)
    cell = cell_inches(max(down * len(queries), across * len(keys)))
    width, height = map_inches(queries, keys, cell)
    width = max(width, text_inches(titles, 9.0))
    darkest = float(weights.max())
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = (across * (width + 0.3) + 0.9, down * (height + 0.5) + 0.3)
    with saved_figure(path, size, columns=across, rows=down) as (figure, axes):
        flat = np.atleast_1d(axes).flatten()
        for axis in flat[heads:]:
            axis.axis("off")
        for axis, head, name in zip(flat, weights, titles, strict=False):
            image = axis.imshow(head.float().cpu().numpy(), cmap="Blues", vmin=0.0, vmax=darkest)
            axis.set_title(name, fontsize=9)
            label_map(axis, queries, keys, cell)
        figure.colorbar(image, ax=axes, shrink=0.6, label=label("weight"))
        figure.suptitle(title, fontsize=11)
    return path


def draw_loss_curve(metrics: Sequence[Mapping[str, Any]], path: Path | str, unit: str = "tokens") -> Path:
    """Draw training and validation loss over steps, from the rows of a metrics file; the loss is a mean over `unit`."""
    noun = unit.removesuffix("s")
    with plt.rc_context(plot_style()):
        figure, axis = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
        for key, name, color, marker, below in (
            ("loss", label("training"), "#9db8d2", "", -12),
            ("validation_loss", label("validation"), "#b23a48", "o", 4),
        ):
            points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
            if points:
                axis.plot(
                    *zip(*points, strict=True), color=color, label=name, marker=marker, markersize=3, linewidth=1.4
                )
                axis.annotate(
                    f"{points[-1][1]:.3f}", points[-1], xytext=(4, below), textcoords="offset points", color=color
                )
        axis.set_xlabel(label("step"))
        axis.set_ylabel(label("loss (nats per {0})", label(noun)))
        axis.grid(color="#e3e8ee", linewidth=0.6)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if axis.has_data():
            axis.legend(frameon=False)
        path = Path(path)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


def plot_style() -> dict[Any, Any]:
    """Matplotlib settings for all plots; uses the Japanese font of the extra `ja` if it is installed."""
    return {
        "font.family": [*japanese_fonts(), "DejaVu Sans"],
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.edgecolor": INK,
        "axes.linewidth": 0.6,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "figure.facecolor": PAPER,
    }


@functools.cache
def japanese_fonts() -> tuple[str, ...]:
    """The names of the fonts of the extra `ja`, which matplotlib can use from now on; none if it is not installed."""
    found = importlib.util.find_spec("matplotlib_fontja")
    if found is None or not found.submodule_search_locations:
        return ()
    files = sorted(map(str, Path(found.submodule_search_locations[0]).rglob("*.ttf")))
    for file in files:
        font_manager.fontManager.addfont(file)
    return tuple(font_manager.FontProperties(fname=file).get_name() for file in files)


def label(text: str, *values: object) -> str:
    """A title, axis or legend of a figure in the language of the command line; {0}, {1} … are replaced by the values.

    Without a Japanese font it stays English.
    """
    return (from_table(text, FIGURES) if japanese_fonts() else text).format(*values)


@contextmanager
def saved_figure(
    path: Path | BinaryIO, size: tuple[float, float], *, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes in the common style, saved at the end. Missing glyphs are boxes and give no warning.

    The file is as large as everything in the figure, so that no label or title at its edge is cut off.
    """
    with plt.rc_context(plot_style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained")
        try:
            yield figure, axes
            figure.savefig(path, dpi=130 if max(size) < 20 else 80, bbox_inches="tight", pad_inches=0.1)
        finally:
            plt.close(figure)


def axis_label(name: str, most: int = 20) -> str:
    """A token's name as an axis label: at most `most` columns wide, where a wide character such as 食 has two.

    $ is escaped, so that it is not read as a formula.
    """
    if count_columns(name) > most:
        name = next(name[:end] for end in range(len(name) - 1, -1, -1) if count_columns(name[:end]) < most) + "…"
    return name.replace("$", r"\$")


def count_columns(text: str) -> int:
    """The width of a text: two for each wide character, one for each other."""
    return sum(2 if _is_wide(char) else 1 for char in text)


def text_inches(texts: Sequence[str], size: float) -> float:
    """About the width of the longest text at this font size."""
    ems = (sum(1.0 if _is_wide(char) else 0.6 for char in text) for text in texts)
    return max(ems, default=0.0) * size / 72


def wrap_parts(parts: Sequence[str], inches: float, size: float) -> str:
    """The parts of a label in as few lines as fit this width."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        lines = [*lines[:-1], longer] if text_inches([longer], size) <= inches else [*lines, part]
    return "\n".join(lines)


def cell_inches(count: int) -> float:
    """The size of one cell of a map whose longer side has `count` cells, so that the map has at most MAX_INCHES."""
    return min(0.36 if count <= 48 else 0.2, MAX_INCHES / max(1, count))


def map_inches(rows: Sequence[str], columns: Sequence[str], cell: float) -> tuple[float, float]:
    """Width and height of a map with its labels."""
    size, _ = label_size(cell)
    beside, below = (text_inches(list(map(axis_label, names)), size) for names in (rows, columns))
    return cell * len(columns) + beside, cell * len(rows) + (below if any(labels_to_rotate(columns)) else 0.2)


def label_size(cell: float) -> tuple[float, int]:
    """The font size at which two wide characters fit into a cell, and n if only every nth label is readable."""
    size = min(9.0, max(SMALLEST_FONT, POINTS_PER_INCH * cell))
    return size, math.ceil(size / (POINTS_PER_INCH * cell) - 1e-9)


def label_map(axis: Any, rows: Sequence[str], columns: Sequence[str], cell: float) -> None:
    """Label both axes of a map with the names of its tokens; if there are too many to be readable, with every nth."""
    size, step = label_size(cell)
    shown = [range(0, len(names), step) for names in (rows, columns)]
    axis.set_yticks(shown[0], [axis_label(rows[place]) for place in shown[0]], fontsize=size)
    axis.set_xticks(shown[1], [axis_label(columns[place]) for place in shown[1]], fontsize=size)
    rotated = labels_to_rotate([columns[place] for place in shown[1]])
    for name, is_rotated in zip(axis.get_xticklabels(), rotated, strict=True):
        name.set_rotation(90 if is_rotated else 0)


def labels_to_rotate(names: Sequence[str]) -> list[bool]:
    """Which labels of narrow columns are rotated by 90°: words are, single wide characters such as 食 are not."""
    if max(map(len, names), default=0) <= 2:
        return [False for _ in names]
    return [len(name) > 2 or not any(map(_is_wide, name)) for name in names]


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WF"


def add_colorbar(figure: Any, image: Any, axes: Any, *, text: str) -> None:
    """Add a color bar of at most 5 inches, with the same width for every figure size."""
    height = min(5.0, 0.7 * float(figure.get_figheight()))
    figure.colorbar(image, ax=axes, label=text, shrink=height / figure.get_figheight(), aspect=height / 0.16)


def hide_spines(axis: Any) -> None:
    for spine in axis.spines.values():
        spine.set_visible(False)


def format_percent(share: float) -> str:
    """A share in percent; a small share that is not zero becomes "<1%"."""
    return f"{share:.0%}" if share >= 0.005 or share == 0 else "<1%"


def style_axis(axis: Any, x: str, y: str) -> None:
    """Label both axes of a panel, draw a light grid behind its content, and leave out the upper and right edge."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
