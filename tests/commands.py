"""Run the command line in this process, or show its help in another one."""

from __future__ import annotations

import os
import subprocess
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


HELP = """
import sys, chumoku.cli
for command in sys.argv[1:]:
    sys.argv = ["chumoku", *command.split(), "--help"]
    try: chumoku.cli.main()
    except SystemExit as end: code = end.code
    slow = {"torch", "matplotlib", "fastapi", "rich.progress"} & {*sys.modules}
    if code or slow: sys.exit(f"{command}: code {code}, imported {slow}")
"""


def show_help(*commands: str) -> str:
    """The output of --help of these commands, which must not import slow libraries."""
    environment = {**os.environ, "COLUMNS": "200"}
    words = [sys.executable, "-c", HELP, *commands]
    finished = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
