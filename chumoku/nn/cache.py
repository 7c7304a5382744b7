"""The key/value cache: keys and values of earlier tokens, so that each step computes only the new ones.

    without a cache   K = [k₀ … k_n]  computed again for every token
    with a cache      K = [cached k₀ … k_{n-1} | k_n]

All memory is allocated once, [L, 2, B, G, C, K] for capacity C. A step writes its keys after the earlier ones and reads
all keys so far as a view. `Cache` is immutable: `advance` returns a new one on the same memory, so keeping the old one
allows going back. Rows may have different lengths: the causal mask hides everything after a row's end until it is
overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import LengthError, ShapeError, UsageError


class KeyValue(NamedTuple):
    """Keys and values [B, G, S, K], ready for attention."""

    key: Tensor
    value: Tensor


class LayerCache(NamedTuple):
    """One layer's part of a cache during one step."""

    keys: Tensor
    values: Tensor
    used: int
    positions: Tensor | None

    def append(self, key: Tensor, value: Tensor) -> KeyValue:
        """Write the new keys and values [B, G, T, K] and return views of all keys and values so far."""
        if torch.is_grad_enabled() and key.requires_grad:
            raise UsageError("A cache stores no gradients. Call the model under torch.inference_mode() or no_grad().")
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
    """Keys and values of a batch, for all layers of one decoder."""

    store: Tensor  # [L, 2, B, G, C, K]
    used: int = 0  # upper bound of the longest row's length
    lengths: Tensor | None = None  # [B]; None while every row has `used` positions
    memory: tuple[KeyValue, ...] | None = None  # cross-attention: keys and values of the encoder output, per layer
    memory_mask: Tensor | None = None  # [B, S], True where a source token is not padding

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
        """Allocate a cache for `batch` rows of up to `capacity` positions."""
        if min(layers, batch, capacity) < 1:
            raise LengthError(
                f"A cache needs at least one layer, row and position, not {layers} layers, {batch} rows and {capacity} "
                "positions."
            )
        shape = (layers, 2, batch, kv_heads, capacity, head_width)
        # Zeros instead of uninitialized memory: masked values are multiplied by 0, and 0 · NaN is NaN.
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
        """Raise if a step of `new` tokens per row does not fit this cache or belongs to another model."""
        found, expected = tuple(self.store.shape[i] for i in (0, 3, 5)), (layers, kv_heads, head_width)
        if found != expected:
            raise ShapeError(
                f"This cache belongs to another model: its layers, key heads and head width are {found}, but this "
                f"model has {expected}. Create the cache with this model's new_cache."
            )
        if batch != self.batch:
            raise ShapeError(f"This cache is for {self.batch} rows, but {batch} were given.")
        compiling = torch.compiler.is_compiling()
        if not compiling and self.store.is_inference() and not torch.is_inference_mode_enabled():
            raise UsageError("This cache was created under torch.inference_mode() and can only be used there.")
        if self.used + new > self.capacity:
            raise LengthError(
                f"The cache has {self.capacity} positions, {self.used} are used, and {new} more do not fit. "
                f"Create it with capacity={self.used + new} or more."
            )

    def positions(self, new: int) -> Tensor:
        """Return the positions of the next `new` tokens: [T], or [B, T] when rows differ in length."""
        steps = torch.arange(new, device=self.store.device)
        return steps + (self.used if self.lengths is None else self.lengths[:, None])

    def layer(self, index: int, positions: Tensor) -> LayerCache:
        """Return one layer's part, for a step whose tokens are at `positions`."""
        keys, values = self.store[index]
        return LayerCache(keys, values, self.used, positions if self.lengths is not None else None)

    def with_memory(self, memory: tuple[KeyValue, ...], mask: Tensor | None) -> Cache:
        """Return this cache with the keys and values that cross-attention uses in every step."""
        return replace(self, memory=memory, memory_mask=mask)

    def advance(self, new: int, lengths: Tensor | None = None) -> Cache:
        """Return the cache after a step of `new` tokens; in row b only the first `lengths[b]` were not padding."""
        if lengths is None:
            after = None if self.lengths is None else self.lengths + new
            return replace(self, used=self.used + new, lengths=after)
        after = lengths + (self.used if self.lengths is None else self.lengths)
        # Reading the longest row from a GPU would wait for it, so an upper bound is used there.
        exact = after.device.type == "cpu" and not torch.compiler.is_compiling()
        return replace(self, used=int(after.max()) if exact else self.used + new, lengths=after)

    def check_lengths(self, lengths: Tensor, new: int) -> None:
        """Raise unless `lengths` has one number from 0 to `new` for each row."""
        if tuple(lengths.shape) != (self.batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise ShapeError(
                f"Lengths must be {self.batch} integers, one for each row; these are {lengths.dtype} of shape "
                f"{list(lengths.shape)}."
            )
        if lengths.device.type != "cpu" or torch.compiler.is_compiling():
            return
        low, high = lengths.aminmax()
        if low < 0 or high > new:
            raise ShapeError(f"Lengths must be 0 to {new}, the tokens per row; these are {int(low)} to {int(high)}.")
