"""The cache: keys and values of the past, so that a step computes only what is new.

    whole pass   K = [k₀ … k_n]  computed anew for every token
    with cache   K = [cached k₀ … k_{n-1} | k_n]

All memory is taken once, [L, 2, B, G, C, K] for capacity C; a step writes its keys behind the earlier ones and reads
everything so far as a view. A `Cache` is a value: `advance` returns the next one over the same memory, so an earlier
value is a way back. Rows may have different lengths; a row's key is seen only from positions at or after its own, so
what lies behind a row's end is never read before it is overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import LengthError, ShapeError, UsageError


class KeyValue(NamedTuple):
    """Keys and values [B, G, S, K] that are ready to be looked at."""

    key: Tensor
    value: Tensor


class LayerCache(NamedTuple):
    """One layer's part of a cache during one step: where the new keys and values go, and what they join."""

    keys: Tensor
    values: Tensor
    used: int
    positions: Tensor | None

    def extend(self, key: Tensor, value: Tensor) -> KeyValue:
        """Write the new keys and values [B, G, T, K] and return all so far, without copying them."""
        if torch.is_grad_enabled() and key.requires_grad:
            raise UsageError("A cache keeps no gradients. Call the model under torch.inference_mode() or no_grad().")
        end = self.used + key.shape[2]
        if self.positions is None:
            self.keys[:, :, self.used : end] = key
            self.values[:, :, self.used : end] = value
        else:
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            self.keys[rows, :, self.positions] = key.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, self.positions] = value.transpose(1, 2).to(self.values.dtype)
        return KeyValue(self.keys[:, :, :end], self.values[:, :, :end])


@dataclass(frozen=True)
class Cache:
    """The past of a batch, for all layers of one decoder."""

    store: Tensor  # [L, 2, B, G, C, K]
    used: int = 0  # the longest row has at most this many positions
    lengths: Tensor | None = None  # [B] when rows differ; None while every row has `used` positions
    memory: tuple[KeyValue, ...] | None = None  # cross-attention: a layer each, computed once
    memory_mask: Tensor | None = None  # [B, S] which source tokens are real

    @classmethod
    def empty(
        cls,
        layers: int,
        batch: int,
        capacity: int,
        *,
        kv_heads: int,
        head_width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Cache:
        if min(layers, batch, capacity) < 1:
            raise LengthError(f"A cache of {layers} layers, {batch} rows and {capacity} positions holds nothing.")
        shape = (layers, 2, batch, kv_heads, capacity, head_width)
        # Zeros, not empty memory: what is masked out is still multiplied, and 0 · NaN is NaN.
        return cls(torch.zeros(shape, dtype=dtype, device=device))

    @property
    def batch(self) -> int:
        return self.store.shape[2]

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    @property
    def nbytes(self) -> int:
        return self.store.nbytes + sum(part.nbytes for pair in self.memory or () for part in pair)

    def check(self, batch: int, new: int, *, layers: int, kv_heads: int, head_width: int) -> None:
        """Refuse a step that does not fit, before anything is written."""
        made_for, needed = tuple(self.store.shape[i] for i in (0, 3, 5)), (layers, kv_heads, head_width)
        if made_for != needed:
            raise ShapeError(
                f"This cache was made for another model: its layers, key heads and head width are {made_for}, and the "
                f"model's are {needed}. Make one with this model's new_cache."
            )
        if batch != self.batch:
            raise ShapeError(f"This cache was made for {self.batch} rows, and {batch} were given.")
        compiling = torch.compiler.is_compiling()
        if not compiling and self.store.is_inference() and not torch.is_inference_mode_enabled():
            raise UsageError("This cache was made under torch.inference_mode() and can be used only there.")
        if self.used + new > self.capacity:
            raise LengthError(
                f"The cache holds {self.capacity} positions, {self.used} are used, and {new} more do not fit. "
                f"Make it with capacity={self.used + new} or more."
            )

    def positions(self, new: int) -> Tensor:
        """Where the next `new` tokens stand: [T], or [B, T] when rows differ in length."""
        steps = torch.arange(new, device=self.store.device)
        return steps + (self.used if self.lengths is None else self.lengths[:, None])

    def past(self, layer: int, positions: Tensor) -> LayerCache:
        """A layer's part for a step whose tokens stand at `positions`."""
        keys, values = self.store[layer]
        return LayerCache(keys, values, self.used, positions if self.lengths is not None else None)

    def with_memory(self, memory: tuple[KeyValue, ...], mask: Tensor | None) -> Cache:
        """The same cache, with the keys and values that cross-attention looks at in every step."""
        return replace(self, memory=memory, memory_mask=mask)

    def advance(self, new: int, lengths: Tensor | None = None) -> Cache:
        """The cache after a step of `new` tokens, of which the first `lengths[b]` of row b were real."""
        if lengths is None:
            after = None if self.lengths is None else self.lengths + new
            return replace(self, used=self.used + new, lengths=after)
        after = lengths + (self.used if self.lengths is None else self.lengths)
        # On a CPU the longest row is known at once; elsewhere asking would make the device wait, so it is bounded.
        asked = after.device.type == "cpu" and not torch.compiler.is_compiling()
        return replace(self, used=int(after.max()) if asked else self.used + new, lengths=after)

    def check_lengths(self, lengths: Tensor, new: int) -> None:
        """Refuse lengths that cannot be: of other rows, or more than the tokens given."""
        if tuple(lengths.shape) != (self.batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise ShapeError(
                f"Lengths are {self.batch} whole numbers, one for each row; these are {lengths.dtype} of shape "
                f"{list(lengths.shape)}."
            )
        if lengths.device.type != "cpu" or torch.compiler.is_compiling():
            return
        low, high = lengths.aminmax()
        if low < 0 or high > new:
            raise ShapeError(f"Lengths run from {int(low)} to {int(high)}, and {new} tokens were given in each row.")
