"""Files in, lines out: plain, gzipped or zipped, streamed, never whole in memory.

Byte order marks and CR LF are taken off. A line that is no UTF-8 or longer than allowed comes out as a problem with
its number; a file that cannot be read at all raises a CorpusError that names it and the way out.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from chumoku.errors import CorpusError

TEXT = (".txt", ".text", ".md", ".jsonl", ".ndjson", ".tsv", ".parquet")
PACKED = (".gz", ".zip")
LONGEST_LINE = 1 << 20
BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    number: int
    text: str
    problem: str | None = None


def expand(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that paths, folders and globs stand for, in order, each once."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and inner_suffix(file) in TEXT)
            if not files:
                raise CorpusError(f"The folder {path} holds no text. Files there should end in {', '.join(TEXT)}.")
        elif path.exists():
            files = [path]
        else:
            files = sorted(Path(name) for name in glob.glob(str(pattern), recursive=True) if Path(name).is_file())
            if not files:
                raise CorpusError(
                    f"No file matches {pattern}. Check the path, or quote a pattern such as 'data/*.txt'."
                )
        found.update(dict.fromkeys(files))
    if not found:
        raise CorpusError("No files were given. Name at least one file, folder or pattern.")
    return list(found)


def inner_suffix(path: Path) -> str:
    """The ending that says what is inside: .txt for a.txt and a.txt.gz; .txt for a.zip, whose members are text."""
    if path.suffix == ".zip":
        return ".txt"
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


DAMAGE = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError)
FAILURES = (*DAMAGE, OSError, RuntimeError, NotImplementedError)


def named(path: Path, error: Exception) -> CorpusError:
    """A failure of reading as a sentence with the file's name."""
    if isinstance(error, DAMAGE):
        return CorpusError(f"{path} is damaged or not what its ending says: {error}. Fetch or pack it again.")
    reason = getattr(error, "strerror", None) or error
    return CorpusError(f"{path} could not be read: {reason}. Check the file and its permissions.")


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise named(path, error) from error


class Stream:
    """A byte stream whose failures while reading name the file."""

    def __init__(self, path: Path, stream: IO[bytes] | gzip.GzipFile) -> None:
        self._path, self._stream = path, stream

    def readline(self, limit: int) -> bytes:
        try:
            return self._stream.readline(limit)
        except FAILURES as error:
            raise named(self._path, error) from error


def streams(path: Path) -> Iterator[tuple[str, Stream]]:
    """The byte streams in a file, by name: one, or one for each member of a zip that is not hidden."""
    with named_failures(path):
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                yield str(path), Stream(path, stream)
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = [info for info in archive.infolist() if not info.is_dir() and not _hidden(info.filename)]
                if not members:
                    raise CorpusError(f"{path} is a zip with no files in it. Check how it was packed.")
                for info in members:
                    with archive.open(info) as member:
                        yield f"{path}:{info.filename}", Stream(path, member)
        else:
            with path.open("rb") as plain:
                yield str(path), Stream(path, plain)


def _hidden(name: str) -> bool:
    """Notes that packers leave beside the text: _about.txt, __MACOSX/…, .DS_Store."""
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def lines(stream: Stream, *, longest: int = LONGEST_LINE) -> Iterator[Line]:
    """Numbered lines without their ends. A line past `longest` bytes is skipped and reported, never held."""
    number = 0
    while True:
        raw = stream.readline(longest + 2)
        if not raw:
            return
        number += 1
        if number == 1:
            raw = raw.removeprefix(BOM)
        if len(raw) > longest and not raw.endswith(b"\n"):
            start = raw[:200].decode("utf-8", "replace")
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(LONGEST_LINE)
            yield Line(number, start, "too long")
            continue
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield Line(number, raw.decode("utf-8"))
        except UnicodeDecodeError:
            yield Line(number, raw[:200].decode("utf-8", "replace"), "invalid UTF-8")


class Fingerprint(NamedTuple):
    """What a file was: enough to notice that it is another one now."""

    path: str
    size: int
    sha256: str


def fingerprint(path: Path) -> Fingerprint:
    with named_failures(path), path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Fingerprint(str(path), stream.tell(), digest)
