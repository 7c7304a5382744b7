"""Speculative decoding: a small model proposes, the large one judges several tokens in one pass (Leviathan, 2022).

    draft       x₁ ~ q₁, x₂ ~ q₂ … x_k ~ q_k            one small step each
    target      p₁ … p_{k+1}                            one large step for all
    accept xᵢ   with chance min(1, pᵢ(xᵢ) / qᵢ(xᵢ));    at the first refusal, y ~ max(0, pᵢ − qᵢ) / Σ max(0, pᵢ − qᵢ)
    all of them accepted: y ~ p_{k+1}

Then every token is distributed as p says: min(p, q) + (1 − Σ min(p, q)) · max(0, p − q) / Σ max(0, p − q) = p. Both are
what the request's `Choice` makes of the logits. Greedy, the text is the greedy one; otherwise it is another text than
without a draft, of the same distribution. k doubles while all are accepted, and falls back to what was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from chumoku.data.order import generator
from chumoku.decoding.batch_sampling import Voice
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.sampling import Choice, precise, shaped
from chumoku.decoding.scheduler import Request
from chumoku.decoding.top_k import reached
from chumoku.errors import ChumokuError, UsageError

PROPOSALS = 8  # at most


def speculate(request: Request, *, target: Engine, draft: Engine, proposals: int = PROPOSALS) -> Iterator[int]:
    """The tokens written for a request, over two engines that nobody else uses meanwhile."""
    if target.vocabulary != draft.vocabulary:
        raise UsageError(
            f"A draft must have its target's tokens: it has {draft.vocabulary:,}, and the target {target.vocabulary:,}."
        )
    if proposals < 1 or request.new < 0 or not request.prompt:
        raise UsageError("A prompt has a token or more, new is 0 or more, and a draft proposes 1 token or more.")
    room = min(request.new, min(target.capacity, draft.capacity) - len(request.prompt))
    return Speculation(request, target, draft).tokens(room, proposals)


class Speculation:
    """One text on its way through both engines."""

    def __init__(self, request: Request, target: Engine, draft: Engine) -> None:
        self.request, self.target, self.draft = request, target, draft
        # Checks what is named; how a text is chosen here is said below.
        Voice(request.choice, vocabulary=target.vocabulary, prompt=request.prompt, end=request.end, least=request.least)
        self.choice = request.choice
        self.random = generator(self.choice.seed, self.choice.row)
        self.text = list(request.prompt)

    def tokens(self, room: int, most: int) -> Iterator[int]:
        for engine in (self.target, self.draft):
            engine.take([])
            engine.enter(1, None if self.request.source is None else [self.request.source])
        if len(self.text) > 1:
            # The last token is read with the first proposals.
            self.target.read([self.text[:-1]])
        proposals, written = 1, 0
        while written < room:
            count = min(proposals, room - written - 1)
            agreed = self.round(count)
            proposals = min(most, 2 * proposals) if len(agreed) > count else len(agreed)
            for token in agreed:
                if token in self.request.end:
                    return
                written += 1
                yield token

    def round(self, count: int) -> list[int]:
        """Up to `count` proposals that were accepted, and one token more."""
        proposed, drafted = self._propose(count)
        tokens = torch.tensor([[self.text[-1], *proposed]], device=self.target.device)
        said = self.target.extend(tokens)[0]
        agreed: list[int] = []
        for place in range(count + 1):
            expected = self._chances(said[place], agreed)
            if place < count and accepts(expected, drafted[place], proposed[place], self.random.random()):
                agreed.append(proposed[place])
                continue
            shares = left(expected, drafted[place]) if place < count else expected
            agreed.append(drawn(shares, self.random))
            break
        self.text += agreed
        # What was refused is forgotten; the token just drawn is read in the next round.
        kept = len(self.text) - 1
        self.target.forget([kept])
        self.draft.forget([min(kept, self.draft.lengths[0])])
        return agreed

    def _propose(self, count: int) -> tuple[list[int], list[Tensor]]:
        """Tokens of the draft, and the chances each was drawn by."""
        proposed: list[int] = []
        chances: list[Tensor] = []
        for _ in range(count):
            unread = [*self.text, *proposed][self.draft.lengths[0] :]
            chances.append(self._chances(self.draft.read([unread])[0], proposed))
            proposed.append(drawn(chances[-1], self.random))
        return proposed, chances

    def _chances(self, logits: Tensor, behind: Sequence[int]) -> Tensor:
        written = len(self.text) + len(behind) - len(self.request.prompt)
        also = self.request.end if written < self.request.least else ()
        return chances(logits, self.choice, [*self.text, *behind] if self.choice.remembers else (), also)


@torch.inference_mode()
def chances(logits: Tensor, choice: Choice, seen: Sequence[int], also: Sequence[int]) -> Tensor:
    """The distribution [V] that a choice makes of logits [V]."""
    marked = torch.zeros_like(logits, dtype=torch.bool)
    if seen:
        marked[torch.tensor(seen, device=logits.device)] = True
    return shaped(logits.to(precise(logits.device)), choice, seen=marked, also=also).softmax(-1)


def accepts(expected: Tensor, drafted: Tensor, token: int, point: float) -> bool:
    """Whether the target takes a token of the draft: always where it finds it likelier."""
    return point * float(drafted[token]) < float(expected[token])


def left(expected: Tensor, drafted: Tensor) -> Tensor:
    """What the target expects beyond what the draft has proposed already."""
    rest = (expected - drafted).clamp(min=0)
    # Two that agree but for rounding leave nothing, and then one is as good as the other.
    return rest if bool(rest.any()) else expected


def drawn(shares: Tensor, random: np.random.Generator) -> int:
    if not bool(shares.isfinite().all()):
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    return int(reached(shares[None], shares.new_tensor([random.random()])))
