"""The pictures of a look: one PNG a question, in the house style of `pictures`.

tokens · positions · attention (a grid of every head, and one head large) · entropy · residual · lens · words
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from chumoku.probe.attention_figures import entropy, grid, single
from chumoku.probe.plot_style import INK, label, picture, scale_beside, share_of
from chumoku.probe.snapshot import Seen, Word

FAINT = "#5b6b7b"


def draw(seen: Seen, folder: Path, *, layer: int | None = None, head: int | None = None) -> list[Path]:
    """All pictures of a look; the large map is that of one layer and head, or the mean over those not chosen."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [tokens(seen, folder / "tokens.png")]
    if seen.positions.table is not None:
        made.append(positions(seen, folder / "positions.png"))
    for one in seen.maps:
        if not one.key.startswith("rollout"):
            made.append(grid(one, folder / f"attention-{one.key}.png"))
            made.append(single(one, folder / f"attention-{one.key}-one.png", layer=layer, head=head))
        else:
            made.append(single(one, folder / f"{one.key}.png"))
    made += [entropy(seen, folder / "entropy.png"), residual(seen, folder / "residual.png")]
    if seen.lens is not None:
        made.append(lens(seen, folder / "lens.png"))
    if seen.words:
        made.append(words(seen, folder / "words.png"))
    return made


def tokens(seen: Seen, path: Path, *, across: int = 12) -> Path:
    """Each token in a box, its number below."""
    parts = (("source", seen.source, len(seen.source)), ("target" if seen.source else "text", seen.tokens, seen.first))
    lines = [
        (name if start == 0 else "", first - start, some[start : start + across])
        for name, some, first in parts
        for start in range(0, len(some), across)
    ]
    with picture(path, (across * 1.05 + 0.9, 0.75 * len(lines) + 0.3)) as (_, axis):
        axis.set(xlim=(-0.9, across), ylim=(-len(lines), 0.15))
        axis.axis("off")
        for line, (name, first, some) in enumerate(lines):
            axis.text(-0.2, -line - 0.3, name, ha="right", va="center", fontsize=9, color=FAINT)
            for place, (number, token) in enumerate(some):
                color = "#dbe9f6" if place >= first else "#f1f4f7"  # what the model wrote, and what it was given
                axis.add_patch(
                    Rectangle((place + 0.03, -line - 0.52), 0.94, 0.46, facecolor=color, edgecolor="#c3ced9")
                )
                axis.text(place + 0.5, -line - 0.29, label(token, 10), ha="center", va="center", fontsize=9)
                axis.text(place + 0.5, -line - 0.68, str(number), ha="center", va="center", fontsize=7, color=FAINT)
    return path


