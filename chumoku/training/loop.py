"""The training loop. A step sums the gradients of its batches, divides by all their tokens, and updates the weights:

    g = Σ_batches ∂(Σ_tokens loss) / Σ_batches tokens,    g ← g · min(1, max_grad_norm / |g|),   w ← optimizer(w, g, lr)

An objective may take several such updates with the batches of one step, for example with answers that it generated.
The batches and the random numbers of dropout depend only on (seed, step). So a run that is interrupted and resumed from
its last checkpoint takes the same steps as an uninterrupted one.

A GPU computes the gradients of the next step while this one is reported, if nothing can notice it: the weights change
only after the report.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.data.loader import Cursor, load
from chumoku.data.order import random_numbers
from chumoku.errors import DivergedError, StorageError, pluralize
from chumoku.models.model import Model
from chumoku.training.average import Average
from chumoku.training.checkpoint import Checkpoints
from chumoku.training.checkpoint_files import Tensors
from chumoku.training.datasets import TrainingData
from chumoku.training.distributed import World, gradient_sync
from chumoku.training.host_copy import start_copy_to_host
from chumoku.training.interrupt import Interrupt, find_non_finite, first_non_finite_tensor
from chumoku.training.log import Log
from chumoku.training.objectives import Objective, count_labels
from chumoku.training.optimizer import Optimizer
from chumoku.training.outputs import Result
from chumoku.training.precision import LossScale
from chumoku.training.recipe import Recipe
from chumoku.training.state import State
from chumoku.training.validation import Evaluator

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class TrainEvent:
    """What a callback of `chumoku.train` is called with: after each step, and after each validation."""

    step: int
    model: Model  # in eval mode, with averaged weights if enabled, when there is a validation loss
    loss: float | None = None  # mean training loss per token of this step
    validation_loss: float | None = None
    learning_rate: float | None = None
    tokens: int = 0  # labels of this step
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the objective, such as the mean reward


Callback = Callable[[TrainEvent], object]  # one with uses_model = False does not keep the next step from starting early


class Step(NamedTuple):
    """A step that has begun."""

    number: int
    rate: float  # learning rate
    tokens: int  # labels of all its batches
    buffers: list[Tensor]  # copies from before the step


@dataclass
class Run:
    """A run: all parts of the training loop, and the loop itself."""

    recipe: Recipe
    data: TrainingData
    model: Model
    objective: Objective
    module: nn.Module  # the objective wrapped for casting, several processes and compiling
    optimizer: Optimizer
    average: Average
    evaluator: Evaluator
    state: State
    world: World
    log: Log
    checkpoints: Checkpoints
    result: Result
    keep_best: Callable[[], None]
    samples: Callable[[], list[str]]
    callbacks: Sequence[Callback] = ()
    scores: Callable[[], dict[str, float]] = dict  # of the validation data, besides the loss
    stopped_by: int | None = None  # the signal that stopped the run

    def __post_init__(self) -> None:
        self.interrupt = Interrupt()
        self.scale = LossScale(self.recipe.train.precision, self.state)
        self.upcoming: Iterator[tuple[list[Batch], int]] = iter(())
        self.next_batches: tuple[list[Batch], int] | None = None
        self.started: tuple[Step, Tensor] | None = None  # the next step and its loss, if it was started early

    def train(self) -> str:
        """Train until the last step, until patience runs out, or until a signal; returns which, as text."""
        with self.interrupt:
            if (self.state.step == 0 and self.objective.validate_first) or self.validation_due:
                # The latter: interrupted before this step was validated.
                self.validate()
            self.fetch_first()
            while self.next_batches is not None:
                batches, labels = self.next_batches
                tokens, stopping = self.world.sum(labels, self.interrupted)
                if stopping or not self.train_step(batches, int(tokens)):
                    return self.stop()
                if self.validation_due:
                    self.validate()
                if self.save_if_due():
                    break
            if self.validation_due:
                return self.stop()
        return self.describe_end()

    @property
    def validation_due(self) -> bool:
        return self.state.validation_due(self.recipe.train)

    def describe_end(self) -> str:
        """How a run ended that no signal stopped, as text."""
        if self.state.out_of_patience(self.recipe.train):
            return f"stopped early: no improvement in {pluralize(self.state.waited, 'validation')}"
        return "finished"

    def save_if_due(self) -> bool:
        """Save a checkpoint if this step needs one; returns whether it was the last step."""
        settings, state = self.recipe.train, self.state
        last = state.is_last(settings)
        if last or state.step % settings.save_every == 0:
            self.save(final=last)
        return last

    def stop(self) -> str:
        self.stopped_by = self.interrupt.signal or signal.SIGTERM
        self.save(final=True)
        return f"stopped by {signal.Signals(self.stopped_by).name}"

    def fetch_first(self) -> None:
        """Fetch the batches of the first step that remains."""
        done = self.state.out_of_patience(self.recipe.train)
        self.upcoming = iter(()) if done else self.batches_by_step()
        self.fetch_next()

    def fetch_next(self) -> None:
        """Fetch the batches of the next step; called while the GPU computes this one."""
        self.next_batches = next(self.upcoming, None)

    def batches_by_step(self) -> Iterator[tuple[list[Batch], int]]:
        """This process's batches for each remaining step, on its device, and the number of their labels."""
        settings, train = self.recipe.train, self.data.train
        workers = settings.workers if settings.workers is not None else 2 * (self.world.device.type == "cuda")
        start, stop = (
            Cursor.at(step * settings.gradient_accumulation, len(train)) for step in (self.state.step, settings.steps)
        )
        batches: list[Batch] = []
        labels = 0
        for _, batch in load(train, start, workers=workers, share=self.world.share, stop=stop):
            batches.append(self.world.to_device(batch))
            labels += count_labels(batch)
            if len(batches) == settings.gradient_accumulation:
                yield batches, labels
                batches, labels = [], 0

    def train_step(self, batches: list[Batch], tokens: int) -> bool:
        """Take one step; returns False, with nothing changed, if a signal came before it was complete."""
        began = time.perf_counter()
        step, total = self.started or (self.begin_step(tokens), None)
        self.started = None
        prepared: Iterable[Batch] = self.objective.step_batches(batches, self.module, self.world)
        if self.objective.updates > 1:
            prepared = list(prepared)
        for update in range(self.objective.updates):
            if total is None or update > 0:
                total = self.sum_gradients(prepared, len(batches), tokens, may_stop=update == 0)
            if total is None:
                self.restore_buffers(step.buffers)
                return False
            measured = self.update_weights(total, step.rate)
        self.fetch_next()
        read_numbers = start_copy_to_host(measured)
        self.start_next_step(step)
        numbers = read_numbers()  # waits for the GPU
        if numbers[-1] and self.started is not None:
            self.restore_gradients(step, batches)
        self.end_step(step, batches, numbers, seconds=time.perf_counter() - began)
        return True

    def start_next_step(self, step: Step) -> None:
        """Give the GPU the gradients of the step after this one to compute, if it may start early."""
        if self.next_batches is None or not self.may_start_early(step):
            return
        batches, tokens = self.next_batches
        following = self.begin_step(tokens, number=step.number + 1)
        total = self.sum_gradients(batches, len(batches), tokens)
        self.started = None if total is None else (following, total)

    def may_start_early(self, step: Step) -> bool:
        """Whether nothing before the end of this step can notice that the gradients of the next one are computed."""
        settings, objective = self.recipe.train, self.objective
        due = step.number % settings.validate_every == 0 or step.number % settings.save_every == 0
        own_batches = type(objective).step_batches is not Objective.step_batches
        changes = bool(step.buffers) or any(getattr(callback, "uses_model", True) for callback in self.callbacks)
        noticed = due or own_batches or changes or bool(objective.metrics) or self.scale.enabled
        return self.world.is_single_gpu and not noticed

    def restore_gradients(self, step: Step, batches: list[Batch]) -> None:
        """Compute this step's gradients again, in place of those of the next step."""
        self.started = None
        self.begin_step(step.tokens, number=step.number)
        self.sum_gradients(batches, len(batches), step.tokens, may_stop=False)
        self.clip_gradients()

    def begin_step(self, tokens: int, *, number: int | None = None) -> Step:
        """Seed the random numbers of a step, by default of the next one."""
        number = self.state.step + 1 if number is None else number
        torch.manual_seed(int(random_numbers(1, self.recipe.train.seed, number, self.world.rank)[0]) >> 1)
        self.objective.train()
        self.objective.metrics.clear()
        rate = self.recipe.peak_learning_rate * self.recipe.lr_schedule(number)
        return Step(number, rate, tokens, [buffer.clone() for buffer in self.model.buffers()])

    def sum_gradients(
        self, batches: Iterable[Batch], count: int, tokens: int, *, may_stop: bool = True
    ) -> Tensor | None:
        """Compute the gradients of `count` batches and return their summed loss; None if a signal came before."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.world.device)
        for number, batch in enumerate(batches):
            if may_stop and self.interrupted and self.world.size == 1:
                return None
            with gradient_sync(self.module, now=number == count - 1):
                batch_loss = self.module(batch)
                (batch_loss * (self.scale.value * self.world.size / max(1, tokens))).backward()
            total += batch_loss.detach()
        return total

    def update_weights(self, total: Tensor, rate: float) -> Tensor:
        """Clip and apply the gradients if they are finite. Returns loss, norm and 1.0 if it was skipped."""
        norm = self.clip_gradients()
        bad = self.world.largest((~(total + norm).isfinite()).float())
        self.optimizer.step(rate, skip=bad)
        return torch.stack([total, norm.to(total), bad])

    def clip_gradients(self) -> Tensor:
        """Clip the gradients; returns their norm before."""
        norm = self.optimizer.grad_norm() / self.scale.value
        self.optimizer.unscale_and_clip(norm, self.recipe.train.max_grad_norm, self.scale.value)
        return norm

    def end_step(self, step: Step, batches: list[Batch], numbers: Sequence[float], *, seconds: float) -> None:
        """Count and report a step whose `update_weights` returned these numbers; DivergedError if it was one too many
        that is not finite."""
        state, (total_loss, norm, skipped) = self.state, numbers
        (total_loss,) = self.world.sum(total_loss)
        metrics = self.objective.metrics.take(self.world)
        state.step, state.tokens = step.number, state.tokens + step.tokens
        if not skipped:
            self.average.update()
            state.bad = 0
            self.scale.update(finite=True)
        else:
            try:
                self.skip_step(batches)
            finally:
                self.restore_buffers(step.buffers)
        state.seconds += seconds
        loss = total_loss / max(1, step.tokens)
        self.log.step(state, loss=loss, norm=norm, rate=step.rate, speed=step.tokens / seconds, metrics=metrics)
        self.notify(
            TrainEvent(step.number, self.model, loss=loss, learning_rate=step.rate, tokens=step.tokens, metrics=metrics)
        )

    def notify(self, event: TrainEvent) -> None:
        for callback in self.callbacks if self.world.main else ():
            callback(event)

    def restore_buffers(self, buffers: list[Tensor]) -> None:
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def skip_step(self, batches: list[Batch]) -> None:
        """Count and report a non-finite step, which is not applied; too many in a row end the run."""
        if self.scale.update(finite=False):
            return
        state, settings = self.state, self.recipe.train
        state.bad += 1
        where = find_non_finite(self.module, batches)
        self.log.info(f"Step {state.step:,} was not finite (NaN or infinity), first in {where}. It was skipped.")
        if state.bad >= settings.max_bad_steps:
            raise DivergedError(
                f"{pluralize(state.bad, 'step')} in a row were not finite (NaN or infinity), first in {where}. They "
                f"were not saved; {self.checkpoints.last_good}. Lower optimizer.learning_rate or lengthen "
                "schedule.warmup."
            )

    def validate(self) -> None:
        """Compute the validation loss, and save the weights if they are the best so far."""
        self.objective.metrics.clear()
        with self.evaluator.eval_mode():
            loss = self.evaluator.loss(stop=lambda: self.world.sum(self.interrupted)[0] > 0)
            if loss is not None:
                self.end_validation(loss)

    def end_validation(self, loss: float) -> None:
        """Report this validation loss, and save the weights if it is the lowest so far; in eval mode."""
        state, metrics = self.state, self.objective.metrics.take(self.world)
        state.judged = state.step
        best = math.isfinite(loss) and (state.best is None or loss < state.best)
        state.waited = 0 if best else state.waited + 1
        bytes_a_token, scores = self.data.bytes_a_token, self.scores()
        self.log.validation(state.step, loss, bytes_a_token=bytes_a_token, best=best, metrics=metrics, scores=scores)
        if best:
            self.check_finite()
            if self.keep_going_if_disk_full(self.keep_best):  # state.best is the loss of the weights in best/
                state.best = loss
        for line in self.samples():
            self.log.show(line)
        self.notify(TrainEvent(state.step, self.model, validation_loss=loss, metrics=metrics))

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
            self.keep_going_if_disk_full(write)

    def check_finite(self) -> None:
        """Raise DivergedError before non-finite weights, which an optimizer step can produce, overwrite good ones."""
        averages = {f"{name} (moving average)": tensor for name, tensor in self.average.tensors.items()}
        bad = first_non_finite_tensor({**self.result.tensors(), **averages})
        if not self.world.sum(float(bad is not None))[0]:
            return
        settings = self.recipe.optimizer
        epsilon = "" if settings.kind == "sgd" else f", raise optimizer.epsilon (it is {settings.epsilon:g})"
        raise DivergedError(
            f"Step {self.state.step:,} was not saved: its weights are not finite, first in "
            f"{bad or 'the part of another process'}; {self.checkpoints.last_good}. Lower optimizer.learning_rate "
            f"(the peak is {self.recipe.peak_learning_rate:g}){epsilon} or lengthen schedule.warmup, then continue "
            "with --resume."
        )

    def keep_going_if_disk_full(self, write: Callable[[], object]) -> bool:
        """Call `write`; returns False if the disk is full, since there may be space later."""
        try:
            write()
        except StorageError as error:
            self.log.info(f"{error} Training continues; earlier checkpoints are kept.")
            return False
        return True

    @property
    def interrupted(self) -> bool:
        return self.interrupt.signal is not None
