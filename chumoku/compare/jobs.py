"""A job: one arm trained with one learning rate and one seed. Its result depends on its settings and on nothing else.

    id = SHA-256(all settings of the recipe with defaults, seed, hash of the tokens, metric, version)

    results/ID.json    the result; written at once, when the job is finished
    work/ID/           an ordinary run of `chumoku.train` with its checkpoints; removed when the job is finished
    queue/ID.json      the settings, for a process that runs the job

A killed job continues from its last checkpoint; a finished one is not repeated. A run that diverges has a result, too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import chumoku
from chumoku.compare.metrics import score_model
from chumoku.compare.results import RunResult
from chumoku.errors import ChumokuError, DamagedError, DivergedError
from chumoku.safe_files import read_json
from chumoku.training.distributed import choose_device
from chumoku.training.log import METRICS, read_metrics
from chumoku.training.loop import TrainEvent
from chumoku.training.recipe import Recipe, read_recipe
from chumoku.training.run import TrainResult, train

MAX_RESULT_BYTES = 1 << 26
RESET_PEAK = "5"  # written to /proc/self/clear_refs: resets the peak of the memory in use


@dataclass(frozen=True)
class Job:
    recipe: Mapping[str, Any]  # all tables, without train.out
    corpus: str  # hash of the tokens, of the tokenizer and of the test files
    data: str  # name of the folder with the prepared data
    metric: str
    test_files: tuple[str, ...]
    label: str  # for people: arm, learning rate and seed
    tokens_a_step: int

    @functools.cached_property
    def id(self) -> str:
        settings = {"recipe": self.recipe, "corpus": self.corpus, "metric": self.metric, "version": chumoku.__version__}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def seed(self) -> int:
        return int(self.recipe["train"]["seed"])

    def read_recipe(self, out: Path) -> Recipe:
        return read_recipe({**self.recipe, "train": {**self.recipe["train"], "out": str(out)}})


class JobStoppedError(ChumokuError):
    """A signal stopped the job; its checkpoint is saved."""

    def __init__(self, signal: int) -> None:
        self.signal = signal
        self.exit_code = 128 + signal
        super().__init__(f"Stopped by signal {signal}.")


def run_job(folder: Path, job: Job) -> RunResult:
    """Train the job in `folder`, or return its result if it is finished."""
    found = read_result(folder, job)
    if found is not None:
        return found
    running = RunningJob(folder, job)
    device = choose_device(running.recipe.train.device)
    began = time.perf_counter()
    reset_peak_memory(device)
    with one_thread(device), running.open_console() as console:
        options: dict[str, Any] = {"callbacks": [running.remember], "data_folder": running.data_folder}
        outcome: TrainResult | DivergedError
        try:
            outcome = train(running.recipe, resume=True, console=console, **options)
        except DivergedError as error:
            console.print(str(error), markup=False)
            outcome = error
        value = running.final_value(outcome, device)
    return running.finish(value, seconds=time.perf_counter() - began, memory=peak_memory(device))


class RunningJob:
    """A job with the run that trains it, in work/."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self.work, self.data_folder = folder / "work" / job.id, folder / "data" / job.data
        self.work.mkdir(parents=True, exist_ok=True)
        self.recipe = job.read_recipe(self.work)
        self._losses: list[float] = []

    @contextmanager
    def open_console(self) -> Iterator[Console]:
        with (self.work / "log.txt").open("a", encoding="utf-8") as stream:
            yield Console(file=stream, width=120)

    def remember(self, event: TrainEvent) -> None:
        """A callback of the run."""
        if event.validation_loss is not None:
            self._losses.append(event.validation_loss)

    def final_value(self, outcome: TrainResult | DivergedError, device: torch.device) -> float | None:
        """The final value of the metric; None if the run diverged."""
        if isinstance(outcome, DivergedError):
            return None
        if outcome.signal is not None:
            raise JobStoppedError(outcome.signal)
        if self.job.metric != "loss":
            return score_model(self.job.metric, outcome.last, self.recipe, self.job.test_files, device=str(device))
        # A run that was killed after its last validation does not repeat it.
        stored = (loss for _, loss in reversed(_validations(self.work)))
        final = self._losses[-1] if self._losses else next(stored, None)
        return final if final is not None and math.isfinite(final) else None

    def finish(self, value: float | None, *, seconds: float, memory: int) -> RunResult:
        """Store the result, and remove the run."""
        result = RunResult(
            seed=self.job.seed,
            value=value,
            curve=tuple(_curve(self.work)),
            seconds=seconds,
            tokens_per_second=self.job.tokens_a_step * _steps_per_second(self.work),
            peak_memory=memory,
        )
        write_result(self.folder, self.job, result)
        shutil.rmtree(self.work, ignore_errors=True)
        return result


def _validations(work: Path) -> list[tuple[int, float | None]]:
    entries = read_metrics(work / METRICS)
    return [(entry["step"], entry["validation_loss"]) for entry in entries if "validation_loss" in entry]


def _curve(work: Path) -> Iterator[tuple[int, float]]:
    return ((step, loss) for step, loss in _validations(work) if loss is not None)


def _steps_per_second(work: Path) -> float:
    """Of all training steps, without validation; 0 if the run diverged before its first logged step."""
    steps = [entry for entry in read_metrics(work / METRICS) if entry.get("seconds")]
    return float(steps[-1]["step"] / steps[-1]["seconds"]) if steps else 0.0


def result_path(folder: Path, job: Job) -> Path:
    return folder / "results" / f"{job.id}.json"


def write_result(folder: Path, job: Job, result: RunResult) -> None:
    write_json(result_path(folder, job), {"job": asdict(job), "result": asdict(result)})


def read_result(folder: Path, job: Job) -> RunResult | None:
    """The stored result of a job; None if it is not finished."""
    path = result_path(folder, job)
    if not path.exists():
        return None
    try:
        values = read_json(path, max_bytes=MAX_RESULT_BYTES)["result"]
        value = None if values["value"] is None else float(values["value"])
        curve = tuple((int(step), float(loss)) for step, loss in values["curve"])
        speed = float(values["tokens_per_second"])
        return RunResult(job.seed, value, curve, float(values["seconds"]), speed, int(values["peak_memory"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} is not the result of a job. Remove it; the job is then run again.") from error


def queue_job(folder: Path, job: Job) -> None:
    """Write the settings for a process that runs the job."""
    path = folder / "queue" / f"{job.id}.json"
    if not path.exists():
        write_json(path, asdict(job))


def read_job(folder: Path, id: str) -> Job:
    path = folder / "queue" / f"{id}.json"
    try:
        values = read_json(path, max_bytes=MAX_RESULT_BYTES)
        job = Job(**{**values, "test_files": tuple(values["test_files"])})
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{path} is not a job. Remove it, and repeat the command that wrote it.") from error
    if job.id != id:
        raise DamagedError(f"{path} has settings of another job. Remove it, and repeat the command that wrote it.")
    return job


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file at once: a process that is killed leaves no partial file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    temporary.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread on a CPU: jobs run side by side, and a value does not depend on the number of cores."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
    except OSError:  # not Linux: the peak is then that of all jobs of this process
        return


def peak_memory(device: torch.device) -> int:
    """Bytes: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
