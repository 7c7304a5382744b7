"""Training objectives, summed over tokens.

    next token     −log P(w_{t+1} | w_1 … w_t)
    masked token   −log P(w_t | the rest), where w_t is masked
    translation    −log P(y_t | x, y_1 … y_{t−1}), with label smoothing ε

The sum is divided once, by the tokens of all batches and processes of a step, so that several small batches equal one
large batch exactly. Labels of −100 are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.data.batches import IGNORE
from chumoku.errors import UsageError
from chumoku.models.model import Model, Output
from chumoku.nn import masks
from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.plain import plain_formulas
from chumoku.training.metrics import Metrics

if TYPE_CHECKING:
    from chumoku.training.distributed import World


def count_labels(batch: dict[str, Tensor]) -> int:
    """The number of terms of a batch's loss: `terms` (1 for each, 0 for padding), or tokens or texts with labels."""
    if "terms" in batch:
        return int(batch["terms"].sum())
    return int((batch["labels"] != IGNORE).sum())


def token_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy summed over all tokens, in float32: logits [B, T, V], labels [B, T]."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if has_kernels(logits) and not plain_formulas():
        from chumoku.training.loss_kernel import token_losses

        losses: Tensor = token_losses(logits, labels, label_smoothing)[0]
        return losses.sum()
    return F.cross_entropy(
        logits.float(),
        labels,
        ignore_index=IGNORE,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def joined_loss(
    model: Model, hidden: Tensor, labels: Tensor, label_smoothing: float, *, fp8: bool = False
) -> Tensor | None:
    """`token_loss` of hidden vectors [B, T, D], by a kernel that includes the output product; None if it cannot.

    Only in compiled training, because there the logits that nobody reads are not computed.
    """
    if not (torch.compiler.is_compiling() and torch.is_grad_enabled() and has_kernels(hidden)) or plain_formulas():
        return None
    product = model.output_product(hidden)
    if product is None:
        return None
    x, weight, bias = product
    if fp8:
        from chumoku.training.loss_kernel_fp8 import linear_losses_fp8

        return linear_losses_fp8(x.flatten(0, 1), weight, bias, labels.flatten(), label_smoothing).sum()
    from chumoku.training.loss_kernel import linear_losses

    losses: Tensor = linear_losses(x.flatten(0, 1), weight, bias, labels.flatten(), label_smoothing)[0]
    return losses.sum()


class Objective(nn.Module):
    """Batch → summed loss of a model. In eval mode, plain cross-entropy without smoothing and router losses."""

    reads_logits = False  # whether `loss` needs the logits for more than the loss of the labels

    def __init__(
        self, model: Model, *, label_smoothing: float = 0.0, balance_loss: float = 0.0, router_z_loss: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise UsageError(f"A label smoothing of {label_smoothing} is not possible; choose 0 or more, below 1.")
        self.model, self.label_smoothing = model, label_smoothing
        self.balance_loss, self.router_z_loss = balance_loss, router_z_loss
        self.token_loss = token_loss
        self.fp8_output = False  # whether the product with the output matrix is computed in 8 bits
        self.metrics = Metrics()
        self.updates = 1  # weight updates of a step
        self.validate_first = False  # whether a run validates before its first step

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        output = forward(self.model, batch)
        if output.logits is None:
            raise UsageError("This model outputs vectors, not logits, so it has no loss. Train with head = 'masked'.")
        total = self.loss(output.logits, output.hidden, batch)
        if output.losses is not None:
            routers = self.balance_loss * output.losses.balance + self.router_z_loss * output.losses.z
            total = total + routers * (batch["labels"] != IGNORE).sum()
        return total

    def loss(self, logits: Tensor, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The summed loss of these logits, which are those of `hidden`, without the losses of routers."""
        smoothing = self.label_smoothing if self.training else 0.0
        if self.token_loss is token_loss and not self.reads_logits:
            joined = joined_loss(self.model, hidden, batch["labels"], smoothing, fp8=self.fp8_output)
            if joined is not None:
                return joined
        return self.token_loss(logits, batch["labels"], smoothing)

    def step_batches(
        self, batches: list[dict[str, Tensor]], module: nn.Module, world: World
    ) -> Iterator[dict[str, Tensor]]:
        """The batches of a step, for `module`, which is this objective wrapped; the loss of each is independent."""
        yield from batches


def forward(model: Model, batch: dict[str, Tensor]) -> Output:
    """The output of a model of any kind for a batch of `chumoku.data.batches`."""
    output: Output
    if "source_starts" in batch:
        packing = {name: batch[name] for name in ("source_starts", "target_starts")}
        output = model(batch["source"], batch["target"], **packing)
    elif "source" in batch:
        # Causal attention never sees the padding after a target, so only routers, which count tokens, need the mask.
        real = batch["labels"] != IGNORE if model.config.experts else None
        output = model(batch["source"], batch["target"], source_mask=batch.get("source_mask"), target_mask=real)
    elif "documents" in batch:
        output = model(batch["tokens"], mask=masks.same_document(batch["documents"]), positions=batch["positions"])
    else:
        output = model(batch["tokens"], mask=batch.get("mask"))
    return output
