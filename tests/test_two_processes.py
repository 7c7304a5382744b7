"""Training in two processes equals training in one, for every objective and every way to divide the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import chat_model, chat_recipe, write_chats, write_preferences, write_records
from easy_rewards import ascii_share, judge_unfinished
from faults import OBJECTIVES, recipe_for
from sentence_recipes import sentence_recipe, write_table
from test_runs import go, losses, newest, toml

import chumoku
from chumoku.training.objectives import GrpoObjective
from chumoku.training.rewards import RULES

pytestmark = pytest.mark.usefixtures("quick_runs")

TIMEOUT = 240  # seconds
SCRIPT = Path(__file__).parent / "two_processes.py"
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"parallel": "fsdp"},
    "fsdp, sharded": {"parallel": "fsdp", "sharded": True},
}
KINDS = ("encoder", *OBJECTIVES, "sentences", "chat", "preferences", "prompts")
CASES = [*(("encoder", way) for way in WAYS), *((kind, "ddp") for kind in KINDS[1:]), ("sentences", "fsdp")]


def tables_for(kind: str, corpora: Path, out: Path, **train: Any) -> dict[str, Any]:
    """The recipe of a very small run whose learning rate does not depend on the number of steps."""
    changes: dict[str, Any] = {"train": {"log_every": 1, "gradient_accumulation": 2, **train}}
    changes["schedule"] = {"kind": "constant", "warmup": 5}
    if kind == "sentences":
        changes["optimizer"] = {"learning_rate": 0.001}
        return sentence_recipe(corpora / "triplets.tsv", out, **changes, data={"columns": [0, 1, 2]})
    if kind in ("chat", "preferences"):
        data = {"kind": kind, "validation_share": 0.2}
        return chat_recipe(corpora / "model", corpora / f"{kind}.jsonl", out, **changes, data=data)
    if kind == "prompts":
        changes |= {"data": {"kind": kind, "validation_share": 0.2}}
        changes["grpo"] = {"reward": "words", "samples": 3, "max_new_tokens": 5}
        return chat_recipe(corpora / "model", corpora / "prompts.jsonl", out, **changes)
    return recipe_for(kind, corpora, out, **changes)


@contextmanager
def train_in_two_processes(
    folder: Path, recipes: list[dict[str, Any]], longer: list[dict[str, Any]]
) -> Iterator[Callable[[], str]]:
    """Train `recipes`, one after another, in the same two processes; they resume `longer` when the block ends.

    Gives a function that returns what they have printed.
    """
    folder.mkdir()
    names = [Path(tables["train"]["out"]).name for tables in recipes]
    files, longer_files = (
        [toml(tables, folder / f"{name}{end}.toml") for name, tables in zip(names, group, strict=True)]
        for group, end in ((recipes, ""), (longer, ", longer"))
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    command += [str(SCRIPT), str(folder), *files, "--", *longer_files]
    output = folder / "output.txt"
    with output.open("wb") as stream:
        run = subprocess.Popen(command, start_new_session=True, stdout=stream, stderr=subprocess.STDOUT)

    def read() -> str:
        return output.read_text(encoding="utf-8", errors="replace")

    def wait_while(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT
        while condition():
            assert time.monotonic() < end, f"This does not end: {read()[-3000:]}"
            time.sleep(0.1)

    try:
        wait_while(lambda: run.poll() is None and len(list(folder.glob("trained-*"))) < 2)
        assert run.poll() is None, read()[-5000:]
        yield read
        (folder / "resume").touch()
        wait_while(lambda: run.poll() is None)
        assert run.returncode == 0, read()[-5000:]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)  # also the processes that torchrun started
            run.wait()


@pytest.mark.slow
def test_two_processes_equal_one(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and weights as of one process; stopped after 8 steps of two, gone on with one, and with two again."""
    monkeypatch.setitem(RULES, "words", ascii_share)
    monkeypatch.setattr(GrpoObjective, "judge", judge_unfinished)
    chat_model(corpora / "model")
    write_chats(corpora / "chat.jsonl")
    write_preferences(corpora / "preferences.jsonl")
    write_records(corpora / "prompts.jsonl", [{"prompt": f"Add {n} and 5.", "answer": n + 5} for n in range(23)])
    write_table(corpora / "triplets.tsv", negatives=True)

    def recipes(steps: int) -> list[dict[str, Any]]:
        return [tables_for(kind, corpora, tmp_path / f"{kind}, {way}", steps=steps, **WAYS[way]) for kind, way in CASES]

    with train_in_two_processes(tmp_path / "processes", recipes(8), recipes(20)) as output:
        assert output().count("cpu × 2") == len(CASES)
        for tables in recipes(13):
            go(tables, resume=True)
    for kind in KINDS:
        go(tables_for(kind, corpora, tmp_path / kind, steps=20))
    for kind, way in CASES:
        compare(tmp_path / kind, tmp_path / f"{kind}, {way}", sharded=WAYS[way].get("sharded", False))


def compare(one: Path, two: Path, *, sharded: bool) -> None:
    assert losses(two) == pytest.approx(losses(one), rel=1e-5, abs=1e-7), two.name  # those of rewards are near 0
    expected, found = (dict(chumoku.load(out / "last").model.named_parameters()) for out in (one, two))
    for name, tensor in expected.items():
        if not name.endswith("key.bias"):  # its gradient is only rounding errors, which Adam scales up
            where = f"{two.name}: {name}: "
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda text, w=where: w + text)
    assert bool(list(newest(two).glob("part-*-of-00002.safetensors"))) == sharded, two.name
