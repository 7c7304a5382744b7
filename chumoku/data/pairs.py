"""Sentence pairs: TSV, CSV, two aligned files, JSONL or Parquet → cleaned pairs.

The report counts each reason for dropping a pair, with examples, their files and lines.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chumoku.data.corpus import field_names, json_lines, parquet_columns
from chumoku.data.csv_rows import Row, read_csv_rows
from chumoku.data.report import Report
from chumoku.data.text_files import ByteStream, Line, find_files, guess_format, inner_suffix, open_members, read_lines
from chumoku.errors import CorpusError, UsageError, pluralize
from chumoku.text.byte_chars import fix_surrogates
from chumoku.text.progress import Progress, silent


class Pair(NamedTuple):
    source: str
    target: str


@dataclass(frozen=True)
class Cleaning:
    """Which pairs to keep."""

    longest: int = 1000  # maximum characters on a side
    ratio: float = 9.0  # maximum ratio of the two lengths in characters
    duplicates: bool = False  # whether to keep duplicates
    languages: tuple[str | None, str | None] = (None, None)  # codes whose scripts are checked (see SCRIPTS)


class LocatedRow(NamedTuple):
    file: str
    line: int
    texts: tuple[str, ...]  # one for each column
    problem: str | None = None


PROGRESS_EVERY = 1 << 10  # pairs
Columns = tuple[str | int, ...]
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet", ".zip")
# The letters of each language.
SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff\u3400-\u9fff々〆]"),
    "zh": re.compile(r"[\u3400-\u9fff]"),
    "ko": re.compile(r"[\uac00-\ud7af]"),
    "ru": re.compile(r"[\u0400-\u04ff]"),
    **dict.fromkeys(("en", "de", "fr", "es", "it", "pt", "nl"), re.compile(r"[a-zA-Z\u00c0-\u024f]")),
}


def read_pairs(
    files: Sequence[str | Path],
    *,
    columns: tuple[str | int, str | int] = (0, 1),
    cleaning: Cleaning | None = None,
    progress: Progress = silent,
) -> tuple[list[Pair], Report]:
    """The cleaned pairs of these files, and a report. Two plain text files are read as source and target line by line.

    columns   source and target: indices in TSV, names in JSONL and Parquet, either in CSV, which has a header
    """
    report = Report()
    cleaning = Cleaning() if cleaning is None else cleaning
    for language in cleaning.languages:
        if language is not None and language not in SCRIPTS:
            raise UsageError(f"The script of '{language}' cannot be checked; choose one of {', '.join(SCRIPTS)}.")
    paths = find_files(files)
    report.files = [str(path) for path in paths]
    pairs: list[Pair] = []
    pair_hashes: set[bytes] = set()
    for file, line, texts, problem in read_rows(paths, columns, report):
        pair = Pair(*texts)
        report.read += 1
        if report.read % PROGRESS_EVERY == 0:
            progress("reading", report.read, unit="pairs")
        reason = problem or find_problem(pair, cleaning)
        if reason is None and not cleaning.duplicates:
            key = hashlib.blake2b(f"{pair.source}\t{pair.target}".encode("utf-8", "replace"), digest_size=12).digest()
            if key in pair_hashes:
                reason = "duplicate"
            pair_hashes.add(key)
        if reason is not None:
            report.drop(reason, file, line, f"{pair.source} ⇥ {pair.target}")
            continue
        pairs.append(pair)
        report.kept_by_file[file] += 1
    report.kept = len(pairs)
    if not pairs:
        raise report.nothing_usable("pairs", "Check columns and languages.")
    return pairs, report


def find_problem(pair: Pair, cleaning: Cleaning) -> str | None:
    """The reason for dropping a pair, or None."""
    source, target = pair
    if not source.strip() or not target.strip():
        return "empty"
    if max(len(source), len(target)) > cleaning.longest:
        return "too long"
    shorter, longer = sorted((len(source.strip()), len(target.strip())))
    if longer > 10 and longer / shorter > cleaning.ratio:
        return "length ratio"
    for text, language in zip(pair, cleaning.languages, strict=True):
        if language is not None and not is_in_script(text, language):
            return "wrong script"
    return None


def is_in_script(text: str, language: str) -> bool:
    """Whether at least a third of the letters are in the language's script; names may be in another."""
    text = unicodedata.normalize("NFKC", text)
    letters = sum(char.isalpha() for char in text)
    return letters == 0 or len(SCRIPTS[language].findall(text)) >= letters / 3


