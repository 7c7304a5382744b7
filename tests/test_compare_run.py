"""Runs of a comparison: rounds, kill and resume, runs that diverge, equal batches, processes, Ray and Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from commands import Ask
from rich.console import Console

from chumoku.compare import jobs
from chumoku.compare.arms import parse_choices
from chumoku.compare.jobs import Job, queue_job, read_job, read_result, write_json
from chumoku.compare.launchers import RayTasks, WorkerProcess
from chumoku.compare.plan import Plan, make_plan
from chumoku.compare.request import Options, check_request
from chumoku.compare.results import Comparison
from chumoku.compare.run import compare_choices
from chumoku.compare.slurm import STATE, SlurmArrays
from chumoku.errors import ChumokuError, UsageError
from chumoku.safe_files import read_json
from chumoku.text.progress import silent
from chumoku.training.datasets import prepare
from chumoku.training.recipe import read_recipe
from chumoku.training.run import TrainResult, train

ROOT = Path(__file__).parent.parent
POSITIONS = ["model.position=none,learned"]
OPTIONS = Options(seeds=3, rates=1)


class Decision(NamedTuple):
    active: tuple[str, ...]
    finished: bool


def never_decided(comparison: Comparison, **_: Any) -> Decision:
    return Decision(tuple(arm.name for arm in comparison.arms), False)


@pytest.fixture(scope="module", autouse=True)
def fast_runs() -> Iterator[None]:
    """Runs without a picture of the loss and without a measured peak, which take longer than the training here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chumoku.training.run.draw_loss_curve", lambda *_: None)
        patch.setattr("chumoku.training.run.measure_matmul_flops", lambda *_: 1e9)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n + 2} is {n * (n + 2)}.\n" for n in range(101)), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def recipe(text: str) -> dict[str, Any]:
    return {
        "model": {
            "kind": "decoder",
            "width": 26,
            "layers": 1,
            "heads": 2,
            "context": 19,
            "position": "learned",
            "dropout": {"sublayer": 0.1},
        },
        "tokenizer": {"kind": "character"},
        "data": {"files": text, "documents": "file", "validation_share": 0.1},
        "train": {"steps": 7, "batch_size": 3, "validate_every": 5, "save_every": 2, "device": "cpu"},
        "optimizer": {"learning_rate": 0.01},
    }


