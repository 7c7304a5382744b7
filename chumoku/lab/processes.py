"""Experiments on several cores: groups of claims, the long ones first, each process with one thread.

    claims → groups (those that look into the same trained model stay together) → processes → results in reading order

A process's randomness is its experiment's own, so that numbers do not depend on how many there are.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from chumoku.errors import ChumokuError
from chumoku.lab import runner
from chumoku.lab.claims import ARITHMETIC, TOGETHER, chosen
from chumoku.lab.experiment import Budget

MOST = 4  # processes: beyond, each waits for the one long experiment


def run(
    ids: Sequence[str], budget: Budget, out: Path, progress: runner.Progress = lambda id, result: None
) -> list[runner.Result]:
    """What `runner.run` does, on all cores where that is worth it."""
    wanted = chosen(ids)
    processes = min(os.cpu_count() or 1, MOST, sum(id not in ARITHMETIC for id in wanted))
    if processes < 2:
        return runner.run(wanted, budget, out, progress)
    groups = sorted(grouped(wanted), key=lambda group: -sum(runner.expected(id, budget, out) for id in group))
    # A fresh interpreter each: a fork of one whose torch has threads can hang.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,))
    try:
        waiting = [pool.submit(runner.run, group, budget, out) for group in groups]
        results = heard(waiting, progress)
    except BrokenProcessPool as error:
        raise ChumokuError(
            "A process of the laboratory was ended from outside, perhaps for want of memory. What was done is kept; "
            "run the rest one by one."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
    return sorted(results, key=lambda result: wanted.index(result.id))


def heard(waiting: Sequence[Future[list[runner.Result]]], progress: runner.Progress) -> list[runner.Result]:
    results = []
    for done in as_completed(waiting):
        for result in done.result():
            progress(result.id, result)
            results.append(result)
    return results


def grouped(ids: Sequence[str]) -> list[list[str]]:
    """Arithmetic is one group, it takes no time; of the others each is one, but for those that share a model."""
    arithmetic = [id for id in ids if id in ARITHMETIC]
    together = [id for id in ids if id in TOGETHER]
    alone = [[id] for id in ids if id not in ARITHMETIC and id not in TOGETHER]
    return [group for group in (arithmetic, together, *alone) if group]
