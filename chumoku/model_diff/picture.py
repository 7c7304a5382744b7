"""The picture of two models' differences: by text, by transplant, by head and by block."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chumoku.model_diff.results import ModelDiff
from chumoku.model_diff.tables import short_name
from chumoku.probe.bilingual import Words
from chumoku.probe.plot_style import INK, add_colorbar, label, saved_figure, style_axis

BLUE, ORANGE = "#0072b2", "#d55e00"
CAPTIONS = {
    "texts": Words(
        "Every text, sorted by its difference B − A; the band is the interval of the mean.",
        "差 B − A の順に並べた各テキスト。帯は平均の区間です。",
    ),
    "transplants": Words(
        "Change of the value when one part comes from the other model, with 95 % intervals; filled: sure after Holm.",
        "一つの部分だけをもう一方のモデルから取ったときの値の変化と 95 % 区間。塗りつぶしは Holm 補正後も確かなもの。",
    ),
    "heads": Words(
        "Change of each head's attention pattern on the same texts: total variation, from 0 (equal) to 1.",
        "同じテキストでの各ヘッドのアテンションの変化: 全変動距離。0 は同一、最大 1。",
    ),
    "blocks": Words(
        "Relative change of the weights of each block, and change of the residual stream after it (1 − cosine).",
        "各ブロックの重みの相対変化と、その直後の残差ストリームの変化（1 − コサイン）。",
    ),
}
Plot = Callable[[Any, Any, ModelDiff], None]


def draw_diff(diff: ModelDiff, path: Path) -> Path:
    """Draw all panels as one PNG, two in a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    panels = choose_panels(diff)
    rows = -(-len(panels) // 2)
    with saved_figure(path, (12, rows * _height(diff)), columns=min(2, len(panels)), rows=rows) as (figure, axes):
        places = np.atleast_1d(axes).ravel()
        for place, plot in zip(places, panels.values(), strict=False):
            plot(figure, place, diff)
        for place in places[len(panels) :]:
            place.axis("off")
    return path


def draw_panels(diff: ModelDiff) -> list[tuple[bytes, Words]]:
    """Each panel as a PNG with its caption, for a page that puts them below each other on a phone."""
    found = []
    for name, plot in choose_panels(diff).items():
        stream = io.BytesIO()
        with saved_figure(stream, (6, _height(diff))) as (figure, axis):
            plot(figure, axis, diff)
        found.append((stream.getvalue(), CAPTIONS[name]))
    return found


def choose_panels(diff: ModelDiff) -> dict[str, Plot]:
    panels: dict[str, Plot] = {"texts": plot_texts}
    if diff.transplants:
        panels["transplants"] = plot_transplants
    if diff.inside is not None:
        panels |= {"heads": plot_heads, "blocks": plot_blocks}
    return panels


def _height(diff: ModelDiff) -> float:
    return 3.8 if diff.inside is None else min(12.0, max(3.8, 1.3 + 0.2 * len(diff.inside.blocks)))


def plot_texts(_: Any, axis: Any, diff: ModelDiff) -> None:
    measure = diff.measures[0]
    values = np.sort(np.array(measure.by_text))
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axhspan(measure.interval.low, measure.interval.high, color=ORANGE, alpha=0.2, linewidth=0)
    axis.axhline(measure.interval.difference, color=ORANGE, linewidth=1.2)
    axis.plot(range(1, len(values) + 1), values, ".", color=BLUE, markersize=4)
    style_axis(axis, label("texts, sorted by difference"), label("B − A ({0})", label(measure.metric.unit)))


def plot_transplants(_: Any, axis: Any, diff: ModelDiff) -> None:
    names = list(dict.fromkeys(one.part for one in diff.transplants))
    for host, guest, color, shift in (("B", "A", BLUE, -0.17), ("A", "B", ORANGE, 0.17)):
        for one in diff.transplants:
            if one.into == host:
                row = names.index(one.part) + shift
                axis.plot([one.interval.low, one.interval.high], [row, row], color=color, linewidth=1.1)
                face = color if one.decisive else "white"
                axis.plot([one.interval.difference], [row], "o", color=color, markerfacecolor=face, markersize=4)
        axis.plot([], [], "o-", color=color, label=label("{0}'s part in {1}", guest, host), markersize=4)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(range(len(names)), [label(short_name(name)) for name in names], fontsize=7)
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize=8)
    axis.locator_params(axis="x", nbins=6)
    style_axis(axis, label("change ({0})", label(diff.measures[-1].metric.unit)), "")


def plot_heads(figure: Any, axis: Any, diff: ModelDiff) -> None:
    if diff.inside is None:
        return
    table = np.array([one.patterns for one in diff.inside.heads])
    image = axis.imshow(table, cmap="Blues", vmin=0.0, vmax=max(float(table.max()), 1e-9), aspect="auto")
    names = [short_name(one.address) for one in diff.inside.heads]
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xticks(range(table.shape[1]))
    axis.set_xlabel(label("head"))
    add_colorbar(figure, image, axis, text=label("total variation of the attention pattern"))


def plot_blocks(_: Any, axis: Any, diff: ModelDiff) -> None:
    if diff.inside is None:
        return
    blocks = diff.inside.blocks
    rows = range(len(blocks))
    axis.barh(rows, [one.weights for one in blocks], color=BLUE, height=0.6)
    axis.set_yticks(rows, [label(short_name(one.address)) for one in blocks], fontsize=7)
    axis.invert_yaxis()
    style_axis(axis, label("‖ΔW‖ / ‖W‖ of the weights (bars)"), "")
    axis.locator_params(axis="x", nbins=5)
    above = axis.twiny()
    above.plot([one.stream for one in blocks if one.stream is not None], rows[:-1], ".-", color=ORANGE, markersize=4)
    above.set_xlim(left=0)
    above.locator_params(axis="x", nbins=5)
    above.set_xlabel(label("1 − cosine of the stream (dots)"), color=ORANGE)
