"""The loop. A step takes a few batches, adds up their gradients, divides by all their tokens, and moves the weights:

    g = Σ_batches ∂(Σ_tokens loss) / Σ_batches tokens,    g ← g · min(1, clip / |g|),    w ← optimizer(w, g, rate(step))

Which batches, and which numbers dropout draws, follow from (seed, step) alone. So a run that is stopped anywhere and
resumed from its last checkpoint takes the same steps as one that never stopped.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from chumoku.data.loader import Cursor, load
from chumoku.data.order import random_numbers
from chumoku.errors import DivergedError, RoomError, counted
from chumoku.models.model import Model
from chumoku.training.average import Average
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import Tensors
from chumoku.training.dataset import Material
from chumoku.training.distributed import World, sharing
from chumoku.training.interrupt import Interrupt, first_bad, first_not_finite
from chumoku.training.log import Log
from chumoku.training.objectives import Objective, learned
from chumoku.training.optimizer import Optimizer
from chumoku.training.outputs import Result
from chumoku.training.precision import LossScale
from chumoku.training.recipe import Recipe
from chumoku.training.state import State
from chumoku.training.validation import Judge

Batch = dict[str, Tensor]


@dataclass
class Run:
    """Everything a loop works with."""

    recipe: Recipe
    material: Material
    model: Model
    objective: Objective
    module: nn.Module  # the objective as it runs: cast, shared, compiled
    optimizer: Optimizer
    average: Average
    judge: Judge
    state: State
    here: World
    log: Log
    checkpoints: Checkpoints
    result: Result
    keep_best: Callable[[], None]
    samples: Callable[[], list[str]]
    stopped_by: int | None = None  # the signal

    def __post_init__(self) -> None:
        self.interrupt = Interrupt()
        self.scale = LossScale(self.recipe.train.precision, self.state)

    def go(self) -> str:
        """Train until the last step, a reason to stop, or a signal; returns which."""
        settings, state = self.recipe.train, self.state
        with self.interrupt:
            if state.due(settings):  # a signal came before this step was judged
                self.validate()
            for batches in () if state.tired(settings) else self.feed():
                tokens, stopping = self.here.sum(sum(map(learned, batches)), self.interrupted)
                if stopping or not self.learn(batches, int(tokens)):
                    return self.stop()
                if state.due(settings):
                    self.validate()
                last = state.step == settings.steps or state.tired(settings)
                if last or state.step % settings.save_every == 0:
                    self.save(final=last)
                if state.tired(settings):
                    break
            if state.due(settings):
                return self.stop()
        if state.tired(settings):
            return f"stopped early: {counted(state.waited, 'validation')} brought nothing better"
        return "finished"

    def stop(self) -> str:
        self.stopped_by = self.interrupt.signal or signal.SIGTERM
        self.save(final=True)
        return f"stopped by {signal.Signals(self.stopped_by).name}"

    def feed(self) -> Iterator[list[Batch]]:
        """The batches of each step that is left, on this process's device."""
        settings, train = self.recipe.train, self.material.train
        workers = settings.workers if settings.workers is not None else 2 * (self.here.device.type == "cuda")
        start, stop = (
            Cursor.at(step * settings.gradient_accumulation, len(train)) for step in (self.state.step, settings.steps)
        )
        batches: list[Batch] = []
        for _, batch in load(train, start, workers=workers, share=self.here.share, stop=stop):
            batches.append(batch)
            if len(batches) == settings.gradient_accumulation:
                yield batches
                batches = []

    def learn(self, batches: list[Batch], tokens: int) -> bool:
        """One step; False when a signal came before it was complete, and nothing has changed."""
        settings, state = self.recipe.train, self.state
        began, step = time.perf_counter(), state.step + 1
        torch.manual_seed(int(random_numbers(1, settings.seed, step, self.here.rank)[0]) >> 1)
        rate = self.recipe.peak * self.recipe.curve(step)
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        self.objective.train()
        self.optimizer.forget()
        total = torch.zeros((), device=self.here.device)
        for number, batch in enumerate(batches):
            if self.interrupted and self.here.size == 1:
                self.put_back(buffers)
                return False
            with sharing(self.module, now=number == len(batches) - 1):
                loss = self.module(self.here.place(batch))
                (loss * (self.scale.value * self.here.size / max(1, tokens))).backward()
            total += loss.detach()
        norm = self.optimizer.norm() / self.scale.value
        (summed,) = self.here.sum(total.item())
        state.step, state.tokens = step, state.tokens + tokens
        if math.isfinite(summed) and math.isfinite(norm.item()):
            self.optimizer.scale(norm, settings.max_grad_norm, self.scale.value)
            self.optimizer.step(rate)
            self.average.update()
            state.bad = 0
            self.scale.update(finite=True)
        else:
            try:
                self.refuse(batches)
            finally:
                self.put_back(buffers)
        seconds = time.perf_counter() - began
        state.seconds += seconds
        self.log.step(state, loss=summed / max(1, tokens), norm=norm.item(), rate=rate, speed=tokens / seconds)
        return True

    def put_back(self, buffers: list[Tensor]) -> None:
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def refuse(self, batches: list[Batch]) -> None:
        """A step whose numbers are not finite is not applied; too many in a row end the run."""
        if self.scale.update(finite=False):
            return
        state, settings = self.state, self.recipe.train
        state.bad += 1
        where = first_bad(self.module, [self.here.place(batch) for batch in batches])
        self.log.say(f"Step {state.step:,} gave numbers that are not finite, first in {where}. It was not applied.")
        if state.bad >= settings.max_bad_steps:
            raise DivergedError(
                f"{counted(state.bad, 'step')} in a row were not finite (NaN or infinity), first in {where}. They were "
                f"not saved; {self.checkpoints.described}. Lower optimizer.learning_rate or lengthen schedule.warmup."
            )

    def validate(self) -> None:
        """The loss on what is not learned from; the best weights so far are kept."""
        state = self.state
        with self.judge.at_rest():
            loss = self.judge.loss(stop=lambda: self.here.sum(self.interrupted)[0] > 0)
            if loss is None:
                return
            state.judged = state.step
            best = math.isfinite(loss) and (state.best is None or loss < state.best)
            state.waited = 0 if best else state.waited + 1
            self.log.validation(state.step, loss, bytes_a_token=self.material.bytes_a_token, best=best)
            if best:
                self.check_finite()
                if self.surviving(self.keep_best):  # best/ holds what `state.best` says
                    state.best = loss
            for line in self.samples():
                self.log.say(line)

    def save(self, *, final: bool = False) -> None:
        state = self.state
        if self.checkpoints.steps()[-1:] == [state.step]:
            return
        self.check_finite()
        tensors = Tensors(self.result.tensors(), self.optimizer.state(), self.average.tensors)
        write = partial(self.checkpoints.save, state, tensors, self.result)
        if final:
            write()
        else:
            self.surviving(write)

    def check_finite(self) -> None:
        """End the run before weights that are not finite replace good ones: an optimizer's step can make them."""
        averages = {f"{name} (its average)": tensor for name, tensor in self.average.tensors.items()}
        bad = first_not_finite({**self.result.tensors(), **averages})
        if not self.here.sum(float(bad is not None))[0]:
            return
        settings = self.recipe.optimizer
        epsilon = "" if settings.kind == "sgd" else f", raise optimizer.epsilon (it is {settings.epsilon:g})"
        raise DivergedError(
            f"Step {self.state.step:,} was not saved: its weights are not finite, first in "
            f"{bad or 'the part of another process'}; {self.checkpoints.described}. Lower optimizer.learning_rate (the "
            f"peak is {self.recipe.peak:g}){epsilon} or lengthen schedule.warmup, then continue with --resume."
        )

    def surviving(self, write: Callable[[], object]) -> bool:
        """Whether it was written. A disk that is full now may have room later; what was saved before stays."""
        try:
            write()
        except RoomError as error:
            self.log.say(f"{error} The run goes on; what was saved before stays.")
            return False
        return True

    @property
    def interrupted(self) -> bool:
        return self.interrupt.signal is not None