def compare(
    recipe: dict[str, Any], choices: list[str], out: Path, decide: Any = never_decided, **changes: Any
) -> Comparison:
    arguments = {"options": OPTIONS, "processes": 1, **changes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chumoku.compare.rounds.decide", decide)
        patch.setattr("chumoku.compare.rounds.FIRST_LOOK", 1)
        return compare_choices(recipe, choices, out=out, **arguments).comparison


def values(comparison: Comparison) -> dict[str, list[float | None]]:
    return {name: [result.value for result in results] for name, results in comparison.runs.items()}


@pytest.fixture(scope="module")
def finished(recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """The folder and the result of a comparison that nothing interrupted."""
    out = tmp_path_factory.mktemp("compare")
    return out, compare(recipe, POSITIONS, out)


def test_a_comparison_has_a_run_for_every_arm_and_seed(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path
) -> None:
    out, found = finished
    assert [arm.name for arm in found.arms] == ["model.position=none", "model.position=learned"]
    assert [[result.seed for result in results] for results in found.runs.values()] == [[0, 1, 2]] * 2
    assert found.stopped == "seeds"
    result = found.runs["model.position=learned"][1]
    assert [step for step, _ in result.curve] == [5, 7]
    assert result.curve[-1][1] == result.value
    assert result.tokens_per_second > 0
    assert result.peak_memory > 1 << 20
    assert not list((out / "work").iterdir())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = train(recipe, [*found.arms[1].overrides, "train.seed=1", f"train.out={tmp_path}"], console=quiet(tmp_path))
    torch.set_num_threads(threads)
    assert alone.best_loss == result.value  # the overrides of the table give the same run


def quiet(folder: Path) -> Console:
    return Console(file=(folder / "console.txt").open("w", encoding="utf-8"))


class KilledError(BaseException):
    """Ends a process at once, without its own clean-up."""


def test_killed_anywhere_the_same_call_gives_the_same_answer(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    limit = 2 * (7 + 2) + 4  # events: the third run is killed after its second checkpoint

    def train_until_killed(*arguments: Any, **options: Any) -> Any:
        def count(event: Any) -> None:
            steps.append(event.step)
            if event.loss is not None and len(steps) > limit:
                raise KilledError

        options["callbacks"] = [*options["callbacks"], count]
        return train(*arguments, **options)

    monkeypatch.setattr(jobs, "train", train_until_killed)
    with pytest.raises(KilledError):
        compare(recipe, POSITIONS, tmp_path)
    done = {path.name for path in (tmp_path / "results").iterdir()}
    assert 0 < len(done) < 6
    steps.clear()
    limit = 1000
    again = compare(recipe, POSITIONS, tmp_path)
    assert values(again) == values(finished[1])
    assert [[one.curve for one in results] for results in again.runs.values()] == [
        [one.curve for one in results] for results in finished[1].runs.values()
    ]
    remaining = 6 - len(done)
    assert steps.count(1) == remaining - 1  # finished runs are not repeated, and the killed one continues
    assert steps.count(7) >= remaining


def test_ctrl_c_stops_and_says_how_to_continue(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = TrainResult(tmp_path, "stopped by SIGINT", 3, None, 1.0, signal.SIGINT)
    monkeypatch.setattr(jobs, "train", lambda *_, **__: stopped)
    with pytest.raises(KeyboardInterrupt):
        compare(recipe, POSITIONS, tmp_path)
    assert "The same command continues." in (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert not (tmp_path / "results").exists()


def test_a_run_that_always_diverges_is_a_result(recipe: dict[str, Any], tmp_path: Path) -> None:
    arms = ["", "optimizer.learning_rate=1000 optimizer.weight_decay=1e12"]
    found = compare(recipe, [], tmp_path, arms=arms, options=Options(seeds=2))
    healthy, diverged = found.runs.values()
    assert [one.diverged for one in diverged] == [True, True]
    assert not any(one.diverged for one in healthy)
    assert "diverged" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    assert values(compare(recipe, [], tmp_path, arms=arms, options=Options(seeds=2))) == values(found)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}


def test_arms_of_one_seed_see_the_same_batches(recipe: dict[str, Any], tmp_path: Path) -> None:
    def batches(seed: int, **model: Any) -> list[torch.Tensor]:
        tables = {**recipe, "model": {**recipe["model"], **model}, "train": {**recipe["train"], "seed": seed}}
        data = prepare(read_recipe(tables), folder=tmp_path)
        return [data.train.batch(epoch, 3)["tokens"] for epoch in (0, 1)]

    same, other = batches(5, position="none"), batches(5, position="rotary", width=44, layers=2)
    assert all(torch.equal(a, b) for a, b in zip(same, other, strict=True))
    assert not torch.equal(same[0], batches(6, position="none")[0])


def test_arms_are_dropped_and_rounds_end_when_all_is_decided(
    finished: tuple[Path, Comparison], recipe: dict[str, Any]
) -> None:
    seen: list[int] = []

    def decide(comparison: Comparison, *, planned_seeds: int, confidence: float) -> Decision:
        assert (planned_seeds, confidence) == (3, 0.95)
        seen.append(len(comparison.runs["model.position=none"]))
        return Decision(("model.position=none",), len(seen) == 2)

    found = compare(recipe, POSITIONS, finished[0], decide=decide)
    assert (seen, found.stopped, found.dropped) == ([1, 2], "decided", {"model.position=learned": 1})
    assert [len(results) for results in found.runs.values()] == [2, 1]


def test_a_budget_ends_the_rounds(finished: tuple[Path, Comparison], recipe: dict[str, Any]) -> None:
    runs = finished[1].runs
    first = sum(results[0].seconds for results in runs.values())
    found = compare(recipe, POSITIONS, finished[0], options=dataclasses.replace(OPTIONS, budget=1.5 * first))
    assert (found.stopped, [len(results) for results in found.runs.values()]) == ("budget", [1, 1])
    assert found.seconds == pytest.approx(first)
    assert len(found.notes) == 1  # that learning rates were not searched
    again = compare(recipe, POSITIONS, finished[0], options=dataclasses.replace(OPTIONS, seeds=2))
    assert "with --seeds 3 before" in again.notes[0].en


def plan_of(recipe: dict[str, Any], choices: list[str], out: Path) -> Plan:
    request = check_request(recipe, parse_choices(choices))
    return make_plan(request, out, remote=False, progress=silent)


def test_a_plan_notes_what_makes_arms_hard_to_compare(recipe: dict[str, Any], tmp_path: Path) -> None:
    tables = {**recipe, "train": {**recipe["train"], "patience": 3, "validation_batches": 2}}
    plan = plan_of(tables, ["model.context=13,19"], tmp_path)
    assert [note.en.split()[0] for note in plan.notes] == ["train.patience", "train.validation_batches", "The"]
    assert "validated on different batches" in plan.notes[2].en
    assert "patience" not in plan.job(plan.arms[0], rate=0.01, seed=0).recipe["train"]
    assert not plan_of(recipe, ["train.label_smoothing=0.1,0", "model.layers=1,2"], tmp_path).notes


def test_the_value_is_that_of_averaged_weights_if_a_recipe_averages(recipe: dict[str, Any], tmp_path: Path) -> None:
    train = {**recipe["train"], "average_checkpoints": 2}
    plan = plan_of({**recipe, "train": train, "schedule": {"kind": "constant"}}, POSITIONS, tmp_path)
    job = plan.job(plan.arms[0], rate=0.01, seed=0)
    kept = tmp_path / "log.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "shutil", SimpleNamespace(rmtree=lambda work, **_: (work / "log.txt").rename(kept)))
        result = jobs.run_job(tmp_path, job)
    assert f"The mean of the last 2 checkpoints: validation loss {result.value:.4f}" in kept.read_text(encoding="utf-8")
    assert result.value != result.curve[-1][1]


def test_a_job_is_named_by_its_settings_and_its_text(recipe: dict[str, Any], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    tables = {**recipe, "data": {**recipe["data"], "files": str(text)}}

    def plan() -> Plan:
        return plan_of(tables, POSITIONS, tmp_path / "out")

    text.write_text("one and two and three. " * 53, encoding="utf-8")
    before = plan()
    first = [before.job(arm, rate=0.01, seed=3) for arm in before.arms]
    assert len({job.id for job in (*first, before.job(before.arms[0], rate=0.01, seed=5))}) == 3
    assert before.job(before.arms[0], rate=0.02, seed=3).id != first[0].id
    assert dataclasses.replace(first[0], label="another").id == first[0].id
    text.write_text("one and two and trees. " * 53, encoding="utf-8")
    assert plan().job(before.arms[0], rate=0.01, seed=3).id == first[0].id
    assert plan().job(plan().arms[0], rate=0.01, seed=3).id != first[0].id


def test_wrong_options_are_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    for wrong in ({"seeds": 0}, {"rates": 2}, {"search_steps": 0.0}, {"budget": 0.0}, {"confidence": 1.0}):
        with pytest.raises(UsageError, match="--"):
            Options(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="decides the steps"):
        compare(recipe, ["train.steps=5,7"], tmp_path)
    with pytest.raises(UsageError, match="different tokenizers"):
        compare(recipe, ["tokenizer.kind=character,byte"], tmp_path)
    with pytest.raises(UsageError, match=r"model\.width cannot be compared with --adjust width"):
        compare(recipe, ["model.width=22,44"], tmp_path, adjust="width")
    with pytest.raises(UsageError, match="choose local, ray or slurm"):
        compare(recipe, POSITIONS, tmp_path / "new", launcher="cloud")
    assert not (tmp_path / "new").exists(), "refused before anything is written"


def test_the_command_answers_and_refuses(
    finished: tuple[Path, Comparison],
    recipe: dict[str, Any],
    tmp_path: Path,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, found = finished
    (tmp_path / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    monkeypatch.setattr("chumoku.compare.outputs.draw_comparison", lambda *_: None)
    monkeypatch.setattr("chumoku.compare.page.draw_panels", lambda *_: (b"", b""))
    words = ["compare", str(tmp_path), *POSITIONS, "--rates", "1", "--seeds", "3", "--processes", "1"]
    results = sorted(out.glob("results/*"))
    answered = ask(*words, "--out", str(out), "--json")
    assert answered.code == 0, answered.err
    values = json.loads(answered.out)
    assert {name: [run["value"] for run in runs] for name, runs in values["runs"].items()} == {
        name: [run.value for run in runs] for name, runs in found.runs.items()
    }
    assert values["planned_seeds"] == 3
    assert sorted(out.glob("results/*")) == results  # nothing was trained again
    assert "learned" in (out / "comparison.html").read_text(encoding="utf-8")
    assert json.loads((out / "comparison.json").read_text(encoding="utf-8"))["answer"] == values["answer"]

    planned = ask(*words, "--out", str(out), "--dry-run", "--budget", "1h30m", "--equal", "seconds")
    assert "Up to 6 runs for the verdict: 3 seeds of 2 arms." in planned.out
    assert "The budget, 90.0 minutes" in planned.out
    for wrong, message in (
        (["model.positoin=none,learned"], "Did you mean model.position?"),
        ([*POSITIONS, "--budget", "20"], "not a time; write it as 90s, 20m"),
        ([*POSITIONS, "--equal", "cost"], "choose flops, parameters"),
    ):
        refused = ask("compare", str(tmp_path), *wrong, "--out", str(tmp_path / "new"))
        assert (refused.code, refused.out) == (2, "")
        assert message in refused.err
    assert not (tmp_path / "new").exists()


def queued(folder: Path, recipe: dict[str, Any], finished: tuple[Path, Comparison], name: str) -> Job:
    """A job of the finished comparison, in another folder with the same data, where it has no result."""
    shutil.copytree(finished[0] / "data", folder / "data")
    found = (read_json(path)["job"] for path in sorted((finished[0] / "results").iterdir()))
    values = next(job for job in found if job["label"].startswith(f"{name}, ") and job["recipe"]["train"]["seed"] == 2)
    return Job(**{**values, "test_files": ()})


@pytest.mark.slow
def test_a_worker_process_gives_the_same_result_and_stops_with_its_command(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path
) -> None:
    job = queued(tmp_path, recipe, finished, "model.position=none")
    long = dataclasses.replace(job, recipe={**job.recipe, "train": {**job.recipe["train"], "steps": 10**6}})
    worker = WorkerProcess(tmp_path, 0)
    try:
        for one in (job, long):
            queue_job(tmp_path, one)
        assert worker.run(job) is None
        result = read_result(tmp_path, job)
        assert result is not None
        assert result.value == finished[1].runs["model.position=none"][2].value
        broken = dataclasses.replace(job, recipe={**job.recipe, "data": {"files": "missing.txt"}}, data="none")
        queue_job(tmp_path, broken)
        assert "missing.txt" in (worker.run(broken) or "")
        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(worker.run, long)
            wait_for(lambda: any((tmp_path / "work" / long.id / "checkpoints").glob("step-*")))
            assert worker.process.stdin is not None
            worker.process.stdin.close()  # as when the command is killed
            assert "ended with code 143" in (ended.result(60) or "")
        assert read_result(tmp_path, long) is None
        assert read_job(tmp_path, long.id).id == long.id
    finally:
        worker.stop()
        worker.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


SBATCH = """#!{python}
import os, subprocess, sys
options = dict(option.lstrip("-").partition("=")[::2] for option in sys.argv[1:])
last = int(options["array"].partition("-")[2])
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
for task in range(last + 1):
    code = f"{{options['wrap']}}; rm -f {queue}/{{task}}"
    open(f"{queue}/{{task}}", "w").close()
    environment, output = {{**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}}, open({log!r} + ".out", "a")
    subprocess.Popen(["sh", "-c", code.removeprefix("exec ")], env=environment, stdout=output, stderr=output)
print("4711;cluster")
"""


@pytest.mark.slow
def test_slurm_arrays_are_submitted_and_found_again(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = queued(tmp_path / "out", recipe, finished, "model.position=learned")
    bin_folder, queue, log = tmp_path / "bin", tmp_path / "queue", tmp_path / "log"
    bin_folder.mkdir()
    queue.mkdir()
    scripts = {
        "sbatch": SBATCH.format(python=sys.executable, log=str(log), queue=queue),
        "squeue": f"#!/bin/sh\nls {queue}\n",
        "scancel": f"#!/bin/sh\necho scancel $1 >> {log}\n",
    }
    for name, text in scripts.items():
        (bin_folder / name).write_text(text, encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    slurm, done = SlurmArrays(tmp_path / "out", poll_seconds=0.1), list[Job]()
    slurm.run([job], done.append)
    result = read_result(tmp_path / "out", job)
    assert result is not None
    assert result.value == finished[1].runs["model.position=learned"][2].value
    assert done == [job]
    submitted = log.read_text(encoding="utf-8")
    assert "--array=0-0" in submitted
    assert not (tmp_path / "out" / STATE).exists()
    write_json(tmp_path / "out" / STATE, {"array": "4711"})  # of a command that was killed
    SlurmArrays(tmp_path / "out", poll_seconds=0.1).run([job], done.append)
    assert (done, log.read_text(encoding="utf-8")) == ([job, job], submitted)
    slurm.array = "4711"  # Ctrl-C while it waits
    slurm.close()
    assert log.read_text(encoding="utf-8") == f"{submitted}scancel 4711\n"


class StandInRay:
    """Runs tasks at once, with the functions of Ray that the launcher calls."""

    exceptions = SimpleNamespace(RayError=KeyError)

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None:
        self.calls.append("init")

    def remote(self, **resources: Any) -> Any:
        self.calls.append(resources)
        return lambda function: SimpleNamespace(remote=lambda *arguments: Result(function(*arguments)))

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        return task.value

    def shutdown(self) -> None:
        self.calls.append("shutdown")


class Result:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_ray_tasks_write_results_and_report_failures(
    finished: tuple[Path, Comparison], recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandInRay()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    job = queued(tmp_path, recipe, finished, "model.position=none")
    broken = dataclasses.replace(job, recipe={**job.recipe, "data": {"files": "missing.txt"}}, data="none")
    tasks, done = RayTasks(tmp_path, gpu=False), list[Job]()
    with pytest.raises(ChumokuError, match="missing"):
        tasks.run([job, broken], done.append)
    tasks.close()
    assert done == [job]
    assert ray.calls == ["init", {"num_cpus": 1, "max_retries": 0}, "shutdown"]
    result = read_result(tmp_path, job)
    assert result is not None
    assert result.value == finished[1].runs["model.position=none"][2].value
