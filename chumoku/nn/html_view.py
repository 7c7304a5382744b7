"""Matrices and tables as HTML for notebooks: inline styles, no scripts, nothing loaded, every text escaped.

    matrix [T, S]  → a heat map with its numbers: blue is positive, red is negative
    mask [T, S]    → filled where a query may attend to a key

A notebook draws an object by its `_repr_html_`; `View` is such an object, and prints as text elsewhere.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from chumoku.errors import ShapeError
from chumoku.nn.masks import format_mask

LARGEST = 64  # rows and columns that are drawn
BLUE, RED = "58, 110, 165", "178, 58, 72"
_CELL = "border:1px solid rgba(128,128,128,.25);padding:2px 5px;text-align:center;font-size:12px;min-width:18px"
_LABEL = "padding:2px 6px;font-weight:normal;font-size:12px"


class View:
    """HTML that a notebook draws, and a text for other places."""

    def __init__(self, markup: str, text: str) -> None:
        self._markup, self._text = markup, text

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return self._text


def show_matrix(
    matrix: Tensor, *, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, digits: int = 2
) -> View:
    """A matrix [T, S] as a heat map with its numbers; `rows` and `columns` are labels."""
    values = _check_matrix(matrix).float()
    finite = values[values.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    cells = [[_number_cell(value, largest, digits) for value in row] for row in values[:LARGEST, :LARGEST].tolist()]
    return View(_grid(cells, values.shape, rows, columns), str(matrix))


def show_mask(mask: Tensor, *, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> View:
    """A mask [T, S] as a picture: filled where the query of the row may attend to the key of the column."""
    allowed = _check_matrix(mask).bool()
    on, off = f"background:rgb({BLUE})", "background:none"
    cells = [
        [f'<td style="{_CELL};{on if one else off}">&nbsp;</td>' for one in row]
        for row in allowed[:LARGEST, :LARGEST].tolist()
    ]
    return View(_grid(cells, allowed.shape, rows, columns), format_mask(allowed))


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts."""
    first = "".join(f'<th style="{_LABEL};text-align:left">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_LABEL};text-align:left">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse"><tr>{first}</tr>{body}</table>'


def _check_matrix(matrix: Tensor) -> Tensor:
    while matrix.ndim > 2 and matrix.shape[0] == 1:
        matrix = matrix[0]
    if matrix.ndim != 2:
        raise ShapeError(
            f"A matrix is drawn, but this tensor is {list(matrix.shape)}. Select one, as in weights[0, 0]."
        )
    return matrix.detach().cpu()


def _number_cell(value: float, largest: float, digits: int) -> str:
    share = abs(value) / largest if largest and math.isfinite(value) else 0.0
    color = f"rgba({BLUE if value >= 0 else RED},{share:.2f})"
    ink = ";color:#fff" if share > 0.6 else ""
    return f'<td style="{_CELL};background:{color}{ink}">{value:.{digits}f}</td>'


def _grid(cells: list[list[str]], shape: torch.Size, rows: Sequence[str] | None, columns: Sequence[str] | None) -> str:
    """A table of cells with labels; a note says what is left out."""
    for labels, size, name in ((rows, shape[0], "rows"), (columns, shape[1], "columns")):
        if labels is not None and len(labels) != size:
            raise ShapeError(f"The matrix has {size} {name}, but there are {len(labels)} labels for them.")
    lines = []
    if columns is not None:
        corner = "<th></th>" if rows is not None else ""
        names = "".join(f'<th style="{_LABEL}">{html.escape(name)}</th>' for name in columns[:LARGEST])
        lines.append(f"<tr>{corner}{names}</tr>")
    for number, row in enumerate(cells):
        label = f'<th style="{_LABEL};text-align:right">{html.escape(rows[number])}</th>' if rows is not None else ""
        lines.append(f"<tr>{label}{''.join(row)}</tr>")
    table = f'<table style="border-collapse:collapse">{"".join(lines)}</table>'
    return table if max(shape) <= LARGEST else f"{table}<p>… [{shape[0]} × {shape[1]}]</p>"
