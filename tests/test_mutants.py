"""Damaged files of every format open or are refused with a sentence; `make faults` opens many more."""

from __future__ import annotations

from pathlib import Path

import mutants
import pytest
from mutants import FORMATS, Format, open_mutants


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_answered_by_sentences(name: str) -> None:
    count = 20 if name.startswith(("bundle", "checkpoint")) else 200
    result = open_mutants(name, count)
    assert not result.problems
    assert result.opened + result.refused == count
    assert result.refused > count // 10, "nothing was damaged"


def healthy(place: Path) -> Path:
    (place / "file").write_bytes(b"something" * 100)
    return place / "file"


def raising(file: Path) -> None:
    raise KeyError("not a sentence")


def wordless(file: Path) -> None:
    raise mutants.ChumokuError("no full stop")


def dying(file: Path) -> None:
    import faulthandler
    import os
    import signal

    faulthandler.disable()  # a fork that is meant to die does so quietly
    os.kill(os.getpid(), signal.SIGSEGV)


def running(file: Path) -> None:
    import os

    os.system("true")


def hungry(file: Path) -> None:
    bytearray(400 << 20)[::4096] = bytes(400 << 8)


def slow(file: Path) -> None:
    import time

    time.sleep(0.3)


@pytest.mark.parametrize(
    ("opening", "message"),
    [
        (raising, "KeyError"),
        (wordless, "no sentence"),
        (dying, "died with -11"),
        (running, "ran a program"),
        (hungry, "MB for a file"),
        (slow, "took 0."),
    ],
)
def test_every_kind_of_problem_is_noticed(opening: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule of `attempt`, broken on purpose."""
    if opening is slow:
        monkeypatch.setattr(mutants, "LONGEST", 0.2)
    calls: list[int] = []

    def first_is_well(file: Path) -> None:
        calls.append(1)
        if len(calls) > 1:
            opening(file)  # type: ignore[operator]

    monkeypatch.setitem(FORMATS, "broken", Format(healthy, first_is_well))
    result = open_mutants("broken", 1)
    assert len(result.problems) == 1
    assert message in result.problems[0]
