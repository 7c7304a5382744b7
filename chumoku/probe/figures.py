"""The plots of a snapshot, as PNG files.

tokens · positions · attention (a grid of all heads, and one map enlarged) · entropy · residual · lens · words
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from chumoku.models.config import SCORE_POSITIONS
from chumoku.probe.attention_figures import draw_entropy, draw_head_grid, draw_map
from chumoku.probe.plot_style import INK, add_colorbar, axis_label, format_percent, label, saved_figure, wrap_parts
from chumoku.probe.snapshot import PredictedToken, Snapshot

GRAY = "#5b6b7b"
WORD_INCHES = 2.5  # the width of one prediction
POSITION_TITLES = {
    "sinusoidal": "Positions: sinusoidal (vector added at each position)",
    "learned": "Positions: learned (vector added at each position)",
    "rotary": "Positions: rotary (cosine of each plane's rotation angle)",
    "relative": "Positions: relative (vector of each distance)",
    "alibi": "Positions: alibi (bias of each distance)",
    "relative_bias": "Positions: relative_bias (bias of each distance)",
}
STREAM_LINES = (  # a norm of the residual stream, its name and its color
    ("x", "stream", "#1f5fa8"),
    ("attention", "attention adds", "#d08a2e"),
    ("cross", "cross-attention adds", "#8a5bb0"),
    ("feedforward", "feed-forward adds", "#3f9463"),
)


def draw_figures(snapshot: Snapshot, folder: Path, *, layer: int | None = None, head: int | None = None) -> list[Path]:
    """Draw all plots of a snapshot into a folder, and return their paths.

    layer, head: what the enlarged attention map shows; the mean over all if not given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [draw_tokens(snapshot, folder / "tokens.png")]
    if snapshot.positions.table is not None:
        paths.append(draw_positions(snapshot, folder / "positions.png"))
    for one in snapshot.maps:
        if not one.key.startswith("rollout"):
            paths.append(draw_head_grid(one, folder / f"attention-{one.key}.png"))
            paths.append(draw_map(one, folder / f"attention-{one.key}-one.png", layer=layer, head=head))
        else:
            paths.append(draw_map(one, folder / f"{one.key}.png"))
    paths += [draw_entropy(snapshot, folder / "entropy.png"), draw_residual(snapshot, folder / "residual.png")]
    if snapshot.lens is not None:
        paths.append(draw_lens(snapshot, folder / "lens.png"))
    if snapshot.words:
        paths.append(draw_words(snapshot, folder / "words.png"))
    return paths


def draw_tokens(snapshot: Snapshot, path: Path, *, across: int = 12) -> Path:
    """Draw each token in a box with its id below; generated tokens have another color."""
    parts = (
        (label("source"), snapshot.source, len(snapshot.source)),
        (label("target" if snapshot.source else "text"), snapshot.tokens, snapshot.prompt_length),
    )
    lines = [
        (name if start == 0 else "", first - start, some[start : start + across])
        for name, some, first in parts
        for start in range(0, len(some), across)
    ]
    with saved_figure(path, (across * 1.05 + 0.9, 0.75 * len(lines) + 0.3)) as (_, axis):
        axis.set(xlim=(-0.9, across), ylim=(-len(lines), 0.15))
        axis.axis("off")
        for line, (name, first, some) in enumerate(lines):
            axis.text(-0.2, -line - 0.3, name, ha="right", va="center", fontsize=9, color=GRAY)
            for place, (number, token) in enumerate(some):
                color = "#dbe9f6" if place >= first else "#f1f4f7"  # generated, or prompt
                axis.add_patch(
                    Rectangle((place + 0.03, -line - 0.52), 0.94, 0.46, facecolor=color, edgecolor="#c3ced9")
                )
                axis.text(place + 0.5, -line - 0.29, axis_label(token, 12), ha="center", va="center", fontsize=9)
                axis.text(place + 0.5, -line - 0.68, str(number), ha="center", va="center", fontsize=7, color=GRAY)
    return path


def draw_positions(snapshot: Snapshot, path: Path) -> Path:
    """Draw the position vectors; for rotary positions the cosine of each angle."""
    found = snapshot.positions
    table = np.zeros((0, 0)) if found.table is None else found.table.numpy()
    with saved_figure(path, (8.0, min(14.0, 1.6 + 0.16 * len(found.rows)))) as (figure, axis):
        limit = float(np.abs(table).max()) or 1.0
        image = axis.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        axis.set_ylabel(label("distance" if found.kind in SCORE_POSITIONS else "position"))
        axis.set_xlabel(
            label({"rotary": "plane", "alibi": "head", "relative_bias": "head"}.get(found.kind, "dimension"))
        )
        axis.set_title(label(POSITION_TITLES[found.kind]), fontsize=10)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if found.kind == "relative":
            axis.set_yticks(range(0, len(found.rows), 4), found.rows[::4])
        add_colorbar(figure, image, axis, text="")
    return path


