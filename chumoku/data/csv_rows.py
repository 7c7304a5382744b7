"""Rows of a CSV file, whose quoted cells may contain commas and line ends."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import NamedTuple

from chumoku.data.text_files import ByteStream, read_lines
from chumoku.errors import CorpusError


class Row(NamedTuple):
    number: int  # of its last line
    cells: list[str]
    problem: str | None = None  # of one of its lines


def read_csv_rows(name: str, stream: ByteStream) -> Iterator[Row]:
    """The rows with cells; a cell, also one whose quotation mark is never closed, has at most 128 KiB."""
    problems: list[str] = []  # of the lines of this row

    def lines() -> Iterator[str]:
        for _, text, problem in read_lines(stream):
            problems.extend([problem] if problem else [])
            yield f"{text}\n"

    rows = csv.reader(lines(), strict=True)
    try:
        for cells in filter(None, rows):
            yield Row(rows.line_num, cells, problems[0] if problems else None)
            problems.clear()
    except csv.Error as error:
        raise CorpusError(f"{name}:{rows.line_num} is not valid CSV: {error}. Check its quotation marks.") from error
