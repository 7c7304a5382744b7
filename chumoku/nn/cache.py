"""The key/value cache: keys and values of earlier tokens, so that each step computes only the new ones.

    without a cache   K = [k₀ … k_n]  computed again for every token
    with a cache      K = [cached k₀ … k_{n-1} | k_n]

All memory is allocated once, [L, 2, B, G, C, K] for capacity C. A step writes its keys after the earlier ones and reads
all keys so far as a view. `Cache` is immutable: `advance` returns a new one on the same memory, so keeping the old one
allows going back. Rows may have different lengths: the causal mask hides everything after a row's end until it is
overwritten.

    attention window of N     position p is at place p mod R,   R ≥ N − 1

A layer with a window never reads keys that are N or more positions old, so new keys overwrite old ones (`Rolling`).
Such a cache can go back by at most R − (N − 1) positions.
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


class RollingLayer(NamedTuple):
    """One layer's part of a cache during one step, for a layer with an attention window."""

    keys: Tensor  # [B, G, R, K]: position p at place p mod R
    values: Tensor
    past: int  # how many earlier positions the step reads
    positions: Tensor  # [T] or [B, T]
    real: Tensor | None  # [B]: how many of the new tokens of each row are not padding

    def append(self, key: Tensor, value: Tensor) -> KeyValue:
        """Return the last keys and values before the new ones [B, G, T, K], followed by these, and write these."""
        if torch.is_grad_enabled() and key.requires_grad:
            raise UsageError("A cache stores no gradients. Call the model under torch.inference_mode() or no_grad().")
        read, written, tokens = self._places(key.shape[2])
        pairs = ((self.keys, key.to(self.keys.dtype)), (self.values, value.to(self.values.dtype)))
        together = KeyValue(*(torch.cat([gather(store, read), new], dim=2) for store, new in pairs))
        for store, new in pairs:
            if written.ndim == 1:
                store[:, :, written] = new[:, :, tokens]
            else:
                rows = torch.arange(len(written), device=written.device)[:, None]
                store[rows, :, written] = gather(new, tokens).transpose(1, 2)
        return together

    def _places(self, new: int) -> tuple[Tensor, Tensor, Tensor]:
        """The places to read, those to write, and the tokens for the latter: the last R that are not padding."""
        size, start = self.keys.shape[2], self.positions[..., :1]
        count = min(new, size)
        steps = torch.arange(-max(self.past, count), 0, device=start.device)
        read = (start + steps[len(steps) - self.past :]) % size
        tokens = steps[len(steps) - count :] + (new if self.real is None else self.real[:, None])
        # A row with fewer new tokens writes its first one several times.
        tokens = tokens.clamp(min=0)
        return read, (start + tokens) % size, tokens


def gather(part: Tensor, places: Tensor) -> Tensor:
    """Select positions of [B, G, S, K]: the same for each row, or [B, n]."""
    if places.ndim == 1:
        return part[:, :, places]
    rows = torch.arange(len(places), device=places.device)[:, None]
    return part[rows, :, places].transpose(1, 2)


class RollingLayout(NamedTuple):
    """How layers with an attention window keep keys and values: the last ones of each row."""

    window: int
    size: int  # positions that are kept
    local: tuple[bool, ...]  # for each layer of the decoder, whether it has the window

    @property
    def rollback(self) -> int:
        """The number of positions by which a cache can go back."""
        return self.size - self.window + 1


class Rolling:
    """Keys and values of the layers with an attention window."""

    def __init__(self, store: Tensor, layout: RollingLayout) -> None:
        self.store, self.layout = store, layout  # [layers with the window, 2, B, G, R, K]
        self.written = 0  # tokens per row of all steps; a cache that has taken fewer has gone back

    def check(self, steps: int) -> None:
        """Raise if a cache that has taken this many steps of tokens misses positions that were overwritten since."""
        if self.written - steps > self.layout.rollback:
            raise LengthError(
                f"This cache is {self.written - steps} tokens older than the newest one on the same memory, and layers "
                f"with an attention window can go back by at most {self.layout.rollback}. Compute the text again in a "
                "new cache."
            )


