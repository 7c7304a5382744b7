"""Runs the blocks of a page of docs/en in order, in one folder.

chumoku …, python FILE.py …        in this process, if it needs no shell
chumoku chat …                     … with one message and /quit as standard input
chumoku serve …                    … on a free port, until the end of the page
python -m http.server … PORT       also on a free port, until the end of the page
torchrun --nproc-per-node 2 …      two processes
torchrun --nproc-per-node 8 …      its options are parsed, and its command runs in this process alone
export NAME=VALUE                  an environment variable for the rest of the page
anything else                      in bash
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch.distributed.run
from browser import require_chromium
from commands import call_main
from doc_blocks import DOCS, ROOT, Block, read_blocks, split_commands
from doc_models import HUB_CACHE, make_given
from PIL import Image
from serving import CERTIFICATES, serve_command

from chumoku.web.chromium import find_chromium

ADDRESS = "http://127.0.0.1:8731"  # of `chumoku serve`
CHAT = "What is attention?\n/quit\n"
TIMEOUT = 240  # seconds
APPENDED = ("chumoku train", "chumoku compare")  # commands that get the words of `in tests`, unless it names others
_SHELL = re.compile(r"[|<>$&;*`]")  # what only a shell understands
_IN_PROCESS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:chumoku|python \S+\.py) ")
_SERVER = re.compile(r"python -m http\.server (.*) \d+")


def run_page(name: str, folder: Path) -> int:
    """Run the blocks of a page, and return how many ran. The folder must be the current directory.

    Readers are in the folder of the clone, so the examples and the recipes are in this folder, too. Figures are
    plotted, but saved as one pixel: drawing them would take most of the time, and has its own tests.
    """
    for clone in ("examples", "recipes"):
        (folder / clone).symlink_to(ROOT / clone)
    text = (DOCS / "en" / name).read_text(encoding="utf-8")
    if "--to web" in text:
        require_chromium()
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / HUB_CACHE))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(
            "matplotlib.figure.Figure.savefig", lambda _, file, **__: Image.new("L", (1, 1)).save(file, "PNG")
        )
        page = Page(folder, stack, patch)
        return sum(page.run(block, name) for block in read_blocks(text))


class Page:
    """The state of a page while its blocks run: variables, environment variables and servers."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.stack, self.patch = folder, stack, patch
        self.scope: dict[str, object] = {"__name__": "__main__"}
        self.address = ADDRESS

    def run(self, block: Block, name: str) -> bool:
        """Write or run a block; False if there is nothing to run."""
        if "file" in block.markers:
            (self.folder / block.markers["file"]).write_text(block.code, encoding="utf-8")
        if block.kind not in ("python", "bash") or "parsed" in block.markers:
            return False
        make_given(self.folder, block.markers.get("given", ""))
        code, appended = adapt(block)
        if block.kind == "python":
            exec(compile(code, name, "exec"), self.scope)  # noqa: S102 - our own documentation, in a test
            return True
        for line in split_commands(code):
            words = next((words for command, words in appended if f"{command} " in f"{line} "), "")
            self.run_line(f"{line} {words}".strip())
        return True

    def run_line(self, line: str) -> None:
        line = line.replace(ADDRESS, self.address)
        if line.startswith("torchrun "):
            torchrun(line)
        elif line.startswith("chumoku serve"):
            server = self.stack.enter_context(serve_command(*shlex.split(line)[2:]))
            assert server.client.get("/v1/models").status_code == 200
            self.address = server.url
        elif found := _SERVER.fullmatch(line):
            self.stack.enter_context(serve_folder(found[1], self.folder))
        elif line.startswith("export "):
            name = line.split()[1].partition("=")[0]
            self.patch.setenv(name, self.run_shell(f'{line}; printf %s "${name}"', capture_output=True).stdout)
        elif _IN_PROCESS.match(line) and not _SHELL.search(line):
            run_in_process(line)
        else:
            self.run_shell(line)

    def run_shell(self, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", line]
        return subprocess.run(
            command, check=True, text=True, env=make_environment(self.folder), cwd=self.folder, **options
        )


def adapt(block: Block) -> tuple[str, list[tuple[str, str]]]:
    """The code of a block with the replacements of its `in tests`, and the words to append to each command."""
    code, appended = block.code, []
    for part in filter(None, block.markers.get("in tests", "").split("; ")):
        old, arrow, new = part.partition(" → ")
        if arrow:
            assert old in code, f"{old} is not in the block"
            code = code.replace(old, new)
            continue
        found = re.match(r"((?:chumoku|python) \S+): (.*)", part)
        appended += [(found[1], found[2])] if found else [(command, part) for command in APPENDED]
    return code, appended


def run_in_process(line: str) -> None:
    """Run `chumoku …` or `python FILE.py …`, with environment variables before it; it must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        program, *words = shlex.split(line)
        while "=" in program:
            name, value = program.split("=")
            # Debian has Chromium in two packages, whose programs have other names.
            patch.setenv(name, str(find_chromium()) if name == "CHUMOKU_CHROMIUM" else value)
            program, *words = words
        patch.setattr(sys, "argv", words if program == "python" else [program, *words])
        if words[0] == "chat":
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CHAT.encode())))
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
        else:
            assert call_main() == 0, line


def torchrun(line: str) -> None:
    """Start two processes from this one, which has imported PyTorch already, at any free port.

    Of more processes, torchrun's options are parsed, and the command runs in this process alone.
    """
    words = shlex.split(line)[1:]
    options = torch.distributed.run.parse_args(words)
    if (options.nnodes, options.nproc_per_node) != ("1:1", "2"):
        run_in_process(shlex.join([options.training_script, *options.training_script_args]))
        return
    used = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
    handlers = {one: signal.getsignal(one) for one in used}
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"This does not end: {line}"))
    signal.alarm(TIMEOUT)
    try:
        torch.distributed.run.main(["--standalone", *words])
    finally:
        signal.alarm(0)
        for one, handler in handlers.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def serve_folder(words: str, folder: Path) -> Iterator[None]:
    """`python -m http.server`, which must answer with a list of its files."""
    command = [sys.executable, "-u", "-m", "http.server", *shlex.split(words), "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"port (\d+)", process.stdout.readline())
        assert found
        assert httpx.get(f"http://127.0.0.1:{found[1]}", verify=CERTIFICATES).status_code == 200
        yield
    finally:
        process.kill()
        process.wait()


def make_environment(folder: Path) -> dict[str, str]:
    """Environment variables: programs of this environment on the path; curl fails with a status above 399."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    modules = {"chumoku": "-m chumoku ", "pip": "-m pip ", "python": ""}
    for name, words in modules.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    (programs / ".curlrc").write_text("fail\n", encoding="utf-8")
    path = f"{programs}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "CURL_HOME": str(programs), "PIP_NO_INDEX": "1"}
