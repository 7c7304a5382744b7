"""The Transformer block: attention, then feed-forward, each with a residual connection.

pre    x ← x + f(norm(x))
post   x ← norm(x + f(x))          for f = attention, cross-attention (decoders with an encoder), feed-forward
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.attention import UNMASKED, Attention, AttentionContext
from chumoku.nn.cache import KeyValue, LayerCache
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.moe import MixtureOfExperts, RouterLosses
from chumoku.nn.tap import tap

Placement = Literal["pre", "post"]


class Block(nn.Module):
    """One block built from the given parts: [B, T, D] → [B, T, D].

    norm: creates one norm; it is called once per sublayer.
    placement: "pre" normalizes the input of each sublayer, "post" the sum after it.
    dropout: dropout on the output of each sublayer, before it is added to x.
    """

    TAPS: tuple[str, ...] = (
        *("attention_norm", "after_attention", "cross_attention_norm", "after_cross_attention"),
        *("feedforward_norm", "output"),
    )

    def __init__(
        self,
        attention: Attention,
        feedforward: FeedForward | MixtureOfExperts,
        *,
        norm: Callable[[], nn.Module],
        placement: Placement = "pre",
        cross_attention: Attention | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.placement, self.dropout = placement, dropout
        self.attention_norm = norm()
        self.attention = attention
        self.cross_attention_norm = norm() if cross_attention is not None else None
        self.cross_attention = cross_attention
        self.feedforward_norm = norm()
        self.feedforward = feedforward
        if cross_attention is None:
            self.TAPS = tuple(name for name in self.TAPS if "cross" not in name)

    def forward(
        self,
        x: Tensor,
        *,
        context: AttentionContext = UNMASKED,
        memory: Tensor | KeyValue | None = None,
        memory_context: AttentionContext = UNMASKED,
        cache: LayerCache | None = None,
        losses: RouterLosses | None = None,
    ) -> Tensor:
        """Apply the block to x; `memory` is what cross-attention attends to, `losses` collects the routers' losses."""
        x = self._residual(x, "attention_norm", lambda y: self.attention(y, context=context, cache=cache))
        x = tap(self, "after_attention", x)
        cross = self.cross_attention
        if cross is not None:
            if memory is None:
                raise ShapeError("This block has cross-attention and needs an encoder output: pass memory.")
            x = self._residual(x, "cross_attention_norm", lambda y: cross(y, memory, context=memory_context))
            x = tap(self, "after_cross_attention", x)
        x = self._residual(x, "feedforward_norm", lambda y: self._feedforward(y, losses))
        return tap(self, "output", x)

    def extra_repr(self) -> str:
        return f"placement={self.placement}, dropout={self.dropout}"

    def _residual(self, x: Tensor, norm_name: str, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        norm = getattr(self, norm_name)
        if self.placement == "pre":
            return x + self._drop(sublayer(tap(self, norm_name, norm(x))))
        return tap(self, norm_name, norm(x + self._drop(sublayer(x))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _feedforward(self, x: Tensor, losses: RouterLosses | None) -> Tensor:
        if isinstance(self.feedforward, MixtureOfExperts):
            return self.feedforward(x, losses)  # type: ignore[no-any-return]
        return self.feedforward(x)  # type: ignore[no-any-return]
