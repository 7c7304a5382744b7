"""A picture of a confusion matrix: a row for each right label, a column for each predicted one, darker is more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chumoku.probe.plot_style import add_colorbar, axis_label, hide_spines, label, saved_figure

MOST, MOST_NUMBERS = 60, 24  # labels that are drawn, and up to which the counts are written into the cells
CELL, CHARACTER = 0.42, 0.1  # inches: the side of a cell, the width of a character of a label
MOST_CHARACTERS = 28  # of a label


def draw_confusion(confusion: NDArray[np.int64], labels: Sequence[str], path: Path, *, title: str) -> Path:
    """Draw the share of each row's texts by predicted label, with counts; of many labels, the most frequent ones."""
    shown = np.sort(np.argsort(-(confusion.sum(1) + confusion.sum(0)), kind="stable")[:MOST])
    table = confusion[np.ix_(shown, shown)]
    names = [axis_label(labels[place], MOST_CHARACTERS) for place in shown]
    share = table / np.maximum(1, confusion[shown].sum(1, keepdims=True))
    label_width = CHARACTER * max(map(len, names))
    side = 1.2 + max(2.0, CELL * len(names))
    slanted = label_width > CELL  # labels that are wider than their columns
    path.parent.mkdir(parents=True, exist_ok=True)
    with saved_figure(path, (side + 1.4 + label_width, side + (0.7 * label_width if slanted else 0))) as (figure, axis):
        image = axis.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
        axis.set_xticks(range(len(names)), names)
        if slanted:
            for name in axis.get_xticklabels():
                name.set(rotation=45, ha="right", rotation_mode="anchor")
        axis.set_yticks(range(len(names)), names)
        axis.set_xlabel(label("predicted label"))
        axis.set_ylabel(label("true label"))
        if len(names) < len(labels):
            title = label("{0}, the {1} most frequent of {2} labels", title, len(names), len(labels))
        axis.set_title(title, fontsize=10)
        hide_spines(axis)
        for row, column in np.argwhere(table > 0) if len(names) <= MOST_NUMBERS else ():
            color = "white" if share[row, column] > 0.6 else "black"
            axis.text(column, row, f"{table[row, column]:,}", ha="center", va="center", fontsize=7, color=color)
        add_colorbar(figure, image, axis, text=label("share of the row"))
    return path
