"""Translating a file gives one line per line, in order, even after interruptions."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chumoku.data.pairs import Pair, read_pairs
from chumoku.decoding.translate_file import (
    make_pairs,
    one_line,
    progress_path,
    read_line_batches,
    read_lines,
    translate_file,
    translate_lines,
)
from chumoku.errors import BusyError, CorpusError, DamagedError, LengthError, StorageError, UsageError

JOB = {"model": "a", "beam": 3}
CHUNK = 7


def shout(texts: list[str]) -> list[str]:
    return [f"{text.upper()}!" for text in texts]


def in_company(texts: list[str]) -> list[str]:
    """An answer that shows who else was asked at once: another chunk, another answer."""
    return [f"{text} of {len(texts)} with {texts[0]}" for text in texts]


def pairs_of(translate: Callable[[list[str]], list[str]]) -> Callable[[list[str]], list[str]]:
    return lambda texts: make_pairs(texts, translate(texts))


def numbered(path: Path, count: int) -> Path:
    path.write_text("".join("\n" if n % 13 == 5 else f"line {n}\n" for n in range(count)), encoding="utf-8")
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return numbered(tmp_path / "in.txt", 61)


def stopping_after(calls: int, translate: Callable[[list[str]], list[str]] = in_company) -> Callable[..., list[str]]:
    """A translator that dies in its n-th call."""
    left = [calls]

    def say(texts: list[str]) -> list[str]:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return translate(texts)

    return say


def finished(source: Path, out: Path) -> bytes:
    translate_file(source, out, in_company, job=JOB, chunk=CHUNK)
    assert not progress_path(out).exists()
    return out.read_bytes()


def test_every_line_gets_its_translation(source: Path, tmp_path: Path) -> None:
    log: list[tuple[int, int]] = []
    out = tmp_path / "new" / "out.txt"
    count = translate_file(source, out, shout, job=JOB, chunk=CHUNK, progress=lambda *two: log.append(two))
    expected = ["" if n % 13 == 5 else f"LINE {n}!" for n in range(61)]
    assert out.read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert count == 61
    assert log == [(done, 61) for done in (0, 7, 14, 21, 28, 35, 42, 49, 56, 61)]
    assert sorted(tmp_path.rglob("*.progress*")) == []


BREAKS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """Other programs see more line ends than we do: those inside a line do not break the count, on either side."""
    inputs = [f"a{mark}b" for mark in BREAKS] + ["", "  ", "\u3000", "tab\there", "last, without its end"]
    (tmp_path / "in.txt").write_bytes("\n".join(inputs).encode())
    count = translate_file(tmp_path / "in.txt", tmp_path / "out.txt", list, job=JOB, chunk=3)
    output = (tmp_path / "out.txt").read_text(encoding="utf-8")
    assert count == len(inputs)
    assert output.splitlines() == ["a b"] * len(BREAKS) + ["", "", "", "tab\there", "last, without its end"]
    assert output.count("\n") == len(inputs)


def test_line_breaks_in_a_translation_become_spaces() -> None:
    assert translate_lines(["x"], lambda texts: ["one\ntwo\r\nthree\u2028four\n"]) == ["one two three four"]
    assert one_line("\n") == ""


def test_windows_line_ends_marks_and_packed_files(tmp_path: Path) -> None:
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfone\r\n\r\ntwo\r\n"))
    translate_file(tmp_path / "in.txt.gz", tmp_path / "out.txt", shout, job=JOB)
    assert (tmp_path / "out.txt").read_text() == "ONE!\n\nTWO!\n"


def test_continues_after_an_interruption_at_any_chunk(source: Path, tmp_path: Path) -> None:
    whole = finished(source, tmp_path / "whole.txt")
    out = tmp_path / "out.txt"
    for calls in range(9):
        with pytest.raises(KeyboardInterrupt):
            translate_file(source, out, stopping_after(calls), job=JOB, chunk=CHUNK)
        assert whole.startswith(out.read_bytes())
        assert finished(source, out) == whole
        out.unlink()


def test_finished_chunks_are_not_translated_again(source: Path, tmp_path: Path) -> None:
    out, translated = tmp_path / "out.txt", list[str]()

    def noting(texts: list[str]) -> list[str]:
        translated.extend(texts)
        return in_company(texts)

    start_and_interrupt(source, out)
    translate_file(source, out, noting, job=JOB, chunk=CHUNK)
    assert translated == [text for text in list(read_lines(source))[3 * CHUNK :] if text]


def test_continues_after_an_interruption_at_any_byte(source: Path, tmp_path: Path) -> None:
    whole = finished(source, tmp_path / "whole.txt")
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        translate_file(source, out, stopping_after(4), job=JOB, chunk=CHUNK)
    written, note = out.read_bytes(), progress_path(out).read_bytes()
    every = {*range(0, len(written), 17), *range(len(written) - 31, len(written) + 1)}
    for length in sorted(every):
        out.write_bytes(written[:length])
        progress_path(out).write_bytes(note)
        assert finished(source, out) == whole, length


def test_lines_beyond_the_recorded_progress_are_removed(source: Path, tmp_path: Path) -> None:
    """Lines behind those that the note covers, as a disk may leave them when the power goes."""
    whole = finished(source, tmp_path / "whole.txt")
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        translate_file(source, out, stopping_after(2), job=JOB, chunk=CHUNK)
    out.write_bytes(out.read_bytes() + b"\0\0\0\n\0\0")
    assert finished(source, out) == whole


KILLED = """
import sys, time
from pathlib import Path
from chumoku.decoding.translate_file import translate_file
def slowly(texts):
    time.sleep(0.002)
    return [f"{text} of {len(texts)} with {texts[0]} " + "x" * 400 for text in texts]