def draw_residual(snapshot: Snapshot, path: Path) -> Path:
    """Draw the norms of the residual stream, and of what each part adds to it."""
    with saved_figure(path, (5.4 * len(snapshot.streams), 3.6), columns=len(snapshot.streams)) as (figure, axes):
        for axis, (name, stream) in zip(np.atleast_1d(axes), snapshot.streams.items(), strict=True):
            for key, text, color in STREAM_LINES:
                norms = getattr(stream, key)
                if norms is not None:
                    middle, low, high = (norms.quantile(share, dim=1).numpy() for share in (0.5, 0.0, 1.0))
                    x = np.arange(len(middle)) + (0 if key == "x" else 1)
                    axis.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
                    axis.plot(x, middle, color=color, marker="o", markersize=3, linewidth=1.4, label=label(text))
            if max(float(stream.x.max()), 1e-9) > 50 * float(stream.x.median()):
                axis.set_yscale("log")
            depth = len(stream.x) - 1
            axis.set(title=label(name), xlabel=label("after block (x₀: embedding)"), ylabel=label("norm ‖x‖"))
            shown = range(0, depth + 1, 1 + depth // 12)
            axis.set_xticks(shown, ["x₀", *(str(place - 1) for place in shown[1:])])
            axis.grid(color="#e3e8ee", linewidth=0.6)
            axis.legend(frameon=False, fontsize=8)
        figure.suptitle(
            label("Residual stream: median over the positions, and range from minimum to maximum"), fontsize=10
        )
    return path


def draw_lens(snapshot: Snapshot, path: Path, *, max_tokens: int = 32) -> Path:
    """Draw the prediction of each layer at the last `max_tokens` positions; darker is more probable."""
    found = snapshot.lens
    if found is None:
        return path
    start = max(0, len(found.rows) - max_tokens)
    layers = [layer[start:] for layer in found.candidates]
    sure = np.array([[place[0].probability for place in layer] for layer in layers])
    with saved_figure(path, (0.78 * sure.shape[1] + 1.8, 0.36 * len(layers) + 1.3)) as (figure, axis):
        image = axis.imshow(sure, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", origin="lower")
        for (layer, place), probability in np.ndenumerate(sure):
            axis.text(
                place,
                layer,
                axis_label(layers[layer][place][0].name, 11),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if probability > 0.6 else INK,
            )
        axis.set_xticks(
            range(sure.shape[1]), [axis_label(name, 11) for name in found.rows[start:]], rotation=45, ha="right"
        )
        axis.set_yticks(range(len(layers)), [label("embedding"), *map(str, range(len(layers) - 1))])
        axis.set(xlabel=label("input token"), ylabel=label("after block"))
        axis.set_title(label("Logit lens: the prediction of each layer"), fontsize=10)
        add_colorbar(figure, image, axis, text=label("probability"))
    return path


def draw_words(snapshot: Snapshot, path: Path, *, max_words: int = 24) -> Path:
    """Draw the five best candidates of each generated token, and the tokens that it attended to most."""
    some = snapshot.words[:max_words]
    across = min(6, len(some))
    down = math.ceil(len(some) / across)
    columns = snapshot.attended_names
    with saved_figure(path, (WORD_INCHES * across, 2.4 * down), columns=across, rows=down) as (_, axes):
        flat = list(np.atleast_1d(axes).flat)
        for axis in flat[len(some) :]:
            axis.axis("off")
        for axis, word in zip(flat, some, strict=False):
            _draw_candidates(axis, word, columns, snapshot)
    return path


def _draw_candidates(axis: Any, word: PredictedToken, columns: Sequence[str], snapshot: Snapshot) -> None:
    names = [axis_label(one.name, 14) for one in word.candidates]
    probabilities = [one.probability for one in word.candidates]
    hit = [word.name is not None and one.name == word.name for one in word.candidates]
    axis.barh(range(len(names)), probabilities, color=["#1f5fa8" if one else "#b9cde2" for one in hit])
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlim=(0, 1), xticks=[0, 1])
    axis.invert_yaxis()
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for place, probability in enumerate(probabilities):
        axis.text(
            probability + 0.02 if probability < 0.75 else probability - 0.02,
            place,
            format_percent(probability),
            va="center",
            fontsize=7,
            ha="left" if probability < 0.75 else "right",
            color=INK if probability < 0.75 else "white",
        )
    axis.set_title(axis_label(word.name or snapshot.tokens[word.place][1] + " → ?", 18), fontsize=9)
    looked = [f"{axis_label(columns[column], 14)} {format_percent(weight)}" for column, weight in word.looked]
    axis.set_xlabel(label("attends to {0}", wrap_parts(looked, WORD_INCHES - 0.9, 7.0)), fontsize=7)
