"""Plots of attention: a grid of all heads, one head enlarged, and the entropy of each head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from chumoku.probe.plot_style import (
    INK,
    MAX_INCHES,
    add_colorbar,
    cell_inches,
    hide_spines,
    label,
    label_map,
    map_inches,
    saved_figure,
)
from chumoku.probe.snapshot import AttentionMap, Snapshot

GAP = 0.12  # between the maps of a grid, as a share of a map's size
TITLES = {
    "encoder": "Self-attention of the encoder",
    "decoder": "Masked self-attention of the decoder",
    "cross": "Cross-attention: source tokens that each target token attends to",
    "rollout-encoder": "Attention rollout of the encoder",
    "rollout": "Attention rollout of the decoder",
    "rollout-cross": "Attention rollout from the decoder to the source",
}
SELECTED = {  # is it the mean over layers, over heads → the weights that a map shows
    (False, False): "layer {0}, head {1}",
    (False, True): "layer {0}, mean over heads",
    (True, False): "head {1}, mean over layers",
    (True, True): "mean over layers and heads",
}


def draw_head_grid(one: AttentionMap, path: Path) -> Path:
    """Draw every head of every layer: a row per layer, a column per head."""
    layers, heads, rows, columns = one.weights.shape
    down, right = max(1, round(rows * GAP)), max(1, round(columns * GAP))
    sheet = np.full((layers * (rows + down) - down, heads * (columns + right) - right), np.nan)
    for layer in range(layers):
        for head in range(heads):
            top, left = layer * (rows + down), head * (columns + right)
            sheet[top : top + rows, left : left + columns] = one.weights[layer, head].numpy()
    each = min(1.9, MAX_INCHES / max(layers, heads))
    size = (heads * each + 1.4, layers * each * min(2.0, max(0.5, rows / columns)) + 1.0)
    with saved_figure(path, size) as (figure, axis):
        image = axis.imshow(sheet, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
        axis.set_xticks([head * (columns + right) + columns / 2 - 0.5 for head in range(heads)], range(heads))
        axis.set_yticks([layer * (rows + down) + rows / 2 - 0.5 for layer in range(layers)], range(layers))
        axis.set(xlabel=label("head"), ylabel=label("layer"))
        axis.set_facecolor("#e8ecf0")
        hide_spines(axis)
        axis.set_title(label(TITLES[one.key]), fontsize=11)
        add_colorbar(figure, image, axis, text=label("weight"))
    return path


def draw_map(one: AttentionMap, path: Path, *, layer: int | None = None, head: int | None = None) -> Path:
    """Draw one attention map: a row per query, a column per key; the mean over layers or heads if not given."""
    weights, description = select_weights(one, layer=layer, head=head)
    cell = cell_inches(max(weights.shape))
    width, height = map_inches(one.rows, one.columns, cell)
    with saved_figure(path, (width + 1.4, height + 0.7)) as (figure, axis):
        image = axis.imshow(weights.numpy(), cmap="Blues", vmin=0.0, vmax=float(weights.max()), interpolation="nearest")
        label_map(axis, one.rows, one.columns, cell)
        if len(one.columns) <= 24:
            for place in np.argwhere(weights.numpy() >= 0.1):
                share = float(weights[tuple(place)])
                dark = share > 0.6 * float(weights.max())
                axis.text(
                    place[1],
                    place[0],
                    f"{share:.2f}"[1:] if share < 0.995 else "1",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if dark else INK,
                )
        axis.set_title(f"{label(TITLES[one.key])}\n{description}".strip(), fontsize=10)
        add_colorbar(figure, image, axis, text=label("weight"))
    return path


def select_weights(one: AttentionMap, *, layer: int | None, head: int | None) -> tuple[Tensor, str]:
    """The weights [T, S] of a layer and head, or their mean if not given, with a description."""
    weights = one.weights if layer is None else one.weights[layer : layer + 1]
    weights = weights if head is None else weights[:, head : head + 1]
    if layer is None and head is None and one.weights.shape[:2] == (1, 1):
        return weights[0, 0], ""
    return weights.mean((0, 1)), label(SELECTED[layer is None, head is None], layer, head)


def draw_entropy(snapshot: Snapshot, path: Path) -> Path:
    """Draw the entropy of every head in bits: one cell per head."""
    found = list(snapshot.entropy.items())
    heads, layers = (max(table.shape[axis] for _, table in found) for axis in (1, 0))
    each = 0.55 if heads <= 16 else 0.4
    size = (max(3.2, each * heads + 1.2) * len(found) + 0.8, max(2.4, 0.42 * layers + 1.3))
    largest = max(float(table.max()) for _, table in found)
    with saved_figure(path, size, columns=len(found)) as (figure, axes):
        for axis, (key, table) in zip(np.atleast_1d(axes), found, strict=True):
            image = axis.imshow(table.numpy(), cmap="Purples", vmin=0.0, vmax=largest, aspect="auto")
            for (layer, head), bits in np.ndenumerate(table.numpy()):
                axis.text(
                    head,
                    layer,
                    f"{bits:.1f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if bits > 0.6 * largest else INK,
                )
            axis.set(title=label(key), xlabel=label("head"), ylabel=label("layer"))
            axis.set_xticks(range(table.shape[1]))
            axis.set_yticks(range(table.shape[0]))
        add_colorbar(figure, image, axes, text=label("bits"))
        figure.suptitle(label("Entropy of each head: n bits correspond to 2ⁿ positions"), fontsize=10)
    return path
