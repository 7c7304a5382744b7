"""Jobs of one shape as one batched model (`training.together`): the seeds of an arm, or the learning rates of a search.

    jobs → groups that differ in seed and learning rate alone → one training of each group

This pays on a GPU that one small model does not fill. On a CPU, one process for each job is as fast or faster. What
cannot be batched, such as pairs and experts, is trained one after another. Seconds and memory of a group are divided
among its jobs; tokens per second are those of the group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from chumoku.compare.jobs import Job, JobStoppedError, RunningJob, one_thread, peak_memory, reset_peak_memory, run_job
from chumoku.compare.launchers import Finished
from chumoku.errors import DivergedError
from chumoku.training.distributed import choose_device
from chumoku.training.run import TrainResult
from chumoku.training.together import MAY_DIFFER, train_together, why_not_together


class Together:
    """A launcher for one GPU: runs jobs in this process, those of one shape together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        for group in group_jobs(jobs):
            try:
                run_group(self.folder, group, finished)
            except JobStoppedError as error:
                raise KeyboardInterrupt from error

    def close(self) -> None:
        return


def group_jobs(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in groups that differ only in seed and learning rate."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        tables = {name: dict(table) for name, table in job.recipe.items()}
        for table, key in MAY_DIFFER:
            tables[table].pop(key, None)
        shared = [tables, job.corpus, job.data, job.metric, job.test_files]
        groups.setdefault(json.dumps(shared, sort_keys=True), []).append(job)
    return list(groups.values())


def run_group(folder: Path, jobs: Sequence[Job], finished: Finished) -> None:
    """Train jobs together, or one after another if they cannot be batched. JobStoppedError if a signal came."""
    running = [RunningJob(folder, job) for job in jobs]
    if why_not_together([one.recipe for one in running]) is not None:
        for job in jobs:
            run_job(folder, job)
            finished(job)
        return
    device, clock = choose_device(running[0].recipe.train.device), SharedClock(len(jobs))
    signals: list[int] = []

    def store(number: int, outcome: TrainResult | DivergedError) -> None:
        seconds = clock.stop(number)
        try:
            value = running[number].final_value(outcome, device)
        except JobStoppedError as error:
            signals.append(error.signal)
            return
        running[number].finish(value, seconds=seconds, memory=peak_memory(device) // len(jobs))
        finished(jobs[number])

    reset_peak_memory(device)
    with one_thread(device), ExitStack() as stack:
        train_together(
            [one.recipe for one in running],
            resume=True,
            callbacks=[[one.remember] for one in running],
            consoles=[stack.enter_context(one.open_console()) for one in running],
            data_folder=running[0].data_folder,
            ended=store,
        )
    if signals:
        raise JobStoppedError(signals[0])


class SharedClock:
    """Divides the time that passes equally among those that are running."""

    def __init__(self, count: int) -> None:
        self._seconds = dict.fromkeys(range(count), 0.0)
        self._last = time.perf_counter()

    def stop(self, number: int) -> float:
        """The seconds of this one, which is no longer running."""
        now = time.perf_counter()
        for other in self._seconds:
            self._seconds[other] += (now - self._last) / len(self._seconds)
        self._last = now
        return self._seconds.pop(number)
