"""Run the command line in this process; returns its output and exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

import chumoku.cli


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Ended]


def command(*words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.setattr(sys, "argv", ["chumoku", *words])
    capfd.readouterr()
    try:
        chumoku.cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    return Ended(code, *capfd.readouterr())
