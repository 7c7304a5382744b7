"""The code blocks of docs/en and docs/ja; doc_run.py runs those of a page.

    ```python            runs in this process; the blocks of a page share their variables
    ```bash              each command runs, those of chumoku in this process

Comments above a block say what is different about it:

    <!-- file: mine.toml -->              the block is the content of this file in the page's folder
    <!-- given: runs/novel=decoder -->    made before the block: what readers have from elsewhere (doc_models.py)
    <!-- in tests: 20_000 → 1_000 -->     this text in the block is replaced, so that tests are short …
    <!-- in tests: train.steps=20 -->     … or these words are appended to each `chumoku train` and `chumoku compare` …
    <!-- in tests: chumoku chat: --seed 3 -->  … or to each `chumoku chat`; several of these are separated by ;
    <!-- answer -->                       the site folds the block's output (docs/tools/run_blocks.py)
    <!-- parsed: reason -->               not run; the options of its chumoku commands are parsed
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from commands import command_line

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RUN, DATA, OWN = (
    ("python", "bash"),
    ("text", "toml", "ini", "nginx", "dockerfile"),
    ("source", "generated", "lab", "live", "{toctree}"),
)
MARKERS = ("file", "given", "in tests", "answer", "parsed")
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]* -->\n)*)^```(?P<kind>[^\n`]*)\n(?P<code>.*?)^```$", flags=re.DOTALL | re.MULTILINE
)
_MARKER = re.compile(r"^<!-- ([^:\n]*?)(?:: (.*?))? -->$", flags=re.MULTILINE)


class Block(NamedTuple):
    """A code block of a page; `markers` are the comments above it, as {what: value}."""

    kind: str
    code: str
    markers: dict[str, str]


def read_blocks(text: str) -> list[Block]:
    """All code blocks of a page's Markdown."""
    return [
        Block(found["kind"], found["code"], dict(_MARKER.findall(found["comments"]))) for found in _BLOCK.finditer(text)
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
