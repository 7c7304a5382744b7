"""Reading lines from plain, gzipped or zipped files, streamed.

Byte order marks and CR LF are removed. A line that is not UTF-8 or too long is returned with its number and a problem.
A file that cannot be read raises a CorpusError that names it. Only regular files are opened, because reading a pipe or
a device may never end.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from chumoku.errors import CorpusError
from chumoku.safe_files import check_file
from chumoku.text.progress import Progress, silent

TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".ndjson", ".tsv", ".parquet")
COMPRESSED_SUFFIXES = (".gz", ".zip")
MAX_LINE_BYTES = 1 << 20
HASH_BYTES = 1 << 20  # read at a time
MAX_RECORD_BYTES = 1 << 23  # smaller than memory allows: as Python objects, a record may take 25 times its bytes
BOM = b"\xef\xbb\xbf"
PEEKED = 512  # first bytes of a file that tell its type
OTHER_TYPES = {  # first bytes → type
    b"\x1f\x8b": "gzipped (.gz)",
    b"PK\x03\x04": "a zip archive (.zip, .docx, .xlsx)",
    b"PAR1": "a Parquet file (.parquet)",
    b"%PDF": "a PDF",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GGUF": "a model (.gguf)",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"(\xb5/\xfd": "a zstd archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


class Line(NamedTuple):
    number: int
    text: str
    problem: str | None = None


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that match paths, folders and glob patterns, in order, without duplicates."""
    matches: dict[Path, None] = {}
    for pattern in patterns:
        if not str(pattern).strip():
            raise CorpusError("One of the file names is empty. Give a file, folder or pattern.")
        path = Path(pattern)
        if path.is_dir():
            files = sorted(
                file for file in path.rglob("*") if file.is_file() and inner_suffix(file) in (*TEXT_SUFFIXES, ".zip")
            )
            if not files:
                raise CorpusError(f"The folder {path} has no text files. They end in {', '.join(TEXT_SUFFIXES)}.")
        elif path.exists():
            check_file(path)
            files = [path]
        else:
            files = sorted(Path(name) for name in glob.glob(str(pattern), recursive=True) if Path(name).is_file())
            if not files:
                raise CorpusError(
                    f"No file matches {pattern}. Check the path, or quote a pattern such as 'data/*.txt'."
                )
        matches.update(dict.fromkeys(files))
    if not matches:
        raise CorpusError("No files were given. Give at least one file, folder or pattern.")
    return list(matches)


