"""Long steps of preparing report their progress, stop at once on Ctrl-C, and keep finished results."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from chumoku.data import text_files, tokenizer_cache
from chumoku.data.corpus import Corpus
from chumoku.data.pairs import Pair
from chumoku.data.prepared import prepare_pairs
from chumoku.data.shards import prepare_text
from chumoku.data.split import split_pairs
from chumoku.errors import ChumokuError
from chumoku.text import Tokenizer, train, training_process
from chumoku.text import training as tokenizer_training
from chumoku.text.progress import ShowProgress, track
from chumoku.text.sample_texts import sample_randomly
from chumoku.training import plan as planning
from chumoku.training.recipe import read_recipe

TEXTS = ["some words and other words, again some words", "うどんを食べる。そばを食べる。", "and so on and on"] * 9


class CountSteps:
    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def __call__(self, step: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        self.steps[step] = self.steps.get(step, 0) + 1


def console_progress(*, terminal: bool, every: float = 0.0) -> tuple[ShowProgress, io.StringIO]:
    file = io.StringIO()
    return ShowProgress(Console(file=file, force_terminal=terminal, width=99), every=every), file


def test_plain_lines_without_a_terminal() -> None:
    progress, file = console_progress(terminal=False)
    progress("tokenizing", 1_234, unit="tokens")
    progress("looking for near-duplicates", 3, 18, "rounds")
    progress("training a bpe tokenizer on 7 characters")
    assert file.getvalue().splitlines() == [
        "Tokenizing: 1,234 tokens, 0 s.",
        "Looking for near-duplicates: 3/18 rounds, 0 s.",
        "Training a bpe tokenizer on 7 characters: 0 s.",
    ]


def test_lines_are_limited_in_time() -> None:
    progress, file = console_progress(terminal=False, every=0.2)
    end, calls = time.monotonic() + 0.7, 0
    while time.monotonic() < end:
        progress("tokenizing", calls, unit="tokens")
        calls += 1
    assert 1 <= len(file.getvalue().splitlines()) <= 3 < calls


def test_bar_is_removed_from_the_terminal() -> None:
    progress, file = console_progress(terminal=True)
    with progress:
        progress("tokenizing", 5, 10, "pairs")
        progress("tokenizing", 7, 10, "pairs")
        progress("reading")
    assert "Tokenizing: 5/10 pairs" in file.getvalue()
    assert threading.active_count() == 1 or not any("rich" in str(one) for one in threading.enumerate())


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
def test_closed_console_stops_nothing(error: type[OSError]) -> None:
    writes = []

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            raise error

    progress = ShowProgress(Console(file=Closed(), force_terminal=False), every=0.0)
    progress("tokenizing")
    tried = len(writes)
    assert tried
    progress("tokenizing")
    ShowProgress(None)("tokenizing", 3)
    assert len(writes) == tried, "nothing more is written to a closed console"


def test_every_long_step_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_training, "IN_PROCESS_CHARACTERS_OTHERS", 0)
    progress = CountSteps()
    tokenizer = train(TEXTS, kind="bpe", vocabulary=300, progress=progress)
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    prepare_text(Corpus([tmp_path / "a.txt"]), tokenizer, tmp_path / "shards", progress=progress)
    (tmp_path / "a.tsv").write_text("".join(f"one {n}\tzwei {n * 7}\n" for n in range(2000)))
    prepare_pairs([tmp_path / "a.tsv"], tokenizer, tmp_path / "pairs", progress=progress)
    steps = ["reading", f"training a bpe tokenizer on {sum(map(len, TEXTS)):,} characters", "checking files"]
    steps += ["tokenizing", "looking for near-duplicates", "tokenizing the source side (train)"]
    assert set(steps) <= set(progress.steps)
    assert progress.steps["looking for near-duplicates"] > 18
    split_pairs([Pair("a", "b")], progress=progress)
    assert list(track("abc", progress, "counting", unit="letters", size=len)) == ["a", "b", "c"]


def test_checked_files_are_reported_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "HASH_BYTES", 7)
    (tmp_path / "a").write_bytes(b"x" * 11)
    (tmp_path / "b").write_bytes(b"y" * 5)
    progress, file = console_progress(terminal=False)
    first, second = text_files.compute_fingerprints([tmp_path / "a", tmp_path / "b"], progress)
    assert [line.partition(",")[0] for line in file.getvalue().splitlines()] == [
        "Checking files: 7/16 bytes",
        "Checking files: 11/16 bytes",
        "Checking files: 16/16 bytes",
    ]
    assert first == {"path": str(tmp_path / "a"), "size": 11, "sha256": hashlib.sha256(b"x" * 11).hexdigest()}
    assert second["sha256"] == hashlib.sha256(b"y" * 5).hexdigest()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_child_process_trains_the_same_tokenizer(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text + str(number) for number, text in enumerate(TEXTS)]
    settings: dict[str, Any] = {"kind": kind, "vocabulary": 600, "languages": ["ja"], "segment": False}
    here = train(texts, **settings)
    monkeypatch.setattr(tokenizer_training, "IN_PROCESS_CHARACTERS", {})
    monkeypatch.setattr(tokenizer_training, "IN_PROCESS_CHARACTERS_OTHERS", 0)
    found: list[Tokenizer] = []
    thread = threading.Thread(target=lambda: found.append(train(texts, **settings)))
    thread.start()
    thread.join()
    if kind == "unigram":  # among pieces of the same score the library chooses by chance
        assert (found[0].size, found[0].kind, found[0].roles) == (here.size, here.kind, here.roles)
        assert found[0].decode(found[0].encode(texts[1])) == texts[1]
    else:
        assert found[0].json == here.json


def test_errors_in_the_child_process_have_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_training, "IN_PROCESS_CHARACTERS_OTHERS", 0)
    for command, reason in (
        ("raise SystemExit('no room')", "no room"),
        ("import os; os._exit(9)", "its process was killed"),
    ):
        monkeypatch.setattr(training_process, "COMMAND", command)
        with pytest.raises(ChumokuError, match=f"Training the tokenizer failed: {reason}"):
            train(TEXTS * 999, kind="bpe", vocabulary=300)


# Training that takes minutes, in a process that can be sent signals.
LONG = """
import random, sys
from chumoku.text import train
dice = random.Random(0)
words = ["".join(chr(dice.randrange(0x4E00, 0x5200)) for _ in range(9)) for _ in range(3000)]
texts = ["".join(dice.choices(words, k=50)) for _ in range(2000)]
def progress(step, *rest, **unit):
    if step.startswith("training"):
        print(step, flush=True)
