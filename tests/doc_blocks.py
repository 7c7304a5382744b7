"""The code blocks of docs/en and docs/ja, and running those of a page in order, in one folder.

    ```python            runs in this process; the blocks of a page share their variables
    ```bash              each command runs, those of chumoku in this process

A comment above a block says what is different about it:

    <!-- file: mine.toml -->              the block is the content of this file in the page's folder
    <!-- in tests: train.steps=20 -->     these words are appended to each `chumoku train` and `chumoku compare` …
    <!-- in tests: 20_000 → 1_000 -->     … or one text in the block is replaced, so that tests are short
    <!-- background -->                   a server: it runs until the end of the page
    <!-- answer -->                       the site folds the block's output (docs/tools/run_blocks.py)
    <!-- parsed: reason -->               not run; the options of its chumoku commands are parsed
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import typer
from serving import serve_in_process

import chumoku.cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RUN, DATA, OWN = (
    ("python", "bash"),
    ("text", "toml", "ini", "nginx", "dockerfile"),
    ("source", "generated", "lab", "live", "{toctree}"),
)
ADDRESS = "http://127.0.0.1:8731"  # of `chumoku serve`; tests take a free port instead
MARKERS = ("", "file", "in tests", "background", "answer", "parsed")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<marker>[^:>]*?)(?:: (?P<note>.*?))? -->\n)?^```(?P<kind>[^\n`]*)\n(?P<code>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
_SHELL = re.compile(r"[|<>$&;*`]")  # what only a shell understands


class Block(NamedTuple):
    """A code block of a page; `marker` and `note` are the comment above it."""

    kind: str
    code: str
    marker: str
    note: str


def read_blocks(text: str) -> list[Block]:
    """All code blocks of a page's Markdown."""
    return [
        Block(found["kind"], found["code"], (found["marker"] or "").strip(), (found["note"] or "").strip())
        for found in _BLOCK.finditer(text)
    ]


def split_commands(code: str) -> list[str]:
    """The commands of a bash block, without comments, each on one line."""
    joined = code.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def chumoku_commands(block: Block) -> list[list[str]]:
    """The words of each `chumoku …` command in a block: in a shell, a systemd unit, or a container file."""
    if block.kind == "bash":
        lines = [shlex.split(line.partition("|")[0], comments=True) for line in split_commands(block.code)]
        words = [line[line.index("-m") + 1 :] if line[:1] == ["torchrun"] else line for line in lines]
    elif block.kind == "ini":
        words = [shlex.split(line) for line in re.findall(r"^ExecStart=(.*)$", block.code, flags=re.MULTILINE)]
    elif block.kind == "dockerfile":
        words = [re.findall(r'"(.*?)"', line) for line in re.findall(r"^CMD (.*)$", block.code, flags=re.MULTILINE)]
    else:
        words = []
    return [line[1:] for line in words if line and Path(line[0]).name == "chumoku"]


def commands_in_prose(text: str) -> list[list[str]]:
    """The words of each `chumoku …` in the sentences and tables of a page, without the … that stands for others."""
    inline = re.findall(r"`chumoku ([^`\n]+)`", _BLOCK.sub("", text))
    return [[word for word in shlex.split(words) if word != "…"] for words in inline]


@functools.cache
def command_line() -> Any:
    """All commands and their options."""
    return typer.main.get_command(chumoku.cli.app)


def parse_command(words: list[str], *, complete: bool = True) -> None:
    """Parse a command's words as the command line does, without running it; a wrong option raises.

    complete: also raise if an argument is missing.
    """
    command, name = command_line(), "chumoku"
    while hasattr(command, "commands") and words and words[0] in command.commands:
        name, command, words = words[0], command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or not words or words[0].startswith("--"), f"there is no command {words[0]}"
    try:
        command.make_context(name, list(words))
    except Exception as error:
        if complete or type(error).__name__ not in ("MissingParameter", "Exit", "NoArgsIsHelpError"):
            raise


def run_page(name: str, folder: Path) -> None:
    """Run the blocks of a page of docs/en in order, in a folder which is the current directory.

    Readers are in the folder of the clone, so the examples are in this folder, too.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    scope: dict[str, object] = {"__name__": "__main__"}
    address = ADDRESS
    with contextlib.ExitStack() as servers:
        for block in read_blocks((DOCS / "en" / name).read_text(encoding="utf-8")):
            if block.marker == "file":
                (folder / block.note).write_text(block.code, encoding="utf-8")
            elif block.kind == "python" and block.marker != "parsed":
                exec(compile(shorten(block), name, "exec"), scope)  # noqa: S102 - our own documentation, in a test
            elif block.kind == "bash" and block.marker == "background":
                _, line = servers.enter_context(serve_in_process(*shlex.split(block.code)[2:]))
                address = line.split()[-1]
            elif block.kind == "bash" and block.marker != "parsed":
                appended = block.note if block.marker == "in tests" and " → " not in block.note else ""
                for line in split_commands(shorten(block).replace(ADDRESS, address)):
                    run_command(line, folder, added=appended)


def shorten(block: Block) -> str:
    """The code of a block, with the replacement of its `in tests`."""
    if block.marker != "in tests" or " → " not in block.note:
        return block.code
    old, new = block.note.split(" → ")
    assert old in block.code, f"{old} is not in the block"
    return block.code.replace(old, new)


def run_command(line: str, folder: Path, *, added: str = "") -> None:
    """Run one command of a page; those of chumoku in this process, if they need no shell."""
    if line.startswith(("chumoku train ", "chumoku compare ")):
        line = f"{line} {added}"
    if not line.startswith("chumoku ") or _SHELL.search(line):
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env=_environment(folder), cwd=folder)
        return
    saved, sys.argv, code = sys.argv, shlex.split(line), None
    try:
        chumoku.cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = saved
    assert not code, f"{line}: exit code {code}"


def _environment(folder: Path) -> dict[str, str]:
    """Environment variables with a `chumoku` and a `python` of this environment on the path."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, words in (("chumoku", "-m chumoku "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
