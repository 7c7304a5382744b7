"""Engines: a batch of sequences with their key-value caches, behind one interface.

    add_rows       append empty rows; for an encoder-decoder with their sources, which are encoded here once
    prefill        append tokens of any number to each row       → logits after the last token of each row
    step           append one token to each row                  → logits after it
    extend         append several tokens to each row             → logits after every one of them
    truncate       rows go back to an earlier length
    select_rows    row i becomes a copy of the previous row rows[i]; rows that are not listed are removed

`TorchEngine` is the PyTorch model with a cache and works for every model. The cache [L, 2, rows, G, positions, K] grows
by doubling, up to the agreed size; layers with an attention window keep only their last positions. Long prompts are
prefilled in parts, so that their hidden vectors stay small, and only the last position is multiplied by the output
matrix. Rows may have different LoRA adapters: a pass computes the products with the model's own matrices for all rows
together, and then adds s · B A x to the rows of each adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.engines.encoder_outputs import EncoderOutputs, move, new_size
from chumoku.decoding.engines.rows import Rows
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn import masks
from chumoku.nn.cache import Cache, Rolling
from chumoku.nn.lora import Adapter, RowAdapted
from chumoku.nn.modules import copy_containers, replace_module
from chumoku.nn.quantized import QuantizedLinear
from chumoku.nn.tap import tap

AT_ONCE = 512  # positions of one row that a CPU prefills in one pass …
TOGETHER = 8192  # … and of all rows; on a GPU also of one row


class Engine(Protocol):
    """A batch of sequences: rows 0 … live − 1, each with its own cache."""

    @property
    def model(self) -> DecoderModel | EncoderDecoderModel: ...

    @property
    def rows(self) -> int:
        """Most rows at a time."""

    @property
    def capacity(self) -> int:
        """Most tokens of a row."""

    @property
    def live(self) -> int:
        """Rows in use."""

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in the cache of each live row."""

    @property
    def earliest(self) -> list[int]:
        """The fewest tokens to which each live row can be truncated; above 0 if a layer has overwritten old keys."""

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def adapters(self) -> Collection[str]:
        """The names of the adapters that a row may have."""

    @property
    def most_likely(self) -> Tensor | None:
        """The token of the largest of each row's logits from the last step [n], −1 where they are not finite.

        None if the engine does not compute it.
        """

    def add_rows(
        self,
        count: int,
        sources: Sequence[Sequence[int]] | None = None,
        adapters: Sequence[str | None] | None = None,
    ) -> None:
        """Append `count` empty rows; for encoder-decoders with a source for each; with an adapter or None for each."""

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        """Append prompts[i], of one token or more, to row first + i; the logits after its last token [n, V]."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [n] to rows 0 … n − 1; the logits after each [n, V].

        Tokens below 0 are read as 0: a row without a valid token is noticed later, when the step has started.
        """

    def extend(self, tokens: Tensor) -> Tensor:
        """Append tokens [n, T] to rows 0 … n − 1; the logits after every one [n, T, V]."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of row i."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Row i becomes a copy of the previous row rows[i]; rows that are not listed are removed."""


