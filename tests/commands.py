"""Run the command line in this process, or show its help in another one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import typer

import chumoku.cli


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Ended]


def command(*words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.setattr(sys, "argv", ["chumoku", *words])
    capfd.readouterr()
    return Ended(call_main(), *capfd.readouterr())


def call_main() -> int:
    """Run the command in sys.argv in this process; returns its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("CHUMOKU_LANG") == "en":  # Japanese help changes the commands
            patch.setattr(chumoku.cli, "app", command_line())
        try:
            chumoku.cli.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@functools.cache
def command_line() -> Any:
    """All commands and their options; typer would build them again for each run, which takes 60 ms."""
    return typer.main.get_command(chumoku.cli.app)


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
