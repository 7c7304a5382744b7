"""Texts with a class, and words with tags: TSV, CSV, JSONL, Parquet or CoNLL columns → examples.

labels   text, class                          columns "text" and "label", or 0 and 1 without a header
tags     words, as many tags                  JSONL fields "tokens" and "tags"; CoNLL: a word and its tag per line,
                                              in the first and the last column, blank lines between sentences
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.data.corpus import field_names, json_lines, parquet_columns
from chumoku.data.csv_rows import Row, read_csv_rows
from chumoku.data.report import Report
from chumoku.data.text_files import ByteStream, Line, find_files, guess_format, open_members, read_lines
from chumoku.errors import CorpusError, UsageError, pluralize
from chumoku.text.byte_chars import fix_surrogates
from chumoku.text.progress import Progress, silent

Columns = Sequence[str | int]
TEXT_COLUMNS, WORD_COLUMNS = ("text", "label"), ("tokens", "tags")
JSON_SUFFIXES = (".jsonl", ".ndjson")
PROGRESS_EVERY = 1 << 10  # examples
MAX_LABEL = 1024  # characters; a longer label is probably the wrong column


class Example(NamedTuple):
    words: tuple[str, ...]  # one text, or the words of a sentence
    labels: tuple[str, ...]  # its class, or a tag for each word

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Located(NamedTuple):
    line: int
    example: Example
    problem: str | None = None


def read_examples(
    files: Sequence[str | Path],
    *,
    tagged: bool = False,
    columns: Columns | None = None,
    duplicates: bool = False,
    progress: Progress = silent,
) -> tuple[list[Example], Report]:
    """The examples of these files, and a report of what was dropped.

    tagged       words with tags instead of texts with a class
    columns      of text and label: indices, or names in a header, JSONL or Parquet
    duplicates   keep an example that occurs again
    """
    report = Report()
    paths = find_files(files)
    report.files = [str(path) for path in paths]
    examples: list[Example] = []
    known: set[Example] = set()
    for path in paths:
        for name, suffix, stream in open_members(path):
            for line, example, problem in _read_file(path, name, suffix, stream, tagged, columns, report):
                report.read += 1
                if report.read % PROGRESS_EVERY == 0:
                    progress("reading", report.read, unit="examples")
                reason = problem or _find_problem(example)
                if reason is None and not duplicates and example in known:
                    reason = "duplicate"
                if reason is not None:
                    report.drop(reason, name, line, f"{example.text} ⇥ {' '.join(example.labels)}")
                    continue
                known.add(example)
                examples.append(example)
                report.kept_by_file[name] += 1
    report.kept = len(examples)
    if not examples:
        raise report.nothing_usable("examples", "Check the columns.")
    return examples, report


def sort_labels(examples: Iterable[Example]) -> list[str]:
    """The labels of the examples, each once: numbers in their order, then names in alphabetical order."""
    found = {label for example in examples for label in example.labels}
    return sorted(found, key=lambda label: (0, int(label), label) if _is_number(label) else (1, 0, label))


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdecimal() and len(label) < 16


def _find_problem(example: Example) -> str | None:
    if not example.words or not all(word.strip() for word in example.words):
        return "empty"
    if not all(label.strip() for label in example.labels):
        return "empty"
    if len(example.words) != len(example.labels):
        return "different lengths"
    return "label too long" if max(map(len, example.labels)) > MAX_LABEL else None


def _read_file(
    path: Path, name: str, suffix: str, stream: ByteStream, tagged: bool, columns: Columns | None, report: Report
) -> Iterator[Located]:
    if suffix in JSON_SUFFIXES:
        return _json(name, stream, columns or (WORD_COLUMNS if tagged else TEXT_COLUMNS), tagged, report)
    if tagged:
        return _conll(name, stream, columns or (0, -1))
    if suffix == ".parquet":
        return _parquet(path, name, stream, columns or TEXT_COLUMNS)
    rows = read_csv_rows(name, stream) if suffix == ".csv" else _tsv_rows(read_lines(stream))
    return _table(name, rows, columns)


def _json(name: str, stream: ByteStream, columns: Columns, tagged: bool, report: Report) -> Iterator[Located]:
    for number, record in json_lines(name, stream, report):
        values = [_as_texts(record.get(str(column)), many=tagged) for column in columns]
        missing = next((column for column, value in zip(columns, values, strict=True) if value is None), None)
        if missing is not None and number == 1:
            kind = "a list of texts" if tagged else "a text"
            raise CorpusError(
                f"{name}:1 has no field '{missing}' with {kind}; its fields are {field_names(record)}. Choose other "
                "columns."
            )
        words, labels = (value or () for value in values)
        yield Located(number, Example(words, labels), None if missing is None else "missing column")


def _as_texts(value: Any, *, many: bool) -> tuple[str, ...] | None:
    """A text or number, or a list of them, as texts; None for anything else."""
    values = value if many else [value]
    if not isinstance(values, list) or not all(isinstance(one, (str, int)) for one in values):
        return None
    return tuple(fix_surrogates(str(one)) for one in values)


def _parquet(path: Path, name: str, stream: ByteStream, columns: Columns) -> Iterator[Located]:
    for number, (text, label) in enumerate(parquet_columns(path, name, stream, *map(str, columns)), start=1):
        yield Located(number, Example((text,), (label,)))


def _tsv_rows(lines: Iterable[Line]) -> Iterator[Row]:
    return (Row(number, text.split("\t"), problem) for number, text, problem in lines)


def _table(name: str, rows: Iterator[Row], columns: Columns | None) -> Iterator[Located]:
    """The examples of a table. Columns given by name, or a first line `text` and `label`, mean that it has a header."""
    first = next(rows, None)
    if first is None:
        return
    places = _find_columns(name, first[1], columns)
    if places is None:
        places = [int(column) for column in columns or (0, 1)]
        if max(places) >= len(first[1]):
            advice = guess_format("\t".join(first[1])) or " Give columns, or a header with text and label."
            raise CorpusError(
                f"{name}:1 has {pluralize(len(first[1]), 'column')}, but column {max(places)} is needed (counted from "
                f"0).{advice}"
            )
        yield _located(*first, places)
    for row in rows:
        if row[1] and row[1] != [""]:  # not a blank line
            yield _located(*row, places)


def _find_columns(name: str, header: list[str], columns: Columns | None) -> list[int] | None:
    """The places of the columns in a header; None if there is no header."""
    wanted = TEXT_COLUMNS if columns is None else columns
    names = [cell.strip() for cell in header]
    if all(isinstance(column, int) or column.isdecimal() for column in wanted):
        if min(map(int, wanted)) < 0:
            raise UsageError(f"Columns of {name} are numbered from 0, not {min(map(int, wanted))}.")
        return None
    if all(column in names for column in wanted):
        return [names.index(str(column)) for column in wanted]
    if columns is None:
        return None
    missing = next(column for column in wanted if column not in names)
    raise CorpusError(f"{name} has no column '{missing}' in its first line: {', '.join(names)[:200]}. Choose others.")


def _located(line: int, cells: list[str], problem: str | None, places: list[int]) -> Located:
    if problem is None and max(places) >= len(cells):
        problem = "missing column"
    text, label = (cells[place] if place < len(cells) else "" for place in places)
    return Located(line, Example((text,), (label.strip(),)), problem)


def _conll(name: str, stream: ByteStream, columns: Columns) -> Iterator[Located]:
    """Sentences of lines with a word and its tag, separated by blank lines."""
    places = [_conll_column(name, column) for column in columns]
    words: list[str] = []
    tags: list[str] = []
    start, problem = 1, None
    for number, text, bad in read_lines(stream):
        cells = text.split()
        if cells and not words and problem is None:
            start = number
        comment = text.startswith("-DOCSTART-") or (not words and text.startswith("# ") and "=" in text)
        if bad is None and cells and not comment:
            if len(cells) < 2 or max(places) >= len(cells):
                if number == start == 1:
                    advice = guess_format(text) or " Is this a table of texts (data.kind = 'labels')?"
                    raise CorpusError(
                        f"{name}:1 has {pluralize(len(cells), 'column')}; a word and its tag are needed, separated by "
                        f"spaces or tabs.{advice}"
                    )
                bad = "missing column"
            else:
                words.append(cells[places[0]])
                tags.append(cells[places[1]])
        problem = problem or bad
        if not cells and (words or problem):
            yield Located(start, Example(tuple(words), tuple(tags)), problem)
            words, tags, problem = [], [], None
    if words or problem:
        yield Located(start, Example(tuple(words), tuple(tags)), problem)


def _conll_column(name: str, column: str | int) -> int:
    if isinstance(column, str) and not column.removeprefix("-").isdecimal():
        raise UsageError(f"Columns of {name} are numbers counted from 0, or -1 for the last; '{column}' is a name.")
    return int(column)