class TorchEngine(Rows):
    """The PyTorch model with a cache, on any device."""

    def __init__(
        self,
        model: DecoderModel | EncoderDecoderModel,
        *,
        rows: int,
        capacity: int,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        super().__init__(model, rows=rows, capacity=capacity, adapters=adapters)
        self._groups: list[tuple[str, Tensor]] = []  # rows of the pass with an adapter, counted from its first row
        self._adapted = with_row_adapters(model, self.adapters, self._groups) if self.adapters else model
        self._parts = tuple(dict.fromkeys((*model.modules(), *self._adapted.modules())))
        self._floats = self._dequantized()
        self._store, self._rolling = self._empty_cache()
        self._places: Tensor | None = None  # the lengths on the model's device; None after changes other than a step
        self._sources = EncoderOutputs(rows)

    def _dequantized(self) -> list[Tensor]:
        """Dequantized matrices, kept alive with the engine because every step uses them."""
        return [part.float_weight() for part in self._parts if isinstance(part, QuantizedLinear)]

    @property
    def nbytes(self) -> int:
        return self._store.nbytes + self._rolling.nbytes + self._sources.nbytes

    def add_rows(
        self,
        count: int,
        sources: Sequence[Sequence[int]] | None = None,
        adapters: Sequence[str | None] | None = None,
    ) -> None:
        self.check_new_rows(count, sources, adapters)
        model = self.model
        if sources and isinstance(model, EncoderDecoderModel):
            with inference_mode(model, self._parts):
                lengths = torch.tensor([len(source) for source in sources])
                table = pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
                real = masks.real_tokens(lengths, table.shape[1])
                mask = None if real.all() else real.to(self.device)
                states = model.encode(table.to(self.device), mask=mask).states
                self._sources.add_rows(model.decoder.project(states), lengths.tolist())  # type: ignore[arg-type]
        self.append_rows(count, adapters)
        self._places = None

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        self.check_prompts(prompts, first)
        rows, ends = [], []
        with inference_mode(self.model, self._parts):
            for start, table, taken, last in self._chunks(prompts, first):
                hidden = self._forward(table, first + start, taken)
                for place, count in enumerate(taken, start=first + start):
                    self.lengths[place] += count
                self._places = None
                done = [place for place, over in enumerate(last) if over]
                if done:
                    rows += [start + place for place in done]
                    ends.append(hidden[done, [taken[place] - 1 for place in done]])
            order = sorted(range(len(rows)), key=rows.__getitem__)
            hidden = ends[0] if len(ends) == 1 else torch.cat(ends)[order]
            return self._to_logits(hidden)

    def step(self, tokens: Tensor) -> Tensor:
        return self.extend(tokens[:, None].clamp(min=0))[:, 0]

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        self.check_tokens(tokens, new)
        with inference_mode(self.model, self._parts):
            logits = self._to_logits(self._forward(tokens, 0))
            self.lengths[:count] = [length + new for length in self.lengths[:count]]
            if self._places is not None:
                self._places[:count] += new
        return logits

    def truncate(self, lengths: Sequence[int]) -> None:
        self.check_lengths(lengths)
        self.set_lengths(lengths)
        self._places = None

    def select_rows(self, rows: Sequence[int]) -> None:
        self.check_selection(rows)
        moves = [(place, row) for place, row in enumerate(rows) if place != row]
        with inference_mode(self.model, self._parts):
            if moves:
                used = max(self.lengths[row] for _, row in moves)
                self._reserve(len(rows), used)
                # One layer at a time, so that the data stays in the processor's cache.
                move([part[:, :, :used] for store in self._stores() for layer in store for part in layer], moves)
            self._sources.select_rows(rows)
        self.reorder_rows(rows)
        self._places = None
        if not rows:
            self._store, self._rolling = self._empty_cache()

    def _empty_cache(self) -> tuple[Tensor, Tensor]:
        """An empty cache of the layers that keep all positions, and one of those that keep the last."""
        config, depth = self.model.config, len(self.model.decoder.blocks)
        rolling = 0 if self.layout is None else sum(self.layout.local)

        def empty(layers: int) -> Tensor:
            shape = (layers, 2, 0, config.key_heads, 0, config.key_width)
            return torch.zeros(shape, dtype=self.model.dtype, device=self.device)

        return empty(depth - rolling), empty(rolling)

    def _stores(self) -> list[Tensor]:
        return [store for store in (self._store, self._rolling) if len(store)]

    def _chunks(
        self, prompts: Sequence[Sequence[int]], first: int
    ) -> Iterator[tuple[int, Tensor, list[int], list[bool]]]:
        """Parts of the prompts: first row, tokens of it and following rows, how many are real, which rows are done."""
        done, most = [0] * len(prompts), AT_ONCE if self.device.type == "cpu" else TOGETHER
        while unfinished := [row for row, prompt in enumerate(prompts) if done[row] < len(prompt)]:
            for start, end in runs(unfinished):
                rows = range(start, end)
                # Padding is written behind the end of a shorter row, where there must be room for it.
                room = self.capacity - max(self.lengths[first + row] for row in rows)
                new = min(max(len(prompts[row]) - done[row] for row in rows), room, most, -(-TOGETHER // len(rows)))
                parts = [prompts[row][done[row] : done[row] + new] for row in rows]
                for row, part in zip(rows, parts, strict=True):
                    done[row] += len(part)
                table = pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(self.device)
                yield start, table, list(map(len, parts)), [done[row] == len(prompts[row]) for row in rows]

    def _forward(self, tokens: Tensor, first: int, real: Sequence[int] | None = None) -> Tensor:
        """The hidden vectors of tokens [n, T] appended to rows first … first + n − 1; the first real[i] of row i."""
        count, new = tokens.shape
        lengths = self.lengths[first : first + count]
        used = max(lengths)
        self._reserve(self.live, used + new)
        places = None if min(lengths) == used else self._device_lengths()[first : first + count]
        memory = self._sources.memory(first, first + count)
        cache = Cache(self._store[:, :, first : first + count], used, places)
        if self.layout is not None:
            rolling = Rolling(self._rolling[:, :, first : first + count], self.layout)
            padded = real is not None and min(real) < new
            cache = replace(cache, rolling=rolling).expect(torch.tensor(real, device=self.device) if padded else None)
        if not self.has_adapter(first, count):
            hidden: Tensor = self.model.decoder(tokens, memory=memory, cache=cache)
            return hidden
        names = self.row_adapters[first : first + count]
        for name in self.adapters:
            rows = [row for row, own in enumerate(names) if own == name]
            if rows:
                self._groups.append((name, torch.tensor(rows, device=self.device)))
        hidden = self._adapted.decoder(tokens, memory=memory, cache=cache)
        self._groups.clear()
        # A masked NaN would reach the rows that use this place of the cache later, because 0 · NaN is NaN.
        if invalid := find_invalid(hidden):
            for store in self._stores():
                store[:, :, [first + row for row in invalid]] = 0
        return hidden

    def _device_lengths(self) -> Tensor:
        if self._places is None:
            self._places = torch.tensor(self.lengths).to(self.device)
        return self._places

    def _to_logits(self, hidden: Tensor) -> Tensor:
        model = self.model
        return tap(model, "logits", model.compute_logits(model.head, hidden, model.decoder.embedding.table))

    def _reserve(self, rows: int, positions: int) -> None:
        self._store = self._enlarge(self._store, rows, positions, most=self.capacity)
        if self.layout is not None:
            self._rolling = self._enlarge(self._rolling, rows, positions, most=self.layout.size)

    def _enlarge(self, store: Tensor, rows: int, positions: int, *, most: int) -> Tensor:
        """The cache with room for this many rows and positions, of at most `most`."""
        positions = min(positions, most)
        shape = list(store.shape)
        if rows <= shape[2] and positions <= shape[4]:
            return store
        used = min(shape[4], max(self.lengths, default=0))
        shape[2] = new_size(shape[2], rows, most=self.rows)
        shape[4] = new_size(shape[4], positions, most=most)
        # Zeros, not uninitialized memory: masked values are multiplied by 0, and 0 · NaN is NaN.
        larger = store.new_zeros(shape)
        rows = min(self.live, store.shape[2])
        larger[:, :, :rows, :, :used] = store[:, :, :rows, :, :used]
        return larger


def with_row_adapters(
    model: DecoderModel | EncoderDecoderModel, adapters: Mapping[str, Adapter], groups: Sequence[tuple[str, Tensor]]
) -> DecoderModel | EncoderDecoderModel:
    """A model with the same weights, whose matrices add the low-rank products of the adapters to their rows."""
    adapted = copy_containers(model)
    for address in {address for adapter in adapters.values() for address in adapter}:
        own = {name: adapter[address] for name, adapter in adapters.items() if address in adapter}
        replace_module(adapted, address, RowAdapted(adapted.get_submodule(address), own, groups))  # type: ignore[arg-type]
    return adapted


def find_invalid(hidden: Tensor) -> list[int]:
    """The rows with NaN or infinity."""
    return (~hidden.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges: 0 1 2 5 6 → (0, 3), (5, 7)."""
    start = rows[0]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following != row + 1:
            yield start, row + 1
            start = following if following is not None else start
