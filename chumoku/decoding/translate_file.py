"""Translate a file line by line, in constant memory; an interrupted run continues where it stopped.

    line n of OUT = translation of line n of the input         only \\n ends a line
    chunk k       = lines k·c … k·c + c − 1: the batches depend only on line numbers

    each chunk    translate it  →  OUT.progress: n, and a hash of the first n input lines  →  append to OUT, fsync
    continue      remove a partial last line of OUT; check that the first n input lines still have the same hash;
                  translate the chunk in which OUT ends again, and append the missing lines

So an interrupted and continued run gives the same bytes as an uninterrupted one. Input lines that were not read yet may
be edited in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from chumoku.data import text_files
from chumoku.data.text_files import BOM, MAX_LINE_BYTES
from chumoku.errors import BusyError, CorpusError, DamagedError, LengthError, StorageError, UsageError

CHUNK = 256
READ = 1 << 16
Translate = Callable[[list[str]], list[str]]


class ByteStream(Protocol):
    """A byte stream whose read1 returns what has arrived so far, such as sys.stdin.buffer."""

    def read1(self, size: int, /) -> bytes: ...


class Progress(NamedTuple):
    """The content of OUT.progress."""

    job: dict[str, Any]  # model and options
    lines: int  # OUT has at most this many lines …
    read: str  # … translated from input lines with this hash


def translate_file(
    source: Path,
    out: Path,
    translate: Translate,
    *,
    job: Mapping[str, Any],
    chunk: int = CHUNK,
    empty: str = "",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Translate every line of `source` into `out`, or continue an interrupted call. Returns the number of lines.

    job         plain values that determine the result (model, options); an unfinished `out` of another job is refused
    chunk       lines translated together
    empty       what an empty line becomes
    progress    called with the number of finished lines, and of all lines
    """
    check_paths(source, out)
    total = sum(1 for _ in read_lines(source))
    with open_locked(out) as stream:
        done = recover(stream, source, out, dict(job))
        progress(done, total)
        digest, first = hashlib.sha256(), 0
        texts = read_lines(source)
        while some := list(itertools.islice(texts, chunk)):
            digest.update(_bytes(some))
            if first + len(some) > done:
                translations = translate_lines(some, translate, name=str(source), first=first, empty=empty)
                write_progress(out, Progress(dict(job), first + len(some), digest.hexdigest()))
                stream.write(_bytes(translations[max(0, done - first) :]))
                stream.flush()
                os.fsync(stream.fileno())
                progress(first + len(some), total)
            first += len(some)
        progress_path(out).unlink()
    return total


