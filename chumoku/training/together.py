"""`train_together`: several runs that differ in seed and learning rate, trained as one batched model.

    each step     gradients of all runs in one forward and backward pass, then the update of each run
    a run ends    after its last step, without patience, or because it diverged: the others continue without it

Each run has its folder, its checkpoints and its result, as with `chumoku.train`, and they are equal up to rounding:
initialization, batches, learning rates and, on a CPU, dropout masks are the same, but sums are added in another order.
On a GPU, too, the masks depend only on (seed, step) and shapes, but they are not those of `chumoku.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from chumoku.errors import DivergedError, UsageError
from chumoku.nn.plain import plain, plain_formulas
from chumoku.training.checkpoint import find_differences
from chumoku.training.distributed import World, join_world
from chumoku.training.ensemble import Ensemble
from chumoku.training.interrupt import Interrupt, lock_folder
from chumoku.training.log import Log
from chumoku.training.loop import Callback, Run
from chumoku.training.own_parts import OwnParts
from chumoku.training.precision import fast_kernels
from chumoku.training.recipe import Recipe
from chumoku.training.run import TrainResult, finish_run, open_run, start_run
from chumoku.weights.checksums import delete_folder

Outcome = TrainResult | DivergedError
Ended = Callable[[int, Outcome], object]  # the number of the run, and how it ended
MAY_DIFFER = (("train", "out"), ("train", "seed"), ("optimizer", "learning_rate"))


def train_together(
    recipes: Sequence[Recipe],
    *,
    resume: bool = False,
    callbacks: Sequence[Sequence[Callback]] = (),
    consoles: Sequence[Console] = (),
    data_folder: Path | None = None,
    ended: Ended = lambda number, outcome: None,
) -> list[Outcome]:
    """Train recipes that differ in train.out, train.seed and optimizer.learning_rate. Returns how each run ended.

    resume         continue from the newest checkpoint that all runs have
    callbacks      of each run, as in `chumoku.train`
    consoles       where each run prints; by default nowhere
    data_folder    where tokenizer and tokens are stored, so that the runs share them; default: train.out/data of each
    ended          called when a run has ended, with its number
    """
    reason = why_not_together(recipes)
    if reason is not None:
        raise UsageError(f"These runs cannot be trained together: {reason} Train them one by one.")
    first = recipes[0].train
    with join_world(first) as world, ExitStack() as stack:
        if world.size > 1:
            raise UsageError("Runs are trained together in one process. Start it without torchrun.")
        stack.enter_context(plain(first.plain or plain_formulas()))
        stack.enter_context(fast_kernels(first.precision))
        runs = []
        for number, recipe in enumerate(recipes):
            parts = OwnParts(callbacks=callbacks[number] if callbacks else (), data_folder=data_folder)
            console = consoles[number] if consoles else Console(quiet=True)
            runs.append(_open(recipe, world, console, parts, stack, resume=resume))
        if resume:
            keep_common_checkpoints(runs)
        for run in runs:
            start_run(run, resume=resume)
        return Group(runs, ended).train()


def why_not_together(recipes: Sequence[Recipe]) -> str | None:
    """Why these recipes cannot be trained together, as a sentence; None if they can."""
    if not recipes:
        return "there are no recipes."
    first, config = recipes[0], recipes[0].config()
    for other in recipes[1:]:
        differences = find_differences(_shared_settings(first), _shared_settings(other))
        if differences:
            return f"they differ in {differences[0].partition(':')[0]}."
    if len({Path(recipe.train.out).absolute() for recipe in recipes}) < len(recipes):
        return "two have the same train.out."
    reasons = {
        f"batches of data.kind '{first.data.kind}' have different shapes for each seed.": first.data.kind != "text",
        "experts compute with as many tokens as were routed to them.": bool(config.experts),
        "batch norm changes its running averages in each forward pass.": config.norm == "batch",
        "model.init and [lora] start from an existing model.": first.init is not None,
        "a teacher is one model for all.": first.distillation is not None,
        "train.activation_checkpointing computes each block twice.": first.train.activation_checkpointing,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _shared_settings(recipe: Recipe) -> dict[str, Any]:
    """All settings of a recipe except those that may differ."""
    tables = {name: dict(table) for name, table in recipe.as_dict().items()}
    for table, key in MAY_DIFFER:
        del tables[table][key]
    return tables


def _open(recipe: Recipe, world: World, console: Console, parts: OwnParts, stack: ExitStack, *, resume: bool) -> Run:
    folder = Path(recipe.train.out)
    stack.enter_context(lock_folder(folder))
    log = Log(folder, recipe.train, console)
    stack.callback(log.close)
    run = open_run(recipe, world, log, parts, resume=resume)
    run.callbacks = parts.callbacks
    return run


def keep_common_checkpoints(runs: Sequence[Run]) -> None:
    """Delete checkpoints newer than the newest one that all runs have, so that they continue together.

    If all have checkpoints, but none in common (one run diverged long ago), each continues from its own newest.
    """
    stored = [set(run.checkpoints.steps()) for run in runs]
    common = set.intersection(*stored)
    if not common and all(stored):
        return
    for run, steps in zip(runs, stored, strict=True):
        for step in steps:
            if step > max(common, default=0):
                delete_folder(run.checkpoints.path(step))


class Group:
    """Runs that take their steps together. A run that is ahead after a resume waits for the others."""

    def __init__(self, runs: Sequence[Run], ended: Ended) -> None:
        self.runs, self._ended = list(runs), ended
        self.active = list(runs)
        self.outcomes: dict[int, Outcome] = {}  # by the number of the run
        self.interrupt = Interrupt()
        for run in runs:
            run.interrupt = self.interrupt
        self._ensemble: Ensemble | None = None

    def train(self) -> list[Outcome]:
        """Train until all runs have ended; returns how."""
        with self.interrupt:
            self._validate([run for run in self.runs if run.validation_due])  # interrupted before that
            for run in self.runs:
                run.fetch_first()
                if run.next_batches is None:
                    self._finish(run)
            while self.active:
                if self.interrupt.signal is not None:
                    for run in list(self.active):
                        self._attempt(run, lambda run: self._end(run, finish_run(run, run.stop())))
                    break
                self._step()
        return [self.outcomes[number] for number in range(len(self.runs))]

    def _step(self) -> None:
        began, runs = perf_counter(), self._slowest()
        batches = [run.next_batches[0] for run in runs if run.next_batches is not None]
        taken = self._together(runs).take_step()
        for run in runs:
            run.fetch_next()
        numbers = torch.stack([measured for _, measured in taken]).tolist()  # waits for the GPU
        seconds = (perf_counter() - began) / len(runs)  # of each run: its share
        for run, own, (step, _), values in zip(runs, batches, taken, numbers, strict=True):
            self._attempt(run, lambda run, *rest: run.end_step(*rest, seconds=seconds), step, own, values)
        self._validate([run for run in runs if run in self.active and run.validation_due])
        for run in runs:
            if run in self.active and self._attempt(run, Run.save_if_due):
                self._finish(run)

    def _validate(self, runs: list[Run]) -> None:
        """Validate runs that are at the same step; a run that diverged ends."""
        for step in sorted({run.state.step for run in runs}):
            ready = [run for run in runs if run.state.step == step]
            with ExitStack() as stack:
                for run in ready:
                    stack.enter_context(run.evaluator.eval_mode())
                losses = self._together(ready).validation_losses(stop=lambda: self.interrupt.signal is not None)
                for run, loss in zip(ready, losses or (), strict=losses is not None):
                    self._attempt(run, Run.end_validation, loss)

    def _slowest(self) -> list[Run]:
        """The runs that are at the earliest step."""
        earliest = min(run.state.step for run in self.active)
        return [run for run in self.active if run.state.step == earliest]

    def _together(self, runs: list[Run]) -> Ensemble:
        if self._ensemble is None or self._ensemble.runs != runs:
            self._ensemble = Ensemble(runs)
        return self._ensemble

    def _attempt(self, run: Run, work: Callable[..., Any], *args: Any) -> Any:
        """Call `work` with the run; if it diverges, it alone ends."""
        try:
            return work(run, *args)
        except DivergedError as error:
            run.log.info(str(error))
            run.log.close()
            self._end(run, error)

    def _finish(self, run: Run) -> None:
        """End a run without further steps; if a signal interrupted its last validation, it is stopped instead."""
        self._attempt(
            run, lambda run: self._end(run, finish_run(run, run.stop() if run.validation_due else run.describe_end()))
        )

    def _end(self, run: Run, outcome: Outcome) -> None:
        self.active.remove(run)
        number = next(number for number, other in enumerate(self.runs) if other is run)
        self.outcomes[number] = outcome
        self._ended(number, outcome)
