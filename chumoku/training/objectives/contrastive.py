"""The contrastive objective of sentence encoders (InfoNCE): each anchor finds its positive among the texts of a step.

    s_ij = cos(a_i, c_j) / τ                          c: the positives of all rows, then their negatives
    loss_i = −log( exp(s_ii) / Σ_j exp(s_ij) )        j: i itself, and every candidate that is not a false negative
    both directions: the mean of this and of the same with anchors and positives swapped
    widths w: Σ_w of the loss with the first w elements of each vector (Matryoshka)

This is sentence-transformers' MultipleNegativesRankingLoss with scale = 1 / τ. Row j is a false negative of row i if
both have the same group: an equal or similar anchor or positive.

The negatives are all rows of a step, however it is divided into batches and processes. Since no batch knows the others'
vectors v, a step of several batches runs in two passes (GradCache):

    1. all v without gradients, gathered from all processes;  g = ∂ Σ_i loss_i / ∂v
    2. batch by batch, with the same dropout:  backward of v · g, which is the gradient of the sum

In eval mode the negatives are those of the batch, and the loss is that of the full width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.data.sentences import SIDES
from chumoku.errors import UsageError
from chumoku.models.model import EncoderModel, Model
from chumoku.training.objectives.token_prediction import Objective

if TYPE_CHECKING:
    from chumoku.training.distributed import World

Batch = dict[str, Tensor]
EMBED_ONLY = "embed_only"  # a batch with this key: the objective returns the vectors instead of the loss


def contrastive_losses(vectors: Tensor, groups: Tensor, *, temperature: float, both_directions: bool = False) -> Tensor:
    """The loss of each row [N].

    vectors    [N, 2, D] anchors and positives, or [N, 3, D] with negatives
    groups     [N, 1] of the rows, or [N, 2] also of the negatives
    """
    directions = F.normalize(vectors, dim=-1)
    anchors, candidates = directions[:, 0], directions[:, 1:].transpose(0, 1).flatten(0, 1)
    excluded = (groups[:, :1, None] == groups.T[None]).flatten(1)
    rows = torch.arange(len(vectors), device=vectors.device)
    for place in range(groups.shape[1]):
        excluded[rows, place * len(rows) + rows] = False  # its own positive and negative
    scores = (anchors @ candidates.T / temperature).masked_fill(excluded, -torch.inf)
    losses = F.cross_entropy(scores, rows, reduction="none")
    if both_directions:
        losses = (losses + F.cross_entropy(scores[:, : len(rows)].T, rows, reduction="none")) / 2
    return losses


class ContrastiveObjective(Objective):
    """Batch of `chumoku.data.sentence_batches` → loss summed over its rows.

    widths    also train the first elements of each vector as vectors of their own; None: the full width only
    """

    def __init__(
        self,
        model: Model,
        *,
        temperature: float = 0.05,
        both_directions: bool = False,
        widths: Sequence[int] | None = None,
        balance_loss: float = 0.0,
        router_z_loss: float = 0.0,
    ) -> None:
        super().__init__(model, balance_loss=balance_loss, router_z_loss=router_z_loss)
        if not isinstance(model, EncoderModel):
            raise UsageError("The contrastive objective needs a model of kind 'encoder', which outputs vectors.")
        self.temperature, self.both_directions = temperature, both_directions
        self.widths = tuple(widths or (model.config.width,))

    def forward(self, batch: Batch) -> Tensor:
        vectors, router_loss = self.embed(batch)
        if EMBED_ONLY in batch:
            return vectors
        if "gradient" in batch:  # of the loss of the step with respect to these vectors
            product = (vectors * batch["gradient"]).sum()
            loss = product + (batch["loss"] - product).detach()
        else:
            loss = self.losses(vectors, row_groups(batch)).sum()
        return loss if router_loss is None else loss + router_loss * len(vectors)

    def embed(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The vectors [B, 2 or 3, D] of a batch in float32, and the weighted loss of its routers if it has experts."""
        outputs = [self.model(batch[side], mask=batch.get(f"{side}_mask")) for side in SIDES if side in batch]
        vectors = torch.stack([output.vector for output in outputs], 1)
        routers = [
            self.balance_loss * output.losses.balance + self.router_z_loss * output.losses.z
            for output in outputs
            if output.losses is not None
        ]
        wide = vectors if vectors.dtype == torch.float64 else vectors.float()
        return wide, torch.stack(routers).mean() if routers else None

    def losses(self, vectors: Tensor, groups: Tensor) -> Tensor:
        """The loss of each row; in training, summed over the widths."""
        widths = self.widths if self.training else (vectors.shape[-1],)
        options: dict[str, Any] = {"temperature": self.temperature, "both_directions": self.both_directions}
        return torch.stack([contrastive_losses(vectors[..., :width], groups, **options) for width in widths]).sum(0)

    def step_batches(self, batches: list[Batch], module: nn.Module, world: World) -> Iterator[Batch]:
        """The batches of a step, each with the gradient of the step's loss with respect to its vectors."""
        if len(batches) == world.size == 1:
            yield from batches
            return
        seeds = torch.randint(1 << 62, (len(batches),)).tolist()
        parts: list[Tensor] = []
        with torch.no_grad():
            for seed, batch in zip(seeds, batches, strict=True):
                torch.manual_seed(seed)
                parts.append(module({**batch, EMBED_ONLY: batch["terms"]}))
        vectors, first = world.gather_rows(torch.cat(parts))
        groups, _ = world.gather_rows(torch.cat([row_groups(batch) for batch in batches]))
        losses = self.losses(vectors.requires_grad_(), groups)
        (gradient,) = torch.autograd.grad(losses.sum(), vectors)
        for seed, batch in zip(seeds, batches, strict=True):
            rows = slice(first, first := first + len(batch["terms"]))
            torch.manual_seed(seed)
            yield {**batch, "gradient": gradient[rows], "loss": losses[rows].detach().sum()}


def row_groups(batch: Batch) -> Tensor:
    """The groups of a batch's rows, [B, 1], or with those of their negatives, [B, 2]."""
    return torch.stack([batch[name] for name in ("group", "negative_group") if name in batch], 1)
