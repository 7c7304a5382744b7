"""Lines in, lines out: a file of any length, flat in memory, in order; killed anywhere, it goes on where it was.

    line n of OUT = what is said of line n of the input        a line ends at \\n, and at nothing else
    chunk k       = lines k·c … k·c + c − 1: what is translated together follows from line numbers alone

    a chunk       translate it  →  OUT.progress: n, and a hash of the first n lines read  →  append to OUT, fsync
    going on      cut a torn line off OUT; the hash must still be that of the input's first n lines; translate again
                  the chunk in which OUT ends, and append what is missing of it

So OUT is its own journal, and a run that was cut ends with the bytes of one that was not. What has not been read yet
may be mended meanwhile.
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

from chumoku.data.text_files import BOM, MAX_LINE_BYTES, open_members, read_lines
from chumoku.errors import BusyError, CorpusError, DamagedError, LengthError, StorageError, UsageError

CHUNK = 256
READ = 1 << 16
PROBLEMS = {
    "invalid UTF-8": "is no valid UTF-8. Write it in UTF-8 first, as in: iconv -f SHIFT_JIS -t UTF-8",
    "too long": f"is longer than {MAX_LINE_BYTES:,} bytes. Split it into sentences, a line each",
}
Translate = Callable[[list[str]], list[str]]


class Arriving(Protocol):
    """A byte stream that gives what has come so far, as sys.stdin.buffer does."""

    def read1(self, size: int, /) -> bytes: ...


class Note(NamedTuple):
    """What OUT.progress says."""

    job: dict[str, Any]  # what was asked for
    lines: int  # OUT holds no line beyond these …
    read: str  # … which were made of input lines with this hash


def translate_file(
    source: Path,
    out: Path,
    translate: Translate,
    *,
    job: Mapping[str, Any],
    chunk: int = CHUNK,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Write what `translate` makes of every line of `source` to `out`, or go on where an earlier call was cut.

    `job` says in plain values what decides the result (model, options): an unfinished `out` of another job is refused.
    `progress` hears how many lines are done, of how many. Returns how many there are.
    """
    check(source, out)
    total = sum(1 for _ in texts_of(source))
    with held(out) as stream:
        done = recover(stream, source, out, dict(job))
        progress(done, total)
        digest, first = hashlib.sha256(), 0
        texts = texts_of(source)
        while some := list(itertools.islice(texts, chunk)):
            digest.update(_bytes(some))
            if first + len(some) > done:
                said = answers(some, translate, name=str(source), first=first)
                write_note(out, Note(dict(job), first + len(some), digest.hexdigest()))
                stream.write(_bytes(said[max(0, done - first) :]))
                stream.flush()
                os.fsync(stream.fileno())
                progress(first + len(some), total)
            first += len(some)
        note_of(out).unlink()
    return total


def check(source: Path, out: Path) -> None:
    """Files that can be read twice and written in place."""
    if not source.is_file():
        found = "is no plain file" if source.exists() else "is not there"
        raise CorpusError(f"{source} {found}. Name a file of lines, or send lines to standard input instead.")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is no plain file, so a translation cannot be written to it. Choose another.")
    if out.exists() and out.samefile(source):
        raise UsageError(f"{out} would be read and written at once. Choose another file to write to.")


def texts_of(path: Path) -> Iterator[str]:
    """The lines of a file, plain, gzipped or zipped."""
    for member in open_members(path):
        for line in read_lines(member.stream):
            if line.problem is not None:
                raise CorpusError(f"{member.name}, line {line.number:,} {PROBLEMS[line.problem]}.")
            yield line.text


def arriving(stream: Arriving, *, most: int, name: str = "standard input") -> Iterator[list[str]]:
    """Lines as they come, up to `most` at a time: a line that is there waits for no other."""
    rest, number = b"", 0
    while True:
        data = stream.read1(READ)
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole, rest = [rest], b""
        if whole and number == 0:
            whole[0] = whole[0].removeprefix(BOM)
        for start in range(0, len(whole), most):
            texts, problem = decoded(whole[start : start + most])
            if texts:
                yield texts
            number += len(texts)
            if problem is not None:
                raise CorpusError(f"Line {number + 1:,} of {name} {PROBLEMS[problem]}.")
        if len(rest) > MAX_LINE_BYTES:
            raise CorpusError(f"Line {number + 1:,} of {name} {PROBLEMS['too long']}.")
        if not data:
            return