train(texts, kind="unigram", vocabulary=8000, progress=progress)
"""


@pytest.fixture
def training() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A training process and the id of its child process."""
    with subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        assert one.stdout.readline().startswith("training a unigram tokenizer on ")
        [child] = map(int, Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split())
        time.sleep(1.5)  # well inside the library
        yield one, child
        one.kill()


def has_exited(process: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if "State:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_training_stops_within_a_second(training: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = training
    start = time.monotonic()
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert time.monotonic() - start < 1.0 + 0.2 * os.getloadavg()[0]
    assert "KeyboardInterrupt" in errors
    assert has_exited(child, 0.5)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_child_process_exits_with_its_parent(training: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = training
    parent.kill()
    assert has_exited(child, 5.0)


def test_trained_tokenizer_survives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")

    def prepare(progress: Any) -> None:
        corpus = Corpus([tmp_path / "a.txt"])
        tokenizer = tokenizer_cache.prepare_tokenizer(
            corpus.documents(), corpus.files, tmp_path / "tokenizer", read_as={}, progress=progress, vocabulary=300
        )
        prepare_text(corpus, tokenizer, tmp_path / "shards", progress=progress)

    def interrupt(step: str, *rest: Any, **unit: Any) -> None:
        if step == "tokenizing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "tokenizer"]
    monkeypatch.setattr(tokenizer_cache, "train", None)
    prepare(CountSteps())


def test_sample_has_about_as_many_characters_as_asked_for() -> None:
    rng = random.Random(0)
    texts = ["x" * rng.randrange(1, 40) + str(number) for number in range(5000)]
    total = sum(map(len, texts))
    sample = sample_randomly(texts, total // 3)
    assert 0.3 < sum(map(len, sample)) / total < 0.36
    assert sample_randomly(texts, total) == texts
    assert sample_randomly([], 5) == []


def quick_recipe(tmp_path: Path, optimizer: str) -> Any:
    (tmp_path / "text.txt").write_text("one two three\n" * 50)
    sizes = {"batch_size": 31, "sequence_length": 29}
    return read_recipe(
        {
            "model": {"preset": "tiny-decoder"},
            "data": {"files": str(tmp_path / "text.txt")},
            "train": {**sizes, "out": str(tmp_path / "out"), "compile": True, "device": "cpu"},
            "optimizer": {"kind": optimizer, "learning_rate": 0.01},
        }
    )


def test_dry_run_measures_a_batch_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "compile", None)
    monkeypatch.setattr(planning, "LONGEST", 1e9)
    planning.show(quick_recipe(tmp_path, "adamw"))
    assert "(measured on a sample of 899 tokens, without torch.compile)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "activations", "timed"),
    [(0.05, 2.0, 31), (0.11, 2.0, 18), (0.05, 0.5, 15), (0.7, 2.0, 8)],  # of a row, GiB of a batch → rows
)
def test_a_batch_that_takes_long_or_much_memory_is_measured_in_part(
    seconds: float, activations: float, timed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Step:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __call__(self, rows: int) -> tuple[float, float]:
            return rows * seconds, 0.3

    recipe = quick_recipe(tmp_path, "adamw")
    stored = planning.count(recipe.config(8000), length=29, batch=31).activation_bytes
    monkeypatch.setattr(planning, "TimedStep", Step)
    monkeypatch.setattr(planning, "TIMED_BYTES", int(activations * stored))
    monkeypatch.setattr(planning, "measure_matmul_flops", lambda device, dtype: 1e12)
    found = planning.plan(recipe)
    assert found["tokens_timed"] == timed * 29
    assert found["seconds"] == pytest.approx(1000 * (31 * seconds + 0.3), rel=0.001), "of the whole batch"


def test_dry_run_estimates_if_a_sample_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "wrap", None)
    monkeypatch.setattr(planning, "measure_matmul_flops", lambda device, dtype: 1e6)
    planning.show(quick_recipe(tmp_path, "muon"))
    assert (
        "(estimated from the speed of matrix products because a sample would take too long" in capsys.readouterr().out
    )