def inner_suffix(path: Path) -> str:
    """The suffix of the content: .txt for a.TXT and a.txt.gz; .zip for an archive, whose members have their own."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == ".gz" else suffix


DAMAGE_ERRORS = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError)
READ_ERRORS = (*DAMAGE_ERRORS, OSError, RuntimeError, NotImplementedError)


def read_error(path: Path, error: Exception) -> CorpusError:
    """The CorpusError that explains an error while reading a file."""
    if isinstance(error, DAMAGE_ERRORS):
        reason = str(error).rstrip(".")
        return CorpusError(f"{path} is damaged or not of the type of its suffix: {reason}. Download or pack it again.")
    reason = str(getattr(error, "strerror", None) or error).rstrip(".")
    return CorpusError(f"{path} could not be read: {reason}. Check the file and its permissions.")


@contextlib.contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except READ_ERRORS as error:
        raise read_error(path, error) from error


class ByteStream:
    """A byte stream whose read errors name the file."""

    def __init__(self, path: Path, stream: IO[bytes] | gzip.GzipFile) -> None:
        self._path, self._stream = path, stream

    def readline(self, limit: int) -> bytes:
        try:
            return self._stream.readline(limit)
        except READ_ERRORS as error:
            raise read_error(self._path, error) from error

    def copy_to(self, target: IO[bytes]) -> None:
        with explain_read_errors(self._path):
            shutil.copyfileobj(self._stream, target)

    def check_is_text(self, name: str) -> None:
        """Raise CorpusError if the stream starts as a file of another type does."""
        with explain_read_errors(self._path):
            first = self._stream.peek(PEEKED)[:PEEKED]  # type: ignore[union-attr]
        kind = next((kind for start, kind in OTHER_TYPES.items() if first.startswith(start)), None)
        if kind == "UTF-16 text":
            raise CorpusError(f"{name} is UTF-16 text. Convert it: iconv -f UTF-16 -t UTF-8 {name} > NEW.")
        if kind is None and b"\0" in first:
            kind = "a binary file"
        if kind is not None:
            raise CorpusError(f"{name} is {kind}, not text. Give text, or name the file after what it is.")


class Member(NamedTuple):
    """One text: a file, or a member of a zip archive."""

    name: str
    suffix: str
    stream: ByteStream


def open_members(path: Path) -> Iterator[Member]:
    """Open a file: one text, or one for each member of a zip archive that is not hidden."""
    check_file(path)
    with explain_read_errors(path):
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                inside = [info for info in archive.infolist() if not info.is_dir() and not _hidden(info.filename)]
                if not inside:
                    raise CorpusError(f"{path} is a zip archive without files. Check how it was packed.")
                for info in inside:
                    gzipped = info.filename.lower().endswith(".gz")
                    with archive.open(info) as stored, gzip.open(stored) if gzipped else stored as member:
                        suffix = inner_suffix(Path(info.filename))
                        yield _checked_member(f"{path}:{info.filename}", suffix, ByteStream(path, member))
            return
        open_file = gzip.open if path.suffix.lower() == ".gz" else open
        with open_file(path, "rb") as stream:
            yield _checked_member(str(path), inner_suffix(path), ByteStream(path, stream))


def _checked_member(name: str, suffix: str, stream: ByteStream) -> Member:
    if suffix != ".parquet":
        stream.check_is_text(name)
    return Member(name, suffix, stream)


def _hidden(name: str) -> bool:
    """Whether a zip member is metadata, such as _about.txt, __MACOSX/… or .DS_Store."""
    return any(part.startswith(("_", ".")) for part in name.split("/") if part not in (".", ".."))


def read_lines(stream: ByteStream, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Numbered lines without line ends. A line of more than `max_bytes` is skipped and returned as a problem."""
    number = 0
    while True:
        raw = stream.readline(max_bytes + 2)
        if not raw:
            return
        number += 1
        if number == 1:
            raw = raw.removeprefix(BOM)
        if len(raw) > max_bytes and not raw.endswith(b"\n"):
            start = raw[:200].decode("utf-8", "replace")
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE_BYTES)
            yield Line(number, start, "line too long")
            continue
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield Line(number, raw.decode("utf-8"))
        except UnicodeDecodeError:
            yield Line(number, raw[:200].decode("utf-8", "replace"), "invalid UTF-8")


def guess_format(text: str) -> str:
    """A sentence about a line that is no row of a TSV table: it may be JSONL or CSV. Empty if nothing is known."""
    if text.lstrip().startswith("{"):
        return " It looks like JSONL: name the file .jsonl."
    return " It looks like CSV: name the file .csv." if "," in text and "\t" not in text else ""


class Fingerprint(NamedTuple):
    """Path, size and checksum of a file, to notice when it changes."""

    path: str
    size: int
    sha256: str


def compute_fingerprint(
    path: Path, progress: Progress = silent, *, before: int = 0, total: int | None = None
) -> Fingerprint:
    """The fingerprint of a file; `progress` is called with `before` + the bytes read so far, of `total` bytes."""
    check_file(path)
    digest, size = hashlib.sha256(), 0
    with explain_read_errors(path), path.open("rb") as stream:
        while chunk := stream.read(HASH_BYTES):
            digest.update(chunk)
            size += len(chunk)
            progress("checking files", before + size, total, "bytes")
    return Fingerprint(str(path), size, digest.hexdigest())


def compute_fingerprints(files: Sequence[Path], progress: Progress = silent) -> list[dict[str, Any]]:
    """The fingerprints of files, as dicts."""
    total, checked, results = sum(map(check_file, files)), 0, []
    for file in files:
        found = compute_fingerprint(file, progress, before=checked, total=total)
        checked += found.size
        results.append(found._asdict())
    return results


@contextlib.contextmanager
def refuse_if_changed(files: Iterable[Path]) -> Iterator[None]:
    """A context that raises CorpusError at its end if any of the files changed meanwhile."""
    files = list(files)
    before = [file.stat().st_mtime_ns for file in files]
    yield
    for file, time in zip(files, before, strict=True):
        if file.stat().st_mtime_ns != time:
            raise CorpusError(f"{file} changed while it was read. Prepare again when it no longer changes.")
