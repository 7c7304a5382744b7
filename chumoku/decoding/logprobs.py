"""How likely the tokens of a text were: log p of each, and of the likeliest there.

    log p(t) = l_t − log Σ exp(l)        of the model's own logits, before penalties, bias and temperature

Choosing overwrites logits, so rows that ask are measured before it, and told of their token after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Likelihood(NamedTuple):
    logprob: float  # of the token that was chosen
    top: list[tuple[int, float]]  # the likeliest tokens, likeliest first


class Measured:
    """What was measured of the rows that asked: `wanted` says for each row how many of the likeliest, or None."""

    def __init__(self, logits: Tensor, wanted: Sequence[int | None]) -> None:
        self._wanted = {row: count for row, count in enumerate(wanted) if count is not None}
        if not self._wanted:
            return
        self._rows = torch.tensor(list(self._wanted), device=logits.device)
        # In float32 at least: half precision tells likely tokens apart badly.
        asked = logits[self._rows]
        self._logprobs = asked.to(torch.promote_types(asked.dtype, torch.float32)).log_softmax(-1)

    def of(self, chosen: Tensor) -> dict[int, Likelihood]:
        """Row → how likely its token was."""
        if not self._wanted:
            return {}
        most = min(max(self._wanted.values()), self._logprobs.shape[-1])
        values, tokens = self._logprobs.topk(most)
        own = self._logprobs.gather(1, chosen[self._rows].clamp(min=0)[:, None])[:, 0]
        parts = zip(self._wanted.items(), own.tolist(), tokens.tolist(), values.tolist(), strict=True)
        return {
            row: Likelihood(logprob, list(zip(best, shares, strict=True))[:count])
            for (row, count), logprob, best, shares in parts
        }
