"""The forward and backward pass of several runs at once.

    Σ_i loss_i(w_i, x_i) / tokens_i     one backward pass; the gradient of run i is that of its own term

Each weight of all runs is one tensor [N, …], and torch.vmap calls the model once. The parameters of a run's own model
are views of its slices, so its optimizer, moving average and checkpoints work as in a run of its own. Attention is
PyTorch's formula instead of a fused kernel: those do not see under torch.vmap that a gradient is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from chumoku.nn.ensemble import DropoutCall, ensemble
from chumoku.nn.modules import unwrap_compiled
from chumoku.training.loop import Batch, Run, Step
from chumoku.training.objectives import count_labels


class Ensemble:
    """Runs whose models and batches have the same shapes."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.device = list(runs), runs[0].world.device
        self.module = unwrap_compiled(runs[0].module)
        self._own = [dict(unwrap_compiled(run.module).named_parameters()) for run in runs]
        self._weights = {
            name: torch.stack([own[name].detach() for own in self._own]).requires_grad_() for name in self._own[0]
        }
        for number, own in enumerate(self._own):
            for name, parameter in own.items():
                parameter.data = self._weights[name].detach()[number]
        self._training_losses = self._prepare(torch.vmap(self._loss))
        self._validation_losses = self._prepare(torch.vmap(self._loss, in_dims=(0, None, None)))
        self._dropout_calls: dict[Any, list[DropoutCall]] = {}  # by the shapes of a batch

    def take_step(self) -> list[tuple[Step, Tensor]]:
        """Take the next step of all runs. Returns each as it began, and what its `Run.update_weights` returned."""
        batches, steps, masks = [], [], []
        for run in self.runs:
            own_batches, labels = run.next_batches or ([], 0)
            steps.append(run.begin_step(labels))  # seeds the random numbers of the masks
            batches.append(own_batches)
            masks.append([self._draw_masks(batch) for batch in own_batches])
        scales = [run.scale.value / max(1, step.tokens) for run, step in zip(self.runs, steps, strict=True)]
        totals = self._sum_gradients(batches, masks, torch.tensor(scales).to(self.device))
        for number, own in enumerate(self._own):
            for name, parameter in own.items():
                gradient = self._weights[name].grad
                parameter.grad = None if gradient is None else gradient[number]
        totals_by_run = zip(self.runs, steps, totals.unbind(), strict=True)
        return [(step, run.update_weights(total, step.rate)) for run, step, total in totals_by_run]

    def _sum_gradients(self, batches: list[list[Batch]], masks: list[list[list[Tensor]]], scales: Tensor) -> Tensor:
        """Compute the gradients and return each run's summed loss; the lists are by run, then by batch."""
        for weight in self._weights.values():
            weight.grad = None
        totals = torch.zeros(len(self.runs), device=self.device)
        for parts, calls in zip(zip(*batches, strict=True), zip(*masks, strict=True), strict=True):
            batch = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
            drawn = [torch.stack(same_call) for same_call in zip(*calls, strict=True)]
            with sdpa_kernel(SDPBackend.MATH):
                losses = self._training_losses(self._weights, batch, drawn)
                (losses * scales).sum().backward()  # type: ignore[no-untyped-call]
            totals += losses.detach()
        return totals

    @torch.no_grad()
    def validation_losses(self, *, stop: Callable[[], bool]) -> list[float] | None:
        """The validation loss of each run, with all in eval mode, as `Evaluator.loss`; None if `stop` returned True."""
        evaluator = self.runs[0].evaluator
        totals, tokens = [0.0] * len(self.runs), 0
        for number in range(min(len(evaluator.batches), evaluator.max_batches or len(evaluator.batches))):
            if stop():
                return None
            batch = evaluator.batches.batch(0, number)
            with sdpa_kernel(SDPBackend.MATH):
                losses = self._validation_losses(self._weights, evaluator.world.to_device(batch), []).tolist()
            totals = [total + loss for total, loss in zip(totals, losses, strict=True)]
            tokens += count_labels(batch)
        return [total / max(1, tokens) for total in totals]

    def _prepare(self, losses: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Compile the function if the recipe says so, as a whole: vmap cannot be divided."""
        if not self.runs[0].recipe.train.compile:
            return losses
        torch.compiler.reset()  # else the eighth group of a process would reach the limit of its versions
        return torch.compile(losses, fullgraph=True)

    def _loss(self, weights: dict[str, Tensor], batch: Batch, masks: list[Tensor]) -> Tensor:
        remaining = iter(masks)
        with ensemble(lambda x, p: next(remaining)):
            # A tied table is one module under two names, as in `precision.Cast`.
            return functional_call(self.module, weights, (batch,), tie_weights=False)  # type: ignore[no-any-return]

    def _draw_masks(self, batch: Batch) -> list[Tensor]:
        """The dropout masks of a batch: on a CPU the ones that a run of its own draws, with the same seed."""
        shapes = tuple((name, table.shape) for name, table in batch.items())
        if shapes not in self._dropout_calls:
            self._dropout_calls[shapes] = self._find_dropout_calls(batch)
        return [
            F.dropout(torch.ones(shape, dtype=dtype, device=self.device), p)
            for shape, dtype, p in self._dropout_calls[shapes]
        ]

    @torch.no_grad()
    def _find_dropout_calls(self, batch: Batch) -> list[DropoutCall]:
        calls = []

        def remember(x: Tensor, p: float) -> Tensor:
            calls.append(DropoutCall(x.shape, x.dtype, p))
            return torch.ones_like(x)

        with ensemble(remember):
            self.module(batch)
        return calls
