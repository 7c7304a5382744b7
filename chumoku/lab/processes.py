"""Run experiments on several cores: groups of claims, the longest first, each process with one thread.

    claims → groups (claims that use the same trained model stay together) → processes → results in reading order

Every experiment seeds its own randomness, so the numbers do not depend on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from chumoku.errors import ChumokuError
from chumoku.lab import runner
from chumoku.lab.claims import ARITHMETIC, SAME_TRANSLATOR, select_claims
from chumoku.lab.experiment import Budget

MAX_PROCESSES = 4  # more do not help, because one experiment takes the longest


def run(
    ids: Sequence[str], budget: Budget, out: Path, progress: runner.Progress = lambda id, result: None
) -> list[runner.Result]:
    """Like `runner.run`, but with several processes if there is enough work."""
    selected = select_claims(ids)
    processes = min(os.cpu_count() or 1, MAX_PROCESSES, sum(id not in ARITHMETIC for id in selected))
    if processes < 2:
        return runner.run(selected, budget, out, progress)
    groups = sorted(
        group_claims(selected), key=lambda group: -sum(runner.expected_seconds(id, budget, out) for id in group)
    )
    # Spawn, because a forked process can hang if torch has started threads.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), start_worker)
    try:
        futures = [pool.submit(runner.run, group, budget, out) for group in groups]
        results = collect_results(futures, progress)
    except BrokenProcessPool as error:
        raise ChumokuError(
            "A lab process was killed, perhaps because memory ran out. Finished results are saved. Run the other "
            "claims one by one."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
    return sorted(results, key=lambda result: selected.index(result.id))


def start_worker() -> None:
    """Use one thread, and end with the main process: no signal reaches a worker if that process is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def collect_results(futures: Sequence[Future[list[runner.Result]]], progress: runner.Progress) -> list[runner.Result]:
    results = []
    for done in as_completed(futures):
        for result in done.result():
            progress(result.id, result)
            results.append(result)
    return results


def group_claims(ids: Sequence[str]) -> list[list[str]]:
    """Groups of claims: all arithmetic, all that share the trained translator, and each other claim by itself."""
    arithmetic = [id for id in ids if id in ARITHMETIC]
    together = [id for id in ids if id in SAME_TRANSLATOR]
    alone = [[id] for id in ids if id not in ARITHMETIC and id not in SAME_TRANSLATOR]
    return [group for group in (arithmetic, together, *alone) if group]