@dataclass(frozen=True)
class Cache:
    """Keys and values of a batch, for all layers of one decoder."""

    store: Tensor  # [L, 2, B, G, C, K]; only the layers that are not in `rolling`
    used: int = 0  # upper bound of the longest row's length
    lengths: Tensor | None = None  # [B]; None while every row has `used` positions
    memory: tuple[KeyValue, ...] | None = None  # cross-attention: keys and values of the encoder output, per layer
    memory_mask: Tensor | None = None  # [B, S], True where a source token is not padding
    rolling: Rolling | None = None  # layers that keep only their last positions
    steps: int = 0  # tokens per row of all steps until now, padding included
    real: Tensor | None = None  # [B]: how many tokens of the coming step are not padding

    @classmethod
    def empty(
        cls,
        layers: int,
        batch: int,
        capacity: int,
        *,
        kv_heads: int,
        head_width: int,
        layout: RollingLayout | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Cache:
        """Allocate a cache for `batch` rows of up to `capacity` positions.

        layout: which layers keep only their last positions, if any.
        """
        if min(layers, batch, capacity) < 1:
            raise LengthError(
                f"A cache needs at least one layer, row and position, not {layers} layers, {batch} rows and {capacity} "
                "positions."
            )

        def allocate(layers: int, positions: int) -> Tensor:
            # Zeros instead of uninitialized memory: masked values are multiplied by 0, and 0 · NaN is NaN.
            return torch.zeros(layers, 2, batch, kv_heads, positions, head_width, dtype=dtype, device=device)

        if layout is None:
            return cls(allocate(layers, capacity))
        rolling = Rolling(allocate(sum(layout.local), layout.size), layout)
        return cls(allocate(layers - sum(layout.local), capacity), rolling=rolling)

    @property
    def batch(self) -> int:
        return self.store.shape[2]

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    @property
    def nbytes(self) -> int:
        rolling = 0 if self.rolling is None else self.rolling.store.nbytes
        return self.store.nbytes + rolling + sum(part.nbytes for pair in self.memory or () for part in pair)

    def check(self, batch: int, new: int, *, layers: int, kv_heads: int, head_width: int) -> None:
        """Raise if a step of `new` tokens per row does not fit this cache or belongs to another model."""
        _, _, _, *sizes = self.store.shape
        found = (len(self.store) if self.rolling is None else len(self.rolling.layout.local), sizes[0], sizes[2])
        expected = (layers, kv_heads, head_width)
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
        if self.rolling is not None:
            self.rolling.check(self.steps)

    def positions(self, new: int) -> Tensor:
        """Return the positions of the next `new` tokens: [T], or [B, T] when rows differ in length."""
        steps = torch.arange(new, device=self.store.device)
        return steps + (self.used if self.lengths is None else self.lengths[:, None])

    def rolls(self, local: bool) -> bool:
        """Whether layers with the window (`local`) or without it overwrite old positions."""
        return local and self.rolling is not None

    @property
    def past(self) -> int:
        """How many earlier positions the layers with a window read."""
        return self.used if self.rolling is None else min(self.used, self.rolling.layout.window - 1)

    def key_positions(self, new: int, *, local: bool) -> Tensor:
        """Return the positions of the keys of the next step: [S], or [B, S]; those below 0 do not exist."""
        if not self.rolls(local):
            return torch.arange(self.used + new, device=self.store.device)
        steps = torch.arange(-self.past, new, device=self.store.device)
        return steps + (self.used if self.lengths is None else self.lengths[:, None])

    def layer(self, index: int, positions: Tensor) -> LayerCache | RollingLayer:
        """Return one layer's part, for a step whose tokens are at `positions`."""
        rolling = self.rolling
        before = 0 if rolling is None else sum(rolling.layout.local[:index])  # layers with a window
        if rolling is not None and rolling.layout.local[index]:
            rolling.written = max(rolling.written, self.steps + positions.shape[-1])
            keys, values = rolling.store[before]
            return RollingLayer(keys, values, self.past, positions, self.real)
        keys, values = self.store[index - before]
        return LayerCache(keys, values, self.used, positions if self.lengths is not None else None)

    def expect(self, lengths: Tensor | None) -> Cache:
        """Return this cache for a step with only `lengths[b]` tokens in row b that are not padding."""
        return self if lengths is None else replace(self, real=lengths)

    def with_memory(self, memory: tuple[KeyValue, ...], mask: Tensor | None) -> Cache:
        """Return this cache with the keys and values that cross-attention uses in every step."""
        return replace(self, memory=memory, memory_mask=mask)

    def advance(self, new: int, lengths: Tensor | None = None) -> Cache:
        """Return the cache after a step of `new` tokens; in row b only the first `lengths[b]` were not padding."""
        steps = self.steps + new
        if lengths is None:
            after = None if self.lengths is None else self.lengths + new
            return replace(self, used=self.used + new, lengths=after, steps=steps)
        after = lengths + (self.used if self.lengths is None else self.lengths)
        # Reading the longest row from a GPU would wait for it, so an upper bound is used there.
        exact = after.device.type == "cpu" and not torch.compiler.is_compiling()
        return replace(self, used=int(after.max()) if exact else self.used + new, lengths=after, steps=steps)

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
