"""Text for language models: files → documents, streamed.

    blank    documents are separated by blank lines      file    each file is one document
    line     each line is one document                   record  each JSONL or Parquet record is one (its `field`)

A document may be larger than memory, so it comes in pieces; the last piece of a document is marked.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from chumoku.data.report import Report
from chumoku.data.text_files import (
    COMPRESSED_SUFFIXES,
    MAX_LINE_BYTES,
    MAX_RECORD_BYTES,
    ByteStream,
    find_files,
    open_members,
    read_lines,
)
from chumoku.errors import CorpusError, MissingExtraError, UsageError
from chumoku.safe_files import parse_json
from chumoku.text.byte_chars import fix_surrogates

Documents = Literal["blank", "file", "line", "record"]
PIECE_CHARACTERS = 1 << 20
FIELDS_SHOWN = 20


class Piece(NamedTuple):
    text: str
    ends: bool  # whether the document ends here


class Corpus:
    """Files and how to split them into `documents` (see above); `field` is the text field of JSONL and Parquet records.

    `report` describes what the last pass over the files found.
    """

    def __init__(self, files: Iterable[str | Path], *, documents: Documents = "blank", field: str = "text") -> None:
        if documents not in ("blank", "file", "line", "record"):
            raise UsageError(f"documents cannot be '{documents}'; choose blank, file, line or record.")
        self.files = find_files(files)
        self.document_mode = documents
        self.field = field
        self.report = Report()

    def documents(self) -> Iterator[str]:
        """Documents as strings; a document longer than a piece comes as several strings."""
        for piece in self.pieces():
            if piece.text:
                yield piece.text

    def pieces(self) -> Iterator[Piece]:
        """Documents in pieces. Starts a new report."""
        self.report = Report(files=[str(file) for file in self.files])
        for path in self.files:
            yield from self._count_documents(self._read_file(path))
        if not self.report.kept:
            raise self.report.nothing_usable("text", "Check the files, or the field name.")

    def _count_documents(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        open_document = False
        for piece in pieces:
            if piece.text.strip():
                open_document = True
            if piece.ends:
                self.report.read += open_document
                self.report.kept += open_document
                open_document = False
            yield piece

    def _read_file(self, path: Path) -> Iterator[Piece]:
        for name, suffix, stream in open_members(path):
            if suffix == ".parquet":
                for number, text in enumerate(parquet_columns(path, name, stream, self.field), start=1):
                    yield from self._read_record(name, number, text[0])
            elif suffix in (".jsonl", ".ndjson"):
                for number, record in json_lines(name, stream, self.report):
                    yield from self._read_field(name, number, record)
            else:
                yield from self._read_text(name, stream)

    def _read_text(self, name: str, stream: ByteStream) -> Iterator[Piece]:
        """Lines joined into documents. A very long line is read in parts."""
        buffer: list[str] = []
        size, in_document, line_has_text = 0, False, False
        for number, text, line_ends, problem in _read_parts(stream):
            if problem is not None:
                self.report.read += 1
                self.report.drop(problem, name, number, text)
                continue
            line_has_text = line_has_text or bool(text.strip())
            blank = line_ends and not line_has_text
            document_ends = line_ends and (self.document_mode == "line" or (self.document_mode != "file" and blank))
            if line_has_text or in_document:
                in_document = True
                buffer.append(text + ("\n" if line_ends and self.document_mode != "line" else ""))
                size += len(text) + 1
            if in_document and (document_ends or size > PIECE_CHARACTERS):
                joined = "".join(buffer)
                yield Piece(joined.rstrip("\n") if document_ends else joined, document_ends)
                buffer, size, in_document = [], 0, not document_ends
            if line_ends:
                line_has_text = False
        yield Piece("".join(buffer).rstrip("\n"), True)

    def _read_field(self, name: str, number: int, record: dict[str, Any]) -> Iterator[Piece]:
        text = record.get(self.field)
        if isinstance(text, str):
            yield from self._read_record(name, number, text)
            return
        if number == 1:
            raise CorpusError(
                f"{name}:1 has no text field '{self.field}'; its fields are {field_names(record)}. "
                "Choose one of them with field."
            )
        self.report.read += 1
        self.report.drop("missing column", name, number, field_names(record))

    def _read_record(self, name: str, number: int, text: str) -> Iterator[Piece]:
        if text.strip():
            yield from _split_pieces(fix_surrogates(text))
        else:
            self.report.read += 1
            self.report.drop("empty", name, number, text)


class Part(NamedTuple):
    number: int
    text: str
    line_ends: bool
    problem: str | None


def _read_parts(stream: ByteStream) -> Iterator[Part]:
    """The lines of a stream; very long lines come in parts that end between characters."""
    number, incomplete, new_line = 0, b"", True
    while True:
        raw = stream.readline(MAX_LINE_BYTES)
        if not raw:
            break
        number += new_line
        raw = incomplete + raw
        if number == 1 and new_line:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        new_line = raw.endswith(b"\n")
        incomplete = b"" if new_line else _incomplete_character(raw)
        body = raw[: len(raw) - len(incomplete)]
        if new_line:
            body = body.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield Part(number, body.decode("utf-8"), new_line, None)
        except UnicodeDecodeError:
            yield Part(number, body[:200].decode("utf-8", "replace"), new_line, "invalid UTF-8")
    if incomplete:
        yield Part(number, incomplete.decode("utf-8", "replace"), True, "invalid UTF-8")


def _incomplete_character(raw: bytes) -> bytes:
    """The bytes of an incomplete character at the end, or b""."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[-back:] if needed > back else b""
        if byte < 0x80:
            break
    return b""


def _split_pieces(text: str) -> Iterator[Piece]:
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield Piece(text[start : start + PIECE_CHARACTERS], start + PIECE_CHARACTERS >= len(text))


def json_lines(name: str, stream: ByteStream, report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a JSONL stream with their line numbers; lines that cannot be parsed are counted in the report."""
    for number, text, problem in read_lines(stream, max_bytes=MAX_RECORD_BYTES):
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
    """The first field names of a record, and how many more there are, for messages."""
    names = [str(name)[:40] for name in itertools.islice(record, FIELDS_SHOWN)]
    more = f" and {len(record) - FIELDS_SHOWN:,} more" if len(record) > FIELDS_SHOWN else ""
    return (", ".join(names) or "none") + more


def parquet_columns(path: Path, name: str, stream: ByteStream, *columns: str) -> Iterator[tuple[str, ...]]:
    """The rows of text columns, read in batches."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"Reading {name} needs pyarrow. Install it with: pip install 'chumoku[parquet]', or convert it to JSONL."
        ) from error
    with contextlib.ExitStack() as stack:
        source: Any = path
        if path.suffix.lower() in COMPRESSED_SUFFIXES:
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
            reason = str(error).rstrip(".")
            raise CorpusError(
                f"{name} is not a readable Parquet file: {reason}. Download or write it again."
            ) from error


def _check_column(name: str, schema: Any, column: str) -> None:
    if column not in schema.names:
        raise CorpusError(f"{name} has no column '{column}'; its columns are {', '.join(schema.names)}. Choose one.")
    kind = str(schema.field(column).type)
    if kind not in ("string", "large_string", "string_view"):
        raise CorpusError(f"The column '{column}' of {name} has the type {kind}, not text. Choose another.")
