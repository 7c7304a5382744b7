"""Speculative decoding: a small model proposes tokens, the large one checks them in one pass (Leviathan, 2022).

    draft       x₁ ~ q₁, x₂ ~ q₂ … x_k ~ q_k            one small step each
    target      p₁ … p_{k+1}                            one large step for all
    accept xᵢ   with probability min(1, pᵢ(xᵢ) / qᵢ(xᵢ)); at a rejection, y ~ max(0, pᵢ − qᵢ) / Σ max(0, pᵢ − qᵢ)
    if all are accepted: y ~ p_{k+1}

Then every token is distributed as p: min(p, q) + (1 − Σ min(p, q)) · max(0, p − q) / Σ max(0, p − q) = p. p and q are
the distributions after the request's `SamplingOptions`. Greedy decoding gives the same text as without a draft;
sampling gives another text of the same distribution. k doubles while all proposals are accepted, else it becomes the
number of accepted ones plus one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from chumoku.data.order import generator
from chumoku.decoding.batch_sampling import SamplerState
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.sampling import SamplingOptions, process_logits, widest_float
from chumoku.decoding.scheduler import Request
from chumoku.decoding.top_k import reached
from chumoku.errors import ChumokuError, UsageError
from chumoku.models.config import ROLLBACK

PROPOSALS = 8  # at most


def speculate(request: Request, *, target: Engine, draft: Engine, proposals: int = PROPOSALS) -> Iterator[int]:
    """The tokens generated for a request, with two engines that must not be used elsewhere at the same time."""
    if target.vocabulary != draft.vocabulary:
        raise UsageError(
            f"Draft and target need the same vocabulary: the draft has {draft.vocabulary:,} tokens, the target "
            f"{target.vocabulary:,}."
        )
    if not 1 <= proposals <= ROLLBACK or request.max_new_tokens < 0 or not request.prompt:
        raise UsageError(
            f"A prompt needs 1 token or more, max_new_tokens must be 0 or more, and proposals 1 to {ROLLBACK}."
        )
    room = min(request.max_new_tokens, min(target.capacity, draft.capacity) - len(request.prompt))
    return Speculation(request, target, draft).tokens(room, proposals)


class Speculation:
    """The state of one text in both engines."""

    def __init__(self, request: Request, target: Engine, draft: Engine) -> None:
        self.request, self.target, self.draft = request, target, draft
        self.options = request.sampling
        SamplerState(  # only for its checks
            self.options,
            vocabulary=target.vocabulary,
            prompt=request.prompt,
            end=request.end,
            min_new_tokens=request.min_new_tokens,
        )
        self.random = generator(self.options.seed, self.options.row)
        self.text = list(request.prompt)

    def tokens(self, room: int, most: int) -> Iterator[int]:
        for engine in (self.target, self.draft):
            engine.select_rows([])
            engine.add_rows(1, None if self.request.source is None else [self.request.source])
        if len(self.text) > 1:
            # The last token is computed together with the first proposals.
            self.target.prefill([self.text[:-1]])
        proposals, generated = 1, 0
        while generated < room:
            count = min(proposals, room - generated - 1)
            accepted = self.round(count)
            proposals = min(most, 2 * proposals) if len(accepted) > count else len(accepted)
            for token in accepted:
                if token in self.request.end:
                    return
                generated += 1
                yield token

    def round(self, count: int) -> list[int]:
        """The accepted ones of up to `count` proposals, and one more token."""
        proposed, draft_probs = self._propose(count)
        tokens = torch.tensor([[self.text[-1], *proposed]], device=self.target.device)
        logits = self.target.extend(tokens)[0]
        accepted: list[int] = []
        for place in range(count + 1):
            expected = self._distribution(logits[place], accepted)
            if place < count and accepts(expected, draft_probs[place], proposed[place], self.random.random()):
                accepted.append(proposed[place])
                continue
            shares = remainder(expected, draft_probs[place]) if place < count else expected
            accepted.append(draw(shares, self.random))
            break
        self.text += accepted
        # Remove rejected tokens from the caches; the last token is computed in the next round.
        length = len(self.text) - 1
        self.target.truncate([length])
        self.draft.truncate([min(length, self.draft.lengths[0])])
        return accepted

    def _propose(self, count: int) -> tuple[list[int], list[Tensor]]:
        """Tokens of the draft, and the distribution each was drawn from."""
        proposed: list[int] = []
        distributions: list[Tensor] = []
        for _ in range(count):
            unread = [*self.text, *proposed][self.draft.lengths[0] :]
            distributions.append(self._distribution(self.draft.prefill([unread])[0], proposed))
            proposed.append(draw(distributions[-1], self.random))
        return proposed, distributions

    def _distribution(self, logits: Tensor, following: Sequence[int]) -> Tensor:
        seen = [*self.text, *following]
        generated = seen[len(self.request.prompt) :]
        also_forbidden = self.request.end if len(generated) < self.request.min_new_tokens else ()
        return distribution(logits, self.options, seen, generated, also_forbidden)


@torch.inference_mode()
def distribution(
    logits: Tensor,
    options: SamplingOptions,
    seen: Sequence[int],
    generated: Sequence[int],
    also_forbidden: Sequence[int],
) -> Tensor:
    """The probabilities [V] by which a token is sampled from logits [V]."""
    logits = logits.to(widest_float(logits.device))
    seen_mask = torch.zeros_like(logits, dtype=torch.bool)
    counts: Tensor | None = None
    if options.penalizes_seen:
        seen_mask[torch.tensor(seen, device=logits.device)] = True
    if options.frequency_penalty:
        tokens = torch.tensor([*generated], dtype=torch.int64, device=logits.device)
        counts = torch.bincount(tokens, minlength=len(logits))
    return process_logits(logits, options, seen=seen_mask, counts=counts, also_forbidden=also_forbidden).softmax(-1)


def accepts(expected: Tensor, drafted: Tensor, token: int, point: float) -> bool:
    """Whether the target accepts a token of the draft; always if it finds it more likely than the draft does."""
    return point * float(drafted[token]) < float(expected[token])


def remainder(expected: Tensor, drafted: Tensor) -> Tensor:
    """max(0, p − q), to draw from after a rejection."""
    rest = (expected - drafted).clamp(min=0)
    # If p and q are equal up to rounding, nothing is left; then p itself is right.
    return rest if bool(rest.any()) else expected


def draw(shares: Tensor, random: np.random.Generator) -> int:
    if not bool(shares.isfinite().all()):
        raise ChumokuError("The model's logits are not finite numbers, so no token can be chosen.")
    return int(reached(shares[None], shares.new_tensor([random.random()])))