def read_rows(paths: list[Path], columns: Columns, report: Report) -> Iterator[LocatedRow]:
    """The texts of these columns in every row of the files; two plain text files are two columns, line by line."""
    if len(columns) == len(paths) == 2 and not any(inner_suffix(path) in TABLE_SUFFIXES for path in paths):
        yield from _two_files(*paths)
        return
    for path in paths:
        for name, suffix, stream in open_members(path):
            if suffix == ".parquet":
                yield from _parquet(path, name, stream, columns)
            elif suffix in (".jsonl", ".ndjson"):
                yield from _json(name, stream, columns, report)
            elif suffix == ".csv":
                yield from _csv(name, stream, columns)
            else:
                yield from _tsv(name, stream, columns)


def _two_files(source: Path, target: Path) -> Iterator[LocatedRow]:
    sides = itertools.zip_longest(_all_lines(source), _all_lines(target))
    for one, other in sides:
        if one is None or other is None:
            shorter, longer = (source, target) if one is None else (target, source)
            number = (one or other).number
            more = sum(1 for _ in sides) + 1
            raise CorpusError(
                f"{shorter} ends at line {number - 1}, but {longer} has {more:,} more lines: the two files are not "
                "aligned line by line. Compare their ends, or find the line that was split."
            )
        where = target if other.problem else source
        yield LocatedRow(str(where), one.number, (one.text, other.text), one.problem or other.problem)


def _all_lines(path: Path) -> Iterator[Line]:
    for member in open_members(path):
        yield from read_lines(member.stream)


def _tsv(name: str, stream: ByteStream, columns: Columns) -> Iterator[LocatedRow]:
    places = [_column_index(name, column) for column in columns]
    for number, text, problem in read_lines(stream):
        cells = text.split("\t")
        if problem is None and max(places) >= len(cells):
            if number == 1:
                raise CorpusError(
                    f"{name}:1 has {pluralize(len(cells), 'column')}, but column {max(places)} is needed (counted from "
                    f"0).{guess_format(text) or ' Separate columns by tabs, or choose other columns.'}"
                )
            problem = "missing column"
        yield LocatedRow(name, number, tuple(cells[i] if i < len(cells) else "" for i in places), problem)


def _csv(name: str, stream: ByteStream, columns: Columns) -> Iterator[LocatedRow]:
    rows = read_csv_rows(name, stream)
    header = next(rows, Row(1, []))
    places = [_find_in_header(name, column, header.cells) for column in columns]
    for number, cells, problem in rows:
        missing = "missing column" if max(places) >= len(cells) else None
        texts = tuple(cells[place] if place < len(cells) else "" for place in places)
        yield LocatedRow(name, number, texts, problem or missing)


def _find_in_header(name: str, column: str | int, header: list[str]) -> int:
    if column in header:
        return header.index(str(column))
    place = _column_index(name, column) if isinstance(column, int) or column.isdecimal() else len(header)
    if place >= len(header):
        names = ", ".join(cell[:40] for cell in header[:20]) or "none"
        raise CorpusError(f"{name} has no column '{column}'; its first line names {names}. Choose other columns.")
    return place


def _column_index(name: str, column: str | int) -> int:
    if isinstance(column, str) and not column.isdecimal():
        raise UsageError(f"Columns of {name} are numbers counted from 0; '{column}' is a name.")
    if int(column) < 0:
        raise UsageError(f"Columns of {name} are numbers counted from 0, not {column}.")
    return int(column)


def _json(name: str, stream: ByteStream, columns: Columns, report: Report) -> Iterator[LocatedRow]:
    names = _column_names(name, columns)
    for number, record in json_lines(name, stream, report):
        missing = [column for column in names if not isinstance(record.get(column), str)]
        if missing and number == 1:
            raise CorpusError(
                f"{name}:1 has no text field '{missing[0]}'; its fields are {field_names(record)}. "
                "Choose other columns."
            )
        texts = tuple("" if column in missing else fix_surrogates(record[column]) for column in names)
        yield LocatedRow(name, number, texts, "missing column" if missing else None)


def _parquet(path: Path, name: str, stream: ByteStream, columns: Columns) -> Iterator[LocatedRow]:
    for number, texts in enumerate(parquet_columns(path, name, stream, *_column_names(name, columns)), start=1):
        yield LocatedRow(name, number, texts)


def _column_names(name: str, columns: Columns) -> tuple[str, ...]:
    if any(isinstance(column, int) for column in columns):
        raise UsageError(f"Columns of {name} have names. Use them, for example ja and en.")
    return tuple(map(str, columns))


def keep_letters(text: str) -> str:
    """The letters of a text after NFKC and case folding, or all characters if it has no letters."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if char.isalpha()) or folded