def check_paths(source: Path, out: Path) -> None:
    """Refuse paths that are not two different regular files."""
    if not source.is_file():
        if source.exists():
            raise CorpusError(
                f"{source} is not a regular file. Give a text file, or send lines to standard input instead."
            )
        raise CorpusError(f"{source} does not exist. Give a text file, or send lines to standard input instead.")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is not a regular file. Choose another file to write to.")
    if out.exists() and out.samefile(source):
        raise UsageError(f"{out} is also the input. Choose another file to write to.")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, plain, gzipped or zipped."""
    for member in text_files.open_members(path):
        for line in text_files.read_lines(member.stream):
            if line.problem is not None:
                raise line_error(line.number, member.name, line.problem)
            yield line.text


def line_error(number: int, name: str, problem: str) -> CorpusError:
    """The error of a line that cannot be read; `problem` as in text_files.read_lines."""
    if problem == "too long":
        return CorpusError(
            f"Line {number:,} of {name} is longer than {MAX_LINE_BYTES:,} bytes. Split it into sentences, one per line."
        )
    return CorpusError(
        f"Line {number:,} of {name} is not valid UTF-8. Convert it first, for example with: iconv -f SHIFT_JIS -t "
        "UTF-8."
    )


def read_line_batches(stream: ByteStream, *, most: int, name: str = "standard input") -> Iterator[list[str]]:
    """Lines as they arrive, up to `most` at a time; complete lines are returned at once."""
    rest, number = b"", 0
    while True:
        data = stream.read1(READ)
        *complete, rest = (rest + data).split(b"\n")
        if not data and rest:
            complete, rest = [rest], b""
        if complete and number == 0:
            complete[0] = complete[0].removeprefix(BOM)
        for start in range(0, len(complete), most):
            texts, problem = decode_lines(complete[start : start + most])
            if texts:
                yield texts
            number += len(texts)
            if problem is not None:
                raise line_error(number + 1, name, problem)
        if len(rest) > MAX_LINE_BYTES:
            raise line_error(number + 1, name, "too long")
        if not data:
            return


def decode_lines(raw: list[bytes]) -> tuple[list[str], str | None]:
    """Lines as texts, up to the first invalid one, and the problem with that one."""
    texts: list[str] = []
    for line in raw:
        try:
            texts.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            return texts, "invalid UTF-8"
    return texts, None


def translate_lines(
    texts: list[str], translate: Translate, *, name: str = "standard input", first: int = 0, empty: str = ""
) -> list[str]:
    """A one-line translation of each text, `empty` for an empty one. `first` lines of `name` came before these."""
    nonempty = [text for text in texts if text.strip()]
    try:
        translations = iter(translate(nonempty) if nonempty else [])
    except LengthError as error:
        raise _with_line_number(texts, translate, error, name=name, first=first) from error
    return [one_line(next(translations)) if text.strip() else empty for text in texts]


def make_pairs(texts: list[str], translations: list[str], *, back: bool = False) -> list[str]:
    """Lines of a table of pairs: text, tab, translation; with `back` the translation first."""
    sides = (translations, texts) if back else (texts, translations)
    return ["\t".join(" ".join(side.split("\t")) for side in pair) for pair in zip(*sides, strict=True)]


def one_line(text: str) -> str:
    """Replace every kind of line break (\\n, \\r, U+0085, U+2028 …) by a space."""
    return " ".join(text.splitlines())


def _with_line_number(
    texts: list[str], translate: Translate, error: LengthError, *, name: str, first: int
) -> LengthError:
    """The error with the number of the line that is too long; the longest lines are tried first."""
    for place in sorted(range(len(texts)), key=lambda place: -len(texts[place])):
        try:
            translate([texts[place]])
        except LengthError as alone:
            return LengthError(f"{name}, line {first + place + 1:,}: {alone}")
    return error


@contextlib.contextmanager
def open_locked(out: Path) -> Iterator[IO[bytes]]:
    """The file, open for reading and writing, with an exclusive lock that ends with the process."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(out, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield stream
    except BlockingIOError as error:
        raise BusyError(f"{out} is being written by another run. Wait for it, or choose another file.") from error
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(
            f"{out} cannot be written: {reason}. Its lines are kept; the same call continues it."
        ) from error


def recover(stream: IO[bytes], source: Path, out: Path, job: dict[str, Any]) -> int:
    """The number of finished lines of `out`; anything after them is removed."""
    progress = read_progress(out)
    if progress is None and os.fstat(stream.fileno()).st_size:
        raise UsageError(
            f"{out} already exists and is not an unfinished translation. Choose another file, or remove it."
        )
    if progress is None or progress.lines == 0:  # nothing can be lost
        stream.truncate(0)
        write_progress(out, Progress(job, 0, hashlib.sha256().hexdigest()))
        return 0
    check_same_job(progress, source, out, job)
    return keep_complete_lines(stream, progress.lines)


def check_same_job(progress: Progress, source: Path, out: Path, job: dict[str, Any]) -> None:
    """Refuse to continue with another job, or from an input whose finished part has changed."""
    advice = f"Use the same options, choose another file, or remove {out} and {progress_path(out).name} to start again."
    for key in sorted({*progress.job, *job}):
        before, now = progress.job.get(key), job.get(key)
        if before != now:
            raise UsageError(f"{out} is unfinished and was started with {key} = {before}, not {now}. {advice}")
    digest = hashlib.sha256()
    for text in itertools.islice(read_lines(source), progress.lines):
        digest.update(_bytes([text]))
    if digest.hexdigest() != progress.read:
        raise UsageError(
            f"{out} is unfinished, and the first {progress.lines:,} lines of {source} have changed since. {advice}"
        )


def keep_complete_lines(stream: IO[bytes], most: int) -> int:
    """Remove a partial last line and lines beyond `most`; the number of lines left."""
    count = end = 0
    for line in stream:
        if count == most or not line.endswith(b"\n"):
            break
        count, end = count + 1, end + len(line)
    stream.seek(end)
    stream.truncate()
    return count


def progress_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.progress")


def read_progress(out: Path) -> Progress | None:
    path = progress_path(out)
    try:
        values = json.loads(path.read_bytes())
        progress = Progress(dict(values["job"]), int(values["lines"]), str(values["read"]))
        if progress.lines < 0:
            raise ValueError(f"{progress.lines} lines")
        return progress
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged. Remove it and {out} to start again.") from error


def write_progress(out: Path, progress: Progress) -> None:
    """Write atomically."""
    path = progress_path(out)
    temporary = path.with_name(f"{path.name}.writing")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(progress._asdict(), stream, ensure_ascii=False, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def _bytes(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