def positions(seen: Seen, path: Path) -> Path:
    """The vectors that tell places apart; for rotary ones, the cosine of each angle."""
    found = seen.positions
    table = np.zeros((0, 0)) if found.table is None else found.table.numpy()
    what = {"rotary": "cos of the angle that each plane is turned by", "relative": "vector of each distance"}
    with picture(path, (8.0, min(14.0, 1.6 + 0.16 * len(found.rows)))) as (figure, axis):
        most = float(np.abs(table).max()) or 1.0
        image = axis.imshow(table, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
        axis.set_ylabel("distance" if found.kind == "relative" else "place")
        axis.set_xlabel("plane" if found.kind == "rotary" else "number in the vector")
        axis.set_title(f"Positions: {found.kind} ({what.get(found.kind, 'vector added to each place')})", fontsize=10)
        if found.kind == "relative":
            axis.set_yticks(range(0, len(found.rows), 4), found.rows[::4])
        scale_beside(figure, image, axis, text="")
    return path


def residual(seen: Seen, path: Path) -> Path:
    """How long the stream's vectors grow, and what is added to them."""
    lines = (("x", "stream", "#1f5fa8"), ("attention", "attention adds", "#d08a2e"))
    lines += (("cross", "cross-attention adds", "#8a5bb0"), ("feedforward", "feed-forward adds", "#3f9463"))  # type: ignore[assignment]
    with picture(path, (5.4 * len(seen.streams), 3.6), columns=len(seen.streams)) as (figure, axes):
        for axis, (name, stream) in zip(np.atleast_1d(axes), seen.streams.items(), strict=True):
            for key, text, color in lines:
                lengths = getattr(stream, key)
                if lengths is not None:
                    middle, low, high = (lengths.quantile(share, dim=1).numpy() for share in (0.5, 0.0, 1.0))
                    x = np.arange(len(middle)) + (0 if key == "x" else 1)
                    axis.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
                    axis.plot(x, middle, color=color, marker="o", markersize=3, linewidth=1.4, label=text)
            if max(float(stream.x.max()), 1e-9) > 50 * float(stream.x.median()):
                axis.set_yscale("log")
            depth = len(stream.x) - 1
            axis.set(title=name, xlabel="after block (0: embedding)", ylabel="length ‖x‖")
            axis.set_xticks(range(0, depth + 1, 1 + depth // 12))
            axis.grid(color="#e3e8ee", linewidth=0.6)
            axis.legend(frameon=False, fontsize=8)
        figure.suptitle("The residual stream: median over the places, and from least to most", fontsize=10)
    return path


def lens(seen: Seen, path: Path, *, most: int = 32) -> Path:
    """What each layer would say at each place; darker is surer. Of many places, the last."""
    found = seen.lens
    if found is None:
        return path
    start = max(0, len(found.rows) - most)
    layers = [layer[start:] for layer in found.candidates]
    sure = np.array([[place[0].probability for place in layer] for layer in layers])
    with picture(path, (0.78 * sure.shape[1] + 1.8, 0.36 * len(layers) + 1.3)) as (figure, axis):
        image = axis.imshow(sure, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", origin="lower")
        for (layer, place), chance in np.ndenumerate(sure):
            axis.text(
                place,
                layer,
                label(layers[layer][place][0].name, 9),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if chance > 0.6 else INK,
            )
        axis.set_xticks(range(sure.shape[1]), [label(name, 9) for name in found.rows[start:]], rotation=45, ha="right")
        axis.set_yticks(range(len(layers)), ["embedding", *map(str, range(len(layers) - 1))])
        axis.set(xlabel="token read", ylabel="block")
        axis.set_title("Logit lens: what each layer would say", fontsize=10)
        scale_beside(figure, image, axis, text="probability")
    return path


def words(seen: Seen, path: Path, *, most: int = 24) -> Path:
    """The five best at each word, and below it where it looked."""
    some = seen.words[:most]
    across = min(6, len(some))
    down = math.ceil(len(some) / across)
    columns = _looked_at(seen)
    with picture(path, (2.5 * across, 2.15 * down), columns=across, rows=down) as (_, axes):
        flat = list(np.atleast_1d(axes).flat)
        for axis in flat[len(some) :]:
            axis.axis("off")
        for axis, word in zip(flat, some, strict=False):
            _candidates(axis, word, columns, seen)
    return path


def _candidates(axis: Any, word: Word, columns: Sequence[str], seen: Seen) -> None:
    names = [label(one.name, 12) for one in word.candidates]
    chances = [one.probability for one in word.candidates]
    hit = [word.name is not None and one.name == word.name for one in word.candidates]
    axis.barh(range(len(names)), chances, color=["#1f5fa8" if one else "#b9cde2" for one in hit])
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlim=(0, 1), xticks=[0, 1])
    axis.invert_yaxis()
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for place, chance in enumerate(chances):
        axis.text(
            chance + 0.02 if chance < 0.75 else chance - 0.02,
            place,
            share_of(chance),
            va="center",
            fontsize=7,
            ha="left" if chance < 0.75 else "right",
            color=INK if chance < 0.75 else "white",
        )
    axis.set_title(label(word.name or seen.tokens[word.place][1] + " → ?", 18), fontsize=9)
    looked = "  ".join(f"{label(columns[column], 8)} {share_of(weight)}" for column, weight in word.looked)
    axis.set_xlabel(f"looked at {looked}", fontsize=7)


def _looked_at(seen: Seen) -> list[str]:
    return next((one for one in seen.maps if one.key == "cross"), seen.maps[0]).columns
