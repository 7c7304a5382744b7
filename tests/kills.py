"""Kill every command that writes at random moments, and check that running it again gives the usual result.

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

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its thread pool does not survive a fork

import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from faults import recipe_for, write_corpora

import chumoku.cli

# Suffixes of files whose content does not depend on the time.
STABLE = {".safetensors", ".tokens", ".ends", ".txt", ".gguf"}
LONGEST = 120  # seconds of one command
LLAMA = {"pairing": "half", "feedforward": "swiglu", "norm": "rms", "bias": False, "width": 64, "heads": 2}


def commands(base: Path, place: Path) -> dict[str, list[str]]:
    """The arguments of each command that writes; it writes only into `place`."""
    return {
        "train": ["train", f"{base}/recipe.toml", f"train.out={place}/run", "--resume", "--unexamined"],
        "prepare": ["prepare", f"{base}/text.txt", "--out", f"{place}/prepared", "--vocabulary", "300"],
        "convert": ["convert", f"{base}/llama", f"{place}/out", "--to", "chumoku"],
        "convert gguf": ["convert", f"{base}/llama", f"{place}/out.gguf", "--to", "gguf"],
        "translate": ["translate", f"{base}/translator", "--file", f"{base}/lines.txt", "--out", f"{place}/out.txt",
                      "--beam", "1", "--max-new-tokens", "3"],
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
    """Start a command in a child process, and return its process id."""
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
    """The exit code of a command; one that does not end in time is killed."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -100


def kill_after(child: int, seconds: float) -> bool:
    """Kill a command after some seconds; False if it had ended before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return wait(child) == -signal.SIGKILL


def contents(place: Path) -> dict[str, bytes | None]:
    """All files and folders, with the content of files that do not depend on the time."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes() if path.is_file() and path.suffix in STABLE else None
        for path in sorted(place.rglob("*"))
    }


class KillResult(NamedTuple):
    kills: int
    problems: list[str]


def kill_and_run_again(
    name: str, kills: int, folder: Path, rng: random.Random, commands_for: Callable[..., Any] = commands
) -> KillResult:
    """Kill a command `kills` times, and run it again after each kill; `folder` has its inputs."""
    place = folder / "place"

    def words() -> list[str]:
        return commands_for(folder, place)[name]  # type: ignore[no-any-return]

    def clear_output() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()

    clear_output()
    start_time = time.monotonic()
    code = wait(start(words()))
    seconds, expected = time.monotonic() - start_time, contents(place)
    if code != 0:
        return KillResult(0, [f"{name}: ended with {code} without any kill"])
    kills_done, problems = 0, []
    while kills_done < kills and len(problems) < 5:
        clear_output()
        start_time = time.monotonic()
        child = start(words())
        if not kill_after(child, rng.uniform(0.02, 1.0) * seconds):
            # It ended before the kill, so it is faster than the first time.
            seconds = time.monotonic() - start_time
            continue
        kills_done += 1
        left = sorted(contents(place))
        code, found = wait(start(words())), contents(place)
        if code not in (0, 2):
            problems.append(f"{name}: run again, it ended with {code}; the kill had left {left}")
        elif found != expected:
            differing = sorted(key for key in {*found, *expected} if found.get(key, b"-") != expected.get(key, b"-"))
            problems.append(f"{name}: {differing[:5]} differ from a run without a kill; the kill had left {left}")
    shutil.rmtree(place, ignore_errors=True)
    return KillResult(kills_done, problems)


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
        names = options.commands or list(commands(Path(), Path()))
        for place, name in enumerate(names):
            share = options.kills // len(names) + (place < options.kills % len(names))
            start_time = time.monotonic()
            found = kill_and_run_again(name, share, Path(folder), random.Random(f"{name} {options.seed}"))
            bad += len(found.problems)
            print(
                f"{name}: {found.kills} kills, {len(found.problems)} wrong, {time.monotonic() - start_time:.0f} s",
                flush=True,
            )
            for line in found.problems:
                print("  ", line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
