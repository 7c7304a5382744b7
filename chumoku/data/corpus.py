"""Text for language models: any number of files → documents, streamed.

    blank    documents are separated by blank lines      file    each file is one document
    line     each line is one                            record  each JSONL or Parquet record is one (its `field`)

A document may be larger than memory, so it comes in pieces; the last piece of a document says so.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from chumoku.data.report import Report
from chumoku.data.text_files import LONGEST_LINE, LONGEST_RECORD, PACKED, Stream, expand, lines, members
from chumoku.errors import CorpusError, MissingExtraError, UsageError
from chumoku.safe_files import parse_json
from chumoku.text.tokenizer import whole

Documents = Literal["blank", "file", "line", "record"]
PIECE = 1 << 20
FIELDS_SHOWN = 20


class Piece(NamedTuple):
    text: str
    ends: bool  # whether the document ends here


class Corpus:
    """Files and how to cut them into documents. `report` tells what the last reading found."""

    def __init__(self, files: Iterable[str | Path], *, documents: Documents = "blank", field: str = "text") -> None:
        if documents not in ("blank", "file", "line", "record"):
            raise UsageError(f"Documents cannot be cut by '{documents}'; choose blank, file, line or record.")
        self.files = expand(files)
        self.cut = documents
        self.field = field
        self.report = Report()

    def documents(self) -> Iterator[str]:
        """Whole documents; one longer than a piece comes as several, for purposes that do not mind."""
        for piece in self.pieces():
            if piece.text:
                yield piece.text

    def pieces(self) -> Iterator[Piece]:
        """Documents in pieces, and a fresh report."""
        self.report = Report(files=[str(file) for file in self.files])
        for path in self.files:
            yield from self._counted(self._file(path))
        if not self.report.kept:
            names = ", ".join(self.report.files[:3])
            why = "; ".join(self.report.lines()[1:2]) or "the files are empty"
            raise CorpusError(f"No text was found in {names}: {why}. Check the files, or the field name.")

    def _counted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        open_document = False
        for piece in pieces:
            if piece.text.strip():
                open_document = True
            if piece.ends:
                self.report.read += open_document
                self.report.kept += open_document
                open_document = False
            yield piece

    def _file(self, path: Path) -> Iterator[Piece]:
        for name, suffix, stream in members(path):
            if suffix == ".parquet":
                for number, text in enumerate(parquet_columns(path, name, stream, self.field), start=1):
                    yield from self._record(name, number, text[0])
            elif suffix in (".jsonl", ".ndjson"):
                for number, record in json_lines(name, stream, self.report):
                    yield from self._field(name, number, record)
            else:
                yield from self._plain(name, stream)

    def _plain(self, name: str, stream: Stream) -> Iterator[Piece]:
        """Lines gathered into documents. A line too long for memory is taken in parts: it is text all the same."""
        held: list[str] = []
        size, inside, line_says_something = 0, False, False
        for number, text, line_ends, problem in _parts(stream):
            if problem is not None:
                self.report.read += 1
                self.report.drop(problem, name, number, text)
                continue
            line_says_something = line_says_something or bool(text.strip())
            blank = line_ends and not line_says_something
            document_ends = line_ends and (self.cut == "line" or (self.cut != "file" and blank))
            if line_says_something or inside:
                inside = True
                held.append(text + ("\n" if line_ends and self.cut != "line" else ""))
                size += len(text) + 1
            if inside and (document_ends or size > PIECE):
                joined = "".join(held)
                yield Piece(joined.rstrip("\n") if document_ends else joined, document_ends)
                held, size, inside = [], 0, not document_ends
            if line_ends:
                line_says_something = False
        yield Piece("".join(held).rstrip("\n"), True)

    def _field(self, name: str, number: int, record: dict[str, Any]) -> Iterator[Piece]:
        text = record.get(self.field)
        if isinstance(text, str):
            yield from self._record(name, number, text)
            return
        if number == 1:
            raise CorpusError(
                f"{name}:1 has no text under '{self.field}'; its fields are {field_names(record)}. "
                "Name the right one with field."
            )
        self.report.read += 1
        self.report.drop("missing column", name, number, field_names(record))

    def _record(self, name: str, number: int, text: str) -> Iterator[Piece]:
        if text.strip():
            yield from _cut(whole(text))
        else:
            self.report.read += 1
            self.report.drop("empty", name, number, text)


class Part(NamedTuple):
    number: int
    text: str
    line_ends: bool
    problem: str | None


def _parts(stream: Stream) -> Iterator[Part]:
    """Lines, the very long ones in parts that end between characters."""
    number, rest, fresh = 0, b"", True
    while True:
        raw = stream.readline(LONGEST_LINE)
        if not raw:
            break
        number += fresh
        raw = rest + raw
        if number == 1 and fresh:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        fresh = raw.endswith(b"\n")
        rest = b"" if fresh else _open_character(raw)
        body = raw[: len(raw) - len(rest)]
        if fresh:
            body = body.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield Part(number, body.decode("utf-8"), fresh, None)
        except UnicodeDecodeError:
            yield Part(number, body[:200].decode("utf-8", "replace"), fresh, "invalid UTF-8")
    if rest:
        yield Part(number, rest.decode("utf-8", "replace"), True, "invalid UTF-8")


def _open_character(raw: bytes) -> bytes:
    """The bytes at the end that begin a character and do not finish it."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[-back:] if needed > back else b""
        if byte < 0x80:
            break
    return b""


