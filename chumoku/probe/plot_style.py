"""The common style of all plots, with Japanese labels if a Japanese font is installed, and two plots for training."""

from __future__ import annotations

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
from matplotlib import font_manager
from torch import Tensor

INK, PAPER, GRID = "#1c2733", "#ffffff", "#e3e8ee"


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
    heads, rows, columns = weights.shape
    across = math.ceil(math.sqrt(heads))
    down = math.ceil(heads / across)
    size = (across * (1.0 + 0.34 * columns) + 0.8, down * (0.8 + 0.34 * rows) + 0.5)
    darkest = float(weights.max())
    with plt.rc_context(plot_style()):
        figure, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        for axis in axes.flat[heads:]:
            axis.axis("off")
        for head, axis in enumerate(axes.flat[:heads]):
            image = axis.imshow(weights[head].float().cpu().numpy(), cmap="Blues", vmin=0.0, vmax=darkest)
            axis.set_title(titles[head] if titles else f"head {head}", fontsize=9)
            axis.set_xticks(range(columns), list(map(axis_label, keys)))
            rotate_labels(axis, keys)
            axis.set_yticks(range(rows), list(map(axis_label, queries)))
        figure.colorbar(image, ax=axes, shrink=0.6, label="weight")
        figure.suptitle(title, fontsize=11)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return path


def draw_loss_curve(metrics: Sequence[Mapping[str, Any]], path: Path | str) -> Path:
    """Draw training and validation loss over steps, from the rows of a metrics file."""
    with plt.rc_context(plot_style()):
        figure, axis = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
        for key, name, color, marker, below in (
            ("loss", "training", "#9db8d2", "", -12),
            ("validation_loss", "validation", "#b23a48", "o", 4),
        ):
            points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
            if points:
                axis.plot(
                    *zip(*points, strict=True), color=color, label=name, marker=marker, markersize=3, linewidth=1.4
                )
                axis.annotate(
                    f"{points[-1][1]:.3f}", points[-1], xytext=(4, below), textcoords="offset points", color=color
                )
        axis.set_xlabel("step")
        axis.set_ylabel("loss (nats per token)")
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
    fonts = ["DejaVu Sans"]
    found = importlib.util.find_spec("matplotlib_fontja")
    if found is not None and found.submodule_search_locations:
        for file in Path(found.submodule_search_locations[0]).rglob("*.ttf"):
            font_manager.fontManager.addfont(str(file))
            fonts.insert(0, font_manager.FontProperties(fname=str(file)).get_name())
    return {
        "font.family": fonts,
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


@contextmanager
def saved_figure(
    path: Path | BinaryIO, size: tuple[float, float], *, columns: int = 1, rows: int = 1
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes in the common style, saved at the end. Missing glyphs are boxes and give no warning."""
    with plt.rc_context(plot_style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained")
        try:
            yield figure, axes
            figure.savefig(path, dpi=130 if max(size) < 20 else 80)
        finally:
            plt.close(figure)


def axis_label(name: str, max_chars: int = 14) -> str:
    """A token's name as an axis label: shortened, and with $ escaped so that it is not read as a formula."""
    name = name if len(name) <= max_chars else f"{name[: max_chars - 1]}…"
    return name.replace("$", r"\$")


def rotate_labels(axis: Any, names: Sequence[str]) -> None:
    """Rotate the labels of narrow columns that are wider than their column."""
    for label, rotated in zip(axis.get_xticklabels(), labels_to_rotate(names), strict=True):
        label.set_rotation(90 if rotated else 0)


def labels_to_rotate(names: Sequence[str]) -> list[bool]:
    """Which labels of narrow columns are rotated by 90°: words are, single wide characters such as 食 are not."""
    if max(map(len, names), default=0) <= 2:
        return [False for _ in names]
    return [len(name) > 2 or not any(unicodedata.east_asian_width(char) in "WF" for char in name) for name in names]


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
