"""Read-ahead: on a GPU, the next step starts before the host has read the tokens of this one.

    device    logits n → tokens n → step n + 1 → logits n + 1 …       one queue, never empty
    host           copy of tokens n arrives → events of tokens n → queue tokens n + 1 and step n + 2

Tokens go from the sampler to the engine on the device. The host gets a copy of them through pinned memory, and handles
it while the device computes. A row that turns out to have ended has computed one step too many, and is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.batch import upload


class NextLogits(NamedTuple):
    """The logits from which the next tokens are sampled [n, V]."""

    values: Tensor
    most_likely: Tensor | None = None  # `Engine.most_likely` of these rows

    def select_rows(self, rows: Sequence[int]) -> NextLogits:
        index = upload(rows, self.values.device)
        return NextLogits(self.values[index], None if self.most_likely is None else self.most_likely[index])

    def append(self, logits: Tensor) -> NextLogits:
        return NextLogits(torch.cat([self.values, logits]))


class HostTokens:
    """A copy of tokens to the host; from a GPU it is asynchronous, while the next step is computed."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens
        self._ready: torch.cuda.Event | None = None
        if tokens.is_cuda:
            self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def wait(self) -> list[int]:
        if self._ready is not None:
            self._ready.synchronize()
        return self._tokens.tolist()


def arrive_later(tokens: Tensor) -> bool:
    """Whether the copy of tokens to the host is asynchronous."""
    return tokens.is_cuda