def _cut(text: str) -> Iterator[Piece]:
    for start in range(0, len(text), PIECE):
        yield Piece(text[start : start + PIECE], start + PIECE >= len(text))


def json_lines(name: str, stream: Stream, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered records; what cannot be parsed is counted in the report."""
    for number, text, problem in lines(stream, longest=LONGEST_RECORD):
        if problem is None and not text.strip():
            continue
        if problem is None:
            try:
                record = parse_json(text)
                problem = None if isinstance(record, dict) else "not JSON"
            except ValueError:
                problem = "not JSON"
        if problem is not None:
            report.read += 1
            report.drop(problem, name, number, text)
            continue
        yield number, record


def field_names(record: dict[str, Any]) -> str:
    """The fields of a record for people: the first few, and how many more there are."""
    names = [str(name)[:40] for name in itertools.islice(record, FIELDS_SHOWN)]
    more = f" and {len(record) - FIELDS_SHOWN:,} more" if len(record) > FIELDS_SHOWN else ""
    return (", ".join(names) or "none") + more


def parquet_columns(path: Path, name: str, stream: Stream, *columns: str) -> Iterator[tuple[str, ...]]:
    """Rows of text columns, a batch at a time."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"Reading {name} needs pyarrow. Install it with: pip install 'chumoku[parquet]', or convert it to JSONL."
        ) from error
    with contextlib.ExitStack() as stack:
        source: Any = path
        if path.suffix.lower() in PACKED:
            source = stack.enter_context(tempfile.TemporaryFile())
            stream.copy_to(source)
        try:
            table = pyarrow.parquet.ParquetFile(source)
            for column in columns:
                _check_column(name, table.schema_arrow, column)
            for batch in table.iter_batches(batch_size=1024, columns=list(columns)):
                rows = zip(*(batch.column(column).to_pylist() for column in columns), strict=True)
                yield from (tuple(value or "" for value in row) for row in rows)
        except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
            raise CorpusError(
                f"{name} is no Parquet file that can be read: {error}. Fetch or write it again."
            ) from error


def _check_column(name: str, schema: Any, column: str) -> None:
    if column not in schema.names:
        raise CorpusError(f"{name} has no column '{column}'; its columns are {', '.join(schema.names)}. Name another.")
    kind = str(schema.field(column).type)
    if kind not in ("string", "large_string", "string_view"):
        raise CorpusError(f"The column '{column}' of {name} holds {kind}, not text. Name another.")
