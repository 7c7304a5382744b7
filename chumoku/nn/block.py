"""The Transformer block: attention, then feed-forward, each with a residual connection.

pre        x ← x + f(norm(x))
post       x ← norm(x + f(x))
output     x ← x + norm(f(x))
sandwich   x ← x + norm'(f(norm(x)))   for f = attention, cross-attention (decoders with an encoder), feed-forward

parallel   x ← x + attention(norm(x)) + feedforward(norm'(x))   with shared_norm, norm' = norm
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.attention import UNMASKED, Attention, AttentionContext
from chumoku.nn.cache import KeyValue, LayerCache, RollingLayer
from chumoku.nn.dropout import dropout
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.moe import MixtureOfExperts, RouterLosses
from chumoku.nn.residual import PendingSum
from chumoku.nn.tap import tap

Placement = Literal["pre", "post", "output", "sandwich"]


class Block(nn.Module):
    """One block built from the given parts: [B, T, D] → [B, T, D].

    norm: creates one norm; it is called once per sublayer, for "sandwich" twice.
    placement: "pre" normalizes the input of each sublayer, "post" the sum after it, "output" its output, "sandwich"
        its input and its output.
    parallel: attention and feed-forward both start from the block's input, and their outputs are added.
    shared_norm: both have the same norm.
    normalize_input: False for a block without a norm before its attention, because its input is normalized already.
    dropout: dropout on the output of each sublayer, before it is added to x.
    """

    TAPS: tuple[str, ...] = (
        *("attention_norm", "attention_output_norm", "after_attention"),
        *("cross_attention_norm", "cross_attention_output_norm", "after_cross_attention"),
        *("feedforward_norm", "feedforward_output_norm", "output"),
    )

    def __init__(
        self,
        attention: Attention,
        feedforward: FeedForward | MixtureOfExperts,
        *,
        norm: Callable[[], nn.Module],
        placement: Placement = "pre",
        parallel: bool = False,
        shared_norm: bool = False,
        normalize_input: bool = True,
        cross_attention: Attention | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if parallel and (placement == "post" or cross_attention is not None):
            raise ShapeError("Parallel sublayers need another placement than 'post', and no cross-attention.")
        self.placement, self.parallel, self.dropout = placement, parallel, dropout
        sandwich, cross = placement == "sandwich", cross_attention is not None
        self.attention_norm = norm() if normalize_input else nn.Identity()
        self.attention = attention
        self.attention_output_norm = norm() if sandwich else None
        self.cross_attention_norm = norm() if cross else None
        self.cross_attention = cross_attention
        self.cross_attention_output_norm = norm() if sandwich and cross else None
        self.feedforward_norm = None if shared_norm else norm()
        self.feedforward = feedforward
        self.feedforward_output_norm = norm() if sandwich else None
        absent = (("cross",) if not cross else ()) + (("output_norm",) if not sandwich else ())
        self.TAPS = tuple(name for name in self.TAPS if not any(part in name for part in absent))

    def forward(
        self,
        x: Tensor | PendingSum,
        *,
        context: AttentionContext = UNMASKED,
        memory: Tensor | KeyValue | None = None,
        memory_context: AttentionContext = UNMASKED,
        cache: LayerCache | RollingLayer | None = None,
        losses: RouterLosses | None = None,
    ) -> Tensor | PendingSum:
        """Apply the block to x; `memory` is what cross-attention attends to, `losses` collects the routers' losses.

        For a pending sum, with placement "pre", it returns another one.
        """
        start = x if self.parallel and isinstance(x, Tensor) else None
        x = self._residual(
            x, "attention", lambda y, **options: self.attention(y, context=context, cache=cache, **options)
        )
        x = self._tap_stream("after_attention", x)
        cross = self.cross_attention
        if cross is not None:
            if memory is None:
                raise ShapeError("This block has cross-attention and needs an encoder output: pass memory.")
            x = self._residual(
                x, "cross_attention", lambda y, **options: cross(y, memory, context=memory_context, **options)
            )
            x = self._tap_stream("after_cross_attention", x)
        x = self._residual(x, "feedforward", lambda y, **options: self._feedforward(y, losses, **options), start)
        return self._tap_stream("output", x)

    def extra_repr(self) -> str:
        parallel = ", parallel" if self.parallel else ""
        return f"placement={self.placement}{parallel}, dropout={self.dropout}"

    @property
    def can_defer_sums(self) -> bool:
        """Whether each sum is followed by a norm of it, so that the block can be given a pending sum."""
        return self.placement == "pre" and not self.parallel

    def _residual(
        self,
        x: Tensor | PendingSum,
        name: str,
        sublayer: Callable[..., Tensor],
        start: Tensor | None = None,
    ) -> Tensor | PendingSum:
        """Return x after adding what the sublayer computes from `start`, which is x unless sublayers are parallel."""
        if isinstance(x, PendingSum):
            x, y = x.normalize(self._find_norm(f"{name}_norm"))
            # The next block may add this bias. If FSDP has sharded this block, which makes its class a subclass, its
            # weights are freed before that.
            bias = last_bias(getattr(self, name)) if type(self) is Block else None
            f = sublayer(y) if bias is None else sublayer(y, add_bias=False)
            return PendingSum(x, f, bias, self.dropout if self.training else 0.0)
        start = x if start is None else start

        def norm(part: str, y: Tensor) -> Tensor:
            return tap(self, f"{name}_{part}", self._find_norm(f"{name}_{part}")(y))

        match self.placement:
            case "pre":
                return x + self._drop(sublayer(norm("norm", start)))
            case "post":
                return norm("norm", x + self._drop(sublayer(start)))
            case "output":
                return x + self._drop(norm("norm", sublayer(start)))
            case "sandwich":
                return x + self._drop(norm("output_norm", sublayer(norm("norm", start))))

    def _find_norm(self, name: str) -> nn.Module:
        norm: nn.Module | None = getattr(self, name)
        return self.attention_norm if norm is None else norm  # a shared one

    def _tap_stream(self, name: str, x: Tensor | PendingSum) -> Tensor | PendingSum:
        return x if isinstance(x, PendingSum) else tap(self, name, x)  # compiled code has no taps

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)

    def _feedforward(self, x: Tensor, losses: RouterLosses | None, **options: bool) -> Tensor:
        if isinstance(self.feedforward, MixtureOfExperts):
            return self.feedforward(x, losses)  # type: ignore[no-any-return]
        return self.feedforward(x, **options)  # type: ignore[no-any-return]


def last_bias(sublayer: nn.Module) -> Tensor | None:
    """The bias of the last product of an unmodified Attention or FeedForward, else None."""
    last = sublayer.output if type(sublayer) is Attention else sublayer.down if type(sublayer) is FeedForward else None
    return last.bias if type(last) is nn.Linear else None
