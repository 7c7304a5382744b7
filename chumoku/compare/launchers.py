"""Where jobs run. Each launcher runs a list of jobs and returns when all have results in the shared folder.

local    on a CPU side by side, in one process for each core; on a GPU the seeds of an arm together (together.py)
ray      tasks of a Ray cluster: the one of RAY_ADDRESS, or one on this machine
slurm    one job array for each list, submitted with sbatch, which reads its options from SBATCH_… variables
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import chumoku
from chumoku.compare.jobs import Job, JobStoppedError, queue_job, read_result, run_job
from chumoku.compare.results import RunResult
from chumoku.errors import ChumokuError

Finished = Callable[[Job], object]  # called for each job that is done
STOP_SECONDS = 30.0  # a process gets to save its checkpoint


class Launcher(Protocol):
    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        """Run jobs; raises ChumokuError if one fails. The others are then finished or continued by the next run."""

    def close(self) -> None:
        """Stop what is still running."""


def run_jobs(folder: Path, jobs: Sequence[Job], launcher: Launcher, finished: Finished) -> list[RunResult]:
    """The results of jobs, in their order; those that have none yet are run first."""
    missing = {job.id: job for job in jobs if read_result(folder, job) is None}
    if missing:
        launcher.run(list(missing.values()), finished)
    results = [read_result(folder, job) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        if result is None:
            raise ChumokuError(f"{job.label} has ended without a result. Repeat the command; it continues.")
    return [result for result in results if result is not None]


def failed(job: Job, error: str) -> ChumokuError:
    return ChumokuError(
        f"{job.label} failed: {error} Its log is work/{job.id}/log.txt. What is finished is kept; the same command "
        "continues."
    )


class InTurn:
    """Runs jobs one after another in this process: for a single core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        for job in jobs:
            try:
                run_job(self.folder, job)
            except JobStoppedError as error:
                raise KeyboardInterrupt from error
            finished(job)

    def close(self) -> None:
        return


class WorkerProcess:
    """A process of `chumoku.compare.worker`, which runs one job after another."""

    def __init__(self, folder: Path, number: int) -> None:
        package = str(Path(chumoku.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.folder = folder
        self._errors = (folder / f"worker-{number}.log").open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chumoku.compare.worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches the command alone, which then stops its processes
        )

    def run(self, job: Job) -> str | None:
        """Run a job; returns why it failed, or None."""
        streams = self.process.stdin, self.process.stdout
        if streams[0] is None or streams[1] is None:
            return "its process has no pipes."
        try:
            streams[0].write(f"{job.id}\n")
            streams[0].flush()
            answer = streams[1].readline()
        except (OSError, ValueError):
            answer = ""
        if answer:
            error: str | None = json.loads(answer)["error"]
            return error
        code = self.process.wait()
        return f"its process ended with code {code}, perhaps because memory ran out; try fewer --processes."

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()


class Processes:
    """Runs jobs in several processes on this machine, each with one thread."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._workers: dict[int, WorkerProcess] = {}  # by thread
        self._lock, self._closed = threading.Lock(), False
        self._threads = ThreadPoolExecutor(count)

    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        for job in jobs:
            queue_job(self.folder, job)
        futures = {self._threads.submit(self._run_one, job): job for job in jobs}
        for future in as_they_finish(futures):
            error = future.result()
            if error is not None:
                raise failed(futures[future], error)
            finished(futures[future])

    def _run_one(self, job: Job) -> str | None:
        number = threading.get_ident()
        with self._lock:
            if self._closed:
                return "the command was stopped."
            if number not in self._workers:
                self._workers[number] = WorkerProcess(self.folder, len(self._workers))
            worker = self._workers[number]
        return worker.run(job)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed, workers = True, list(self._workers.values())
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.wait()


def as_they_finish(futures: Iterable[Future[Any]]) -> Iterable[Future[Any]]:
    """Futures as they finish. Waits in short turns, so that Ctrl-C is noticed."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        yield from done


class RayTasks:
    """Runs jobs as tasks of a Ray cluster whose machines see the same folder."""

    def __init__(self, folder: Path, *, gpu: bool) -> None:
        from chumoku.compare.worker import run_and_report
        from chumoku.errors import MissingExtraError

        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("--launcher ray needs Ray: pip install 'chumoku[ray]'.") from error
        self.folder, self._ray = folder.resolve(), ray
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        resources: dict[str, Any] = {"num_gpus": 1} if gpu else {"num_cpus": 1}
        self._task = ray.remote(**resources, max_retries=0)(run_and_report)
        self._running: list[Any] = []

    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        tasks = {self._task.remote(self.folder, job): job for job in jobs}
        self._running = list(tasks)
        while self._running:
            done, self._running = self._ray.wait(self._running, timeout=0.5)
            for task in done:
                try:
                    error = self._ray.get(task)
                except self._ray.exceptions.RayError as problem:
                    error = f"Ray: {str(problem).splitlines()[0]}"
                if error is not None:
                    raise failed(tasks[task], error)
                finished(tasks[task])

    def close(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()