translate_file(Path(sys.argv[1]), Path(sys.argv[2]), slowly, job={"model": "a"}, chunk=17)
"""


def run_lines(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", KILLED, *words], stderr=subprocess.PIPE)


@pytest.mark.slow
def test_killed_at_random_moments_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    source = numbered(tmp_path / "in.txt", 6007)
    assert run_lines(str(source), str(tmp_path / "whole.txt")).wait() == 0
    whole = (tmp_path / "whole.txt").read_bytes()
    out, chance, cuts = tmp_path / "out.txt", random.Random(5), list[int]()
    while not out.exists() or progress_path(out).exists():  # a life may end between its last line and its last word
        process = run_lines(str(source), str(out))
        before = out.stat().st_size if out.exists() else 0
        deadline = time.monotonic() + 20
        while process.poll() is None and (not out.exists() or out.stat().st_size <= before):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL), process.stderr and process.stderr.read()
        cuts.append(out.stat().st_size)
        assert whole.startswith(out.read_bytes())
    assert out.read_bytes() == whole
    assert len(cuts) >= 5
    assert sorted(set(cuts[:-1])) == cuts[:-1], "every life got further than the one before"


@pytest.mark.slow
def test_a_million_lines_in_flat_memory(tmp_path: Path) -> None:
    """Peak memory of a hundred thousand lines and of ten times as many differ by less than a tenth of the file."""
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom chumoku.decoding.translate_file import translate_file\n"
        "translate_file(Path(sys.argv[1]), Path(sys.argv[2]), lambda t: [s[::-1] for s in t], job={}, chunk=4096)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    peaks = []
    for count in (100_000, 1_000_000):
        source, out = tmp_path / "in.txt", tmp_path / f"{count}.txt"
        with source.open("w") as stream:
            stream.writelines(f"{n} and a sentence of the usual length, more or less\n" for n in range(count))
        ran = subprocess.run([sys.executable, "-c", code, str(source), str(out)], capture_output=True, check=True)
        peaks.append(int(ran.stdout))
    with source.open("rb") as read, out.open("rb") as written:
        assert all(a.rstrip()[::-1] == b.rstrip(b"\n") for a, b in zip(read, written, strict=True))
    assert peaks[1] - peaks[0] < source.stat().st_size / 10


def start_and_interrupt(source: Path, out: Path) -> bytes:
    with pytest.raises(KeyboardInterrupt):
        translate_file(source, out, stopping_after(3), job=JOB, chunk=CHUNK)
    return out.read_bytes()


def test_another_job_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    written = start_and_interrupt(source, out)
    with pytest.raises(UsageError, match=r"started with beam = 3, not 5.*remove .*out\.txt and out\.txt\.progress"):
        translate_file(source, out, in_company, job={**JOB, "beam": 5}, chunk=CHUNK)
    with pytest.raises(UsageError, match="started with model = a, not b"):
        translate_file(source, out, in_company, job={**JOB, "model": "b"}, chunk=CHUNK)
    with pytest.raises(UsageError, match="started with into = None, not en"):
        translate_file(source, out, in_company, job={**JOB, "into": "en"}, chunk=CHUNK)
    assert out.read_bytes() == written
    with pytest.raises(UsageError, match="started with beam = 3"):
        translate_file(source, out, in_company, job={"model": "a"}, chunk=CHUNK)


def test_finished_input_must_not_change_but_the_rest_may(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    written = start_and_interrupt(source, out)
    texts = list(read_lines(source))
    for number in (0, 20):
        source.write_text("".join(f"{text}{'x' * (place == number)}\n" for place, text in enumerate(texts)))
        with pytest.raises(UsageError, match=r"the first 21 lines of .* have changed"):
            translate_file(source, out, in_company, job=JOB, chunk=CHUNK)
    source.write_text("".join(f"{text}\n" for text in texts[:20]))
    with pytest.raises(UsageError, match="the first 21 lines"):
        translate_file(source, out, in_company, job=JOB, chunk=CHUNK)
    assert out.read_bytes() == written
    source.write_text("".join(f"{text}{'x' * (place == 21)}\n" for place, text in enumerate(texts)))
    assert finished(source, out) == finished(source, tmp_path / "whole.txt")


def test_an_existing_file_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    finished(source, out)
    kept = out.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        translate_file(source, out, shout, job=JOB)
    with pytest.raises(UsageError, match="is also the input"):
        translate_file(source, source, shout, job=JOB)
    with pytest.raises(UsageError, match="is not a regular file"):
        translate_file(source, tmp_path, shout, job=JOB)
    assert out.read_bytes() == kept


def test_empty_input_and_empty_progress(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.touch()
    with pytest.raises(KeyboardInterrupt):
        translate_file(source, out, stopping_after(0), job=JOB, chunk=CHUNK)
    translate_file(source, out, shout, job={"model": "another"}, chunk=CHUNK)
    assert out.read_text().startswith("LINE 0!\n")
    (tmp_path / "empty.txt").touch()
    assert translate_file(tmp_path / "empty.txt", tmp_path / "none.txt", shout, job=JOB) == 0
    assert (tmp_path / "none.txt").read_bytes() == b""


def test_invalid_utf8_is_found_before_translating(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"one\ntwo\n\x83\x7d\xff\nfour\n")
    with pytest.raises(CorpusError, match=r"Line 3 of .*in\.txt is not valid UTF-8.*iconv"):
        translate_file(tmp_path / "in.txt", tmp_path / "out.txt", shout, job=JOB)
    assert not (tmp_path / "out.txt").exists()
    with pytest.raises(CorpusError, match="does not exist"):
        translate_file(tmp_path / "absent", tmp_path / "out.txt", shout, job=JOB)
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"one\n" * 999)[:-9])
    with pytest.raises(CorpusError, match=r"broken\.gz is damaged"):
        translate_file(tmp_path / "broken.gz", tmp_path / "out.txt", shout, job=JOB)


def test_a_too_long_line_is_named_and_finished_lines_are_kept(source: Path, tmp_path: Path) -> None:
    texts = list(read_lines(source))
    source.write_text("".join(f"{text}{'x' * 99 * (place == 40)}\n" for place, text in enumerate(texts)))

    def short(texts: list[str]) -> list[str]:
        for number, text in enumerate(texts):
            if len(text) > 50:
                raise LengthError(f"Text {number + 1} has {len(text)} tokens.")
        return in_company(texts)

    out = tmp_path / "out.txt"
    with pytest.raises(LengthError, match=r"in\.txt, line 41: Text 1 has 106 tokens"):
        translate_file(source, out, short, job=JOB, chunk=CHUNK)
    assert out.read_text().count("\n") == 35
    numbered(source, 61)
    assert finished(source, out) == finished(source, tmp_path / "whole.txt")


def test_two_at_once_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"

    def meanwhile(texts: list[str]) -> list[str]:
        with pytest.raises(BusyError, match="being written by another run"):
            translate_file(source, out, shout, job=JOB, chunk=CHUNK)
        return in_company(texts)

    translate_file(source, out, meanwhile, job=JOB, chunk=CHUNK)
    assert out.read_bytes() == finished(source, tmp_path / "whole.txt")


def test_a_damaged_progress_file_is_reported(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    written = start_and_interrupt(source, out)
    odd = ({"job": 1, "lines": "x", "read": 2}, *({"job": JOB, "lines": n, "read": ""} for n in (-1, math.inf)))
    for note in (b"", b"[]", b'{"job": {}}', b"\xff", *(json.dumps(one).encode() for one in odd)):
        progress_path(out).write_bytes(note)
        with pytest.raises(DamagedError, match=r"out\.txt\.progress is damaged"):
            translate_file(source, out, shout, job=JOB)
    assert out.read_bytes() == written


def test_a_full_disk_is_reported_and_loses_nothing(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    whole = finished(source, tmp_path / "whole.txt")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        with pytest.raises(StorageError, match=r"out\.txt cannot be written: File too large"):
            translate_file(source, out, in_company, job=JOB, chunk=CHUNK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert whole.startswith(out.read_bytes())
    assert 0 < out.stat().st_size <= 700
    assert finished(source, out) == whole
    with pytest.raises(StorageError, match="cannot be written"):
        translate_file(source, out / "inside.txt", shout, job=JOB)


class Dripping(io.RawIOBase):
    """A stream that gives a few bytes at a time."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def read1(self, size: int = -1) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def test_lines_are_returned_as_they_arrive() -> None:
    stream = Dripping(
        b"\xef\xbb\xbfone\n", b"tw", b"o\r\nthr", "ee 三".encode()[:-1], "三".encode()[-1:] + b"\n\n", b"end"
    )
    assert list(read_line_batches(stream, most=5)) == [["one"], ["two"], ["three 三", ""], ["end"]]
    assert list(read_line_batches(Dripping(b"a\nb\nc\nd\ne\n"), most=2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(read_line_batches(Dripping(), most=2)) == []
    log: list[list[str]] = []
    with pytest.raises(CorpusError, match="Line 4 of standard input is not valid UTF-8"):
        log.extend(read_line_batches(Dripping(b"a\nb\nc\n\xff\ne\n"), most=2))
    with pytest.raises(CorpusError, match="Line 2 of standard input is longer than"):
        list(read_line_batches(Dripping(b"a\n", *[b"x" * (1 << 19)] * 3), most=2))


def test_lines_before_an_invalid_one_are_returned() -> None:
    coming = read_line_batches(Dripping(b"a\nb\nc\n\xff\ne\n"), most=7)
    assert next(coming) == ["a", "b", "c"]
    with pytest.raises(CorpusError, match="Line 4"):
        next(coming)


@pytest.mark.parametrize("calls", [0, 3])
def test_pairs_are_a_table_even_after_an_interruption(calls: int, tmp_path: Path) -> None:
    """An empty line first and a tab in a text: every other line is a pair of the text and its translation."""
    source, out = tmp_path / "in.txt", tmp_path / "pairs.tsv"
    texts = ["", *(f"number\t{number} of many" for number in range(29))]
    source.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    if calls:
        with pytest.raises(KeyboardInterrupt):
            translate_file(source, out, pairs_of(stopping_after(calls, shout)), job=JOB, chunk=CHUNK, empty="\t")
    assert translate_file(source, out, pairs_of(shout), job=JOB, chunk=CHUNK, empty="\t") == 30
    pairs, report = read_pairs([out])
    assert pairs == [Pair(f"number {n} of many", f"NUMBER {n} OF MANY!") for n in range(29)]
    assert report.dropped == {"empty": 1}
    assert make_pairs(["a"], ["b\tc"], back=True) == ["b c\ta"]
