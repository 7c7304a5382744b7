"""Log probabilities of the generated tokens, and of the most likely tokens at each place.

    log p(t) = l_t − log Σ exp(l)        of the model's own logits, before penalties, bias and temperature

Sampling overwrites logits, so the log probabilities are computed before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Likelihood(NamedTuple):
    logprob: float  # of the token that was sampled
    top: list[tuple[int, float]]  # the most likely tokens, most likely first


class Logprobs:
    """Log probabilities of some rows. `wanted`: for each row how many of the most likely tokens to report, or None."""

    def __init__(self, logits: Tensor, wanted: Sequence[int | None]) -> None:
        self._wanted = {row: count for row, count in enumerate(wanted) if count is not None}
        if not self._wanted:
            return
        self._rows = torch.tensor(list(self._wanted), device=logits.device)
        # At least float32: half precision is too coarse.
        selected = logits[self._rows]
        self._logprobs = selected.to(torch.promote_types(selected.dtype, torch.float32)).log_softmax(-1)

    def of(self, tokens: Tensor) -> dict[int, Likelihood]:
        """Row → log probability of its token, for the rows that want it."""
        if not self._wanted:
            return {}
        most = min(max(self._wanted.values()), self._logprobs.shape[-1])
        values, best = self._logprobs.topk(most)
        own = self._logprobs.gather(1, tokens[self._rows].clamp(min=0)[:, None])[:, 0]
        parts = zip(self._wanted.items(), own.tolist(), best.tolist(), values.tolist(), strict=True)
        return {
            row: Likelihood(logprob, list(zip(top, logprobs, strict=True))[:count])
            for (row, count), logprob, top, logprobs in parts
        }
