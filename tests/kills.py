"""Every command that writes, killed at random moments: the same command, given again, ends as if nothing had happened.

    python tests/kills.py --kills 300 [command …]

A command runs in a fork of this process and is killed by SIGKILL after a random share of the time it takes. Then it
runs again to its end. It must end with exit code 0 (or 2, where it says that its result is there already), and leave
exactly the files of a run that was never killed, with the same bytes where these do not depend on the clock.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork and a pool of threads do not go together

import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from faults import recipe_for, write_corpora

import chumoku.cli

STABLE = {".safetensors", ".tokens", ".ends", ".txt", ".gguf"}  # the ends of files that do not depend on the clock
LONGEST = 120  # seconds of one command
LLAMA = {"pairing": "half", "feedforward": "swiglu", "norm": "rms", "bias": False, "width": 64, "heads": 2}


def words_of(base: Path, place: Path) -> dict[str, list[str]]:
    """The commands that write, each into `place` alone."""
    return {
        "train": ["train", f"{base}/recipe.toml", f"train.out={place}/run", "--resume", "--unexamined"],
        "prepare": ["prepare", f"{base}/text.txt", "--out", f"{place}/prepared", "--vocabulary", "300"],
        "convert": ["convert", f"{base}/llama", f"{place}/out", "--to", "chumoku"],
        "convert gguf": ["convert", f"{base}/llama", f"{place}/out.gguf", "--to", "gguf"],
        "translate": ["translate", f"{base}/translator", "--file", f"{base}/lines.txt", "--out", f"{place}/out.txt",
                      "--beam", "1", "--limit", "3"],
        "lab": ["lab", "run", "dot", "--quick", "--out", f"{place}/lab"],
        "tokenizer": ["tokenize", "--train", "bpe", "--from", f"{base}/text.txt", "--save", f"{place}/tokenizer.json",
                      "--vocabulary", "400"],
    }  # fmt: skip


def write_inputs(base: Path) -> None:
    write_corpora(base)
    changes = {"train": {"steps": 11, "save_every": 2, "validate_every": 5}, "schedule": {"warmup": 0}}
    tables = recipe_for("decoder", base, base / "run", **changes)  # type: ignore[arg-type]
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {_toml(table[key])}\n" for key in table) for name, table in tables.items()
    ]
    (base / "recipe.toml").write_text("\n".join(lines), "utf-8")
    (base / "lines.txt").write_text("".join(f"line {number}\n" for number in range(300)), "utf-8")
    make_bundle(base / "llama", "decoder", chat_tokenizer(), vocabulary=chat_tokenizer().size, **LLAMA)
    make_bundle(base / "translator", "encoder-decoder", byte_tokenizer(("en", "ja")))


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def start(words: list[str]) -> int:
    """The command in a child process; returns its number."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        log = os.open(os.devnull, os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["chumoku", *words]
        chumoku.cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """How a command ended; one that hangs is killed."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -100


def killed(child: int, *, after: float) -> bool:
    """Kill a command after so many seconds; False when it was done before."""
    end = time.monotonic() + after
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return wait(child) == -signal.SIGKILL


def contents(place: Path) -> dict[str, bytes | None]:
    """Every file and folder, and the bytes of those that do not depend on the clock."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes() if path.is_file() and path.suffix in STABLE else None
        for path in sorted(place.rglob("*"))
    }


class Killed(NamedTuple):
    kills: int
    problems: list[str]


def trial(name: str, kills: int, folder: Path, rng: random.Random, words_for: Callable[..., Any] = words_of) -> Killed:
    """Kill one command so many times; `folder` has its inputs."""
    place = folder / "place"

    def words() -> list[str]:
        return words_for(folder, place)[name]  # type: ignore[no-any-return]

    def afresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()

    afresh()
    began = time.monotonic()
    code = wait(start(words()))
    seconds, expected = time.monotonic() - began, contents(place)
    if code != 0:
        return Killed(0, [f"{name}: ended with {code} without any kill"])
    landed, problems = 0, []
    while landed < kills and len(problems) < 5:
        afresh()
        began = time.monotonic()
        child = start(words())
        if not killed(child, after=rng.uniform(0.02, 1.0) * seconds):  # the machine is less busy than it was
            seconds = time.monotonic() - began
            continue
        landed += 1
        left = sorted(contents(place))
        code, found = wait(start(words())), contents(place)
        if code not in (0, 2):
            problems.append(f"{name}: given again, it ended with {code}; the kill had left {left}")
        elif found != expected:
            odd = sorted(key for key in {*found, *expected} if found.get(key, b"-") != expected.get(key, b"-"))
            problems.append(f"{name}: {odd[:5]} differ from a run without a kill; the kill had left {left}")
    shutil.rmtree(place, ignore_errors=True)
    return Killed(landed, problems)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("commands", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        names = options.commands or list(words_of(Path(), Path()))
        for place, name in enumerate(names):
            share = options.kills // len(names) + (place < options.kills % len(names))
            began = time.monotonic()
            found = trial(name, share, Path(folder), random.Random(f"{name} {options.seed}"))
            bad += len(found.problems)
            print(
                f"{name}: {found.kills} kills, {len(found.problems)} wrong, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for line in found.problems:
                print("  ", line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