def decoded(raw: list[bytes]) -> tuple[list[str], str | None]:
    """Lines as texts, up to the first that is none, and what is wrong with that one."""
    texts: list[str] = []
    for line in raw:
        try:
            texts.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            return texts, "invalid UTF-8"
    return texts, None


def answers(texts: list[str], translate: Translate, *, name: str = "standard input", first: int = 0) -> list[str]:
    """One line for each text; an empty one stays empty. `first` lines of `name` came before these."""
    full = [text for text in texts if text.strip()]
    try:
        said = iter(translate(full) if full else [])
    except LengthError as error:
        raise _named(texts, translate, error, name=name, first=first) from error
    return [one_line(next(said)) if text.strip() else "" for text in texts]


def one_line(text: str) -> str:
    """Whatever anyone takes for the end of a line (\\n, \\r, U+0085, U+2028 …) becomes a space."""
    return " ".join(text.splitlines())


def _named(texts: list[str], translate: Translate, error: LengthError, *, name: str, first: int) -> LengthError:
    """The error with the line that is too long: looked for among the longest first, where it is found at once."""
    for place in sorted(range(len(texts)), key=lambda place: -len(texts[place])):
        try:
            translate([texts[place]])
        except LengthError as alone:
            return LengthError(f"{name}, line {first + place + 1:,}: {alone}")
    return error


@contextlib.contextmanager
def held(out: Path) -> Iterator[IO[bytes]]:
    """The file, open to be read and written, and ours alone; a run that died holds nothing."""
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
            f"{out} cannot be written: {reason}. What it holds stands; asked again, it goes on."
        ) from error


def recover(stream: IO[bytes], source: Path, out: Path, job: dict[str, Any]) -> int:
    """How many lines of `out` stand; what stands behind them is cut away."""
    note = read_note(out)
    if note is None and os.fstat(stream.fileno()).st_size:
        raise UsageError(
            f"{out} is there already, and it is no unfinished translation. Choose another file, or remove it."
        )
    if note is None or note.lines == 0:  # nothing was done that could be lost
        stream.truncate(0)
        write_note(out, Note(job, 0, hashlib.sha256().hexdigest()))
        return 0
    refuse_another(note, source, out, job)
    return whole_lines(stream, note.lines)


def refuse_another(note: Note, source: Path, out: Path, job: dict[str, Any]) -> None:
    """Refuse to go on with another job, or from an input whose finished part is not what it was."""
    way_out = f"Ask as before, choose another file, or remove {out} and {note_of(out).name} to begin anew."
    for key in sorted({*note.job, *job}):
        before, now = note.job.get(key), job.get(key)
        if before != now:
            raise UsageError(f"{out} is unfinished, and was begun with {key} = {before}, not {now}. {way_out}")
    digest = hashlib.sha256()
    for text in itertools.islice(texts_of(source), note.lines):
        digest.update(_bytes([text]))
    if digest.hexdigest() != note.read:
        raise UsageError(
            f"{out} is unfinished, and the first {note.lines:,} lines of {source} are no longer those it was made of. "
            f"{way_out}"
        )


def whole_lines(stream: IO[bytes], most: int) -> int:
    """Cut away a torn last line, and lines beyond `most`; how many are left."""
    kept = end = 0
    for line in stream:
        if kept == most or not line.endswith(b"\n"):
            break
        kept, end = kept + 1, end + len(line)
    stream.seek(end)
    stream.truncate()
    return kept


def note_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.progress")


def read_note(out: Path) -> Note | None:
    path = note_of(out)
    try:
        values = json.loads(path.read_bytes())
        note = Note(dict(values["job"]), int(values["lines"]), str(values["read"]))
        if note.lines < 0:
            raise ValueError(f"{note.lines} lines")
        return note
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(
            f"{path} is damaged. Remove it and {out} to begin anew, or keep what is in {out}."
        ) from error


def write_note(out: Path, note: Note) -> None:
    """Whole or not at all."""
    path = note_of(out)
    fresh = path.with_name(f"{path.name}.writing")
    with fresh.open("w", encoding="utf-8") as stream:
        json.dump(note._asdict(), stream, ensure_ascii=False, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


def _bytes(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
