"""The native engine: keys and values are never moved when rows are reordered.

    store    L × [2, R, G, C, K]    keys and values; R slots of C positions. New ones of a row go to its own slot
    origin   [R, C]                 for each position of a row, the slot that holds it

When beams are reordered, only `origin` changes: a row reads the past of another row from that row's slot, and writes to
its own. Layers with an attention window have slots of fewer positions S, and position p is at p mod S. Before a row
overwrites a position that another one still reads, the rows are copied to slots of their own. The keys and values of
cross-attention are stored separately, once for each source.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.engines.native.call import (
    CacheTensors,
    Store,
    Tokens,
    encode_sources,
    run,
    unsupported,
    weights,
)
from chumoku.decoding.engines.native.pack_adapter import PackedAdapter
from chumoku.decoding.engines.native.positions import make_tables
from chumoku.decoding.engines.rows import Rows
from chumoku.errors import TooLargeError, UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.lora import Adapter
from chumoku.nn.modules import named_parts

AT_ONCE = 256  # tokens in one call
FIRST = 512  # positions whose tables are computed first; doubled when more are needed


class NativeEngine(Rows):
    """Decoding on a CPU; a whole step is one call into the C++ library."""

    def __init__(
        self,
        model: DecoderModel | EncoderDecoderModel,
        *,
        rows: int,
        capacity: int,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        if reason := unsupported(model):
            raise UsageError(f"The native engine cannot run this model. {reason}")
        super().__init__(model, rows=rows, capacity=capacity, adapters=adapters)
        self._weights = weights(model)
        self._packed_adapters = {name: PackedAdapter(model.decoder, adapter) for name, adapter in self.adapters.items()}
        self._store = Store(self._allocate())
        self._written = [0] * rows  # for each slot, the end of the positions that were written there
        self._least: list[int] = []  # for each row, how short it can become, as far as other slots limited it
        self._origin = torch.zeros(rows, self.capacity, dtype=torch.int32)
        self._slots: list[int] = []
        self._shared = False  # whether rows may share cached positions
        self._memory: list[Tensor] = []  # cross-attention keys and values of each row
        self._tables = make_tables(model.decoder, min(FIRST, self.capacity))
        # Scaling and capping round, so that the first of several equal logits may be another one. Beam search, which
        # decodes the other kind of model, ranks candidates itself.
        capped = model.config.scale_logits or model.config.logit_cap is not None
        self._finds_most_likely = isinstance(model, DecoderModel) and not capped
        # The modules that a step calls; of all others it uses only the weights.
        self._called = (model.decoder, *(part for name, part in named_parts(model.decoder) if "blocks" not in name))

    def _allocate(self) -> list[Tensor]:
        """Keys and values of each layer [2, R, G, C, K]."""
        config, layout = self.model.config, self.layout
        local = (False,) * config.decoder_depth if layout is None else layout.local
        sizes = [self.capacity if layout is None or not rolls else layout.size for rolls in local]
        try:
            # Uninitialized memory takes no space until it is written, and is not read before.
            return [torch.empty(2, self.rows, config.key_heads, size, config.key_width) for size in sizes]
        except RuntimeError as error:
            raise TooLargeError(
                f"Keys and values of {self.rows:,} rows of {self.capacity:,} tokens do not fit this machine's memory. "
                "Ask for fewer tokens, or for fewer rows at once."
            ) from error

    @property
    def earliest(self) -> list[int]:
        if self.layout is None:
            return [0] * self.live
        size, found = self.layout.size, []
        for row, length in enumerate(self.lengths):
            slots = set(self._origin[row, max(0, length - size) : length].tolist())
            written = max((self._written[slot] for slot in slots), default=0)
            found.append(max(self._least[row], written - self.layout.rollback if written > size else 0))
        return found

    @property
    def nbytes(self) -> int:
        sources = {source.data_ptr(): source.nbytes for source in self._memory}
        return self._store.nbytes + self._origin.nbytes + sum(sources.values())

    def add_rows(
        self,
        count: int,
        sources: Sequence[Sequence[int]] | None = None,
        adapters: Sequence[str | None] | None = None,
    ) -> None:
        self.check_new_rows(count, sources, adapters)
        encoder, decoder = self._weights.encoder, self._weights.decoder
        if sources and isinstance(self.model, EncoderDecoderModel) and encoder is not None:
            with inference_mode(self.model, self._parts):
                self._memory += encode_sources(self.model, encoder, decoder, sources)
        self.append_rows(count, adapters)
        self._least += [0] * count
        self._assign_slots([*self._slots, *[None] * count])

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        self.check_prompts(prompts, first)
        tokens = [token for prompt in prompts for token in prompt]
        rows = [first + number for number, prompt in enumerate(prompts) for _ in prompt]
        ends = list(itertools.accumulate(map(len, prompts)))
        return self._run(tokens, rows, [end - 1 for end in ends])

    def step(self, tokens: Tensor) -> Tensor:
        self.check_tokens(tokens, 1)
        self.most_likely = None
        numbers = [max(0, token) for token in tokens.tolist()]
        every = list(range(len(numbers)))
        most_likely = torch.empty(len(numbers), dtype=torch.int64) if self._finds_most_likely else None
        logits = self._run(numbers, every, every, most_likely)
        self.most_likely = most_likely
        return logits

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        self.check_tokens(tokens, new)
        rows = [row for row in range(count) for _ in range(new)]
        return self._run(tokens.flatten().tolist(), rows, list(range(count * new))).view(count, new, -1)

    def truncate(self, lengths: Sequence[int]) -> None:
        self.check_lengths(lengths)
        conflicts = self._find_conflicts(lengths) if self._shared else set()
        self.set_lengths(lengths)
        if conflicts:
            self._assign_slots([None if row in conflicts else slot for row, slot in enumerate(self._slots)])

    def select_rows(self, rows: Sequence[int]) -> None:
        self.check_selection(rows)
        # Rows that share positions need their own slots. If all rows have the same length, no cached position lies
        # where any of them will write, and each place keeps its slot. Otherwise the row that stays in its place keeps
        # the slot, or else the last copy (the scheduler's kept rows come last, and new copies are truncated).
        shared, alike = len(set(rows)) < len(rows), len(set(self.lengths)) == 1
        if shared and alike:
            slots = [self._slots[place] if place < self.live else None for place in range(len(rows))]
        else:
            keeper = {row: place for place, row in enumerate(rows)}
            keeper |= {row: row for row in keeper if row < len(rows) and rows[row] == row}
            slots = [self._slots[row] if keeper[row] == place else None for place, row in enumerate(rows)]
        self._shared = self._shared or shared
        self.reorder_rows(rows)
        self._least = [self._least[row] for row in rows]
        used = max(self.lengths, default=0)
        self._origin[: len(rows), :used] = self._origin[list(rows), :used]
        self._memory = [self._memory[row] for row in rows] if self._memory else []
        self._assign_slots(slots)

    def _assign_slots(self, slots: Sequence[int | None]) -> None:
        """Give each row a slot: the one it has, or one that holds no position in use."""
        self._slots = [-1 if slot is None else slot for slot in slots]
        missing = [place for place, slot in enumerate(slots) if slot is None]
        if not missing:
            return
        empty = [slot for slot in range(self.rows) if slot not in set(slots)]
        used = {slot for row, length in enumerate(self.lengths) for slot in set(self._origin[row, :length].tolist())}
        free = [slot for slot in empty if slot not in used]
        enough = len(free) >= len(missing)
        for place, slot in zip(missing, free if enough else empty, strict=False):
            self._slots[place] = slot
            self._written[slot] = 0 if enough else self._written[slot]
        if not enough:
            self._copy_to_own_slots()

    def _find_conflicts(self, lengths: Sequence[int]) -> set[int]:
        """The rows that, cut to these lengths, would write their next tokens where another row has a position."""
        shorter = [row for row, length in enumerate(lengths) if length < self.lengths[row]]
        return {
            row
            for row in shorter
            for other, length in enumerate(lengths)
            if other != row and bool((self._origin[other, lengths[row] : length] == self._slots[row]).any())
        }

    def _copy_to_own_slots(self) -> None:
        """Copy all cached positions of each row into its own slot."""
        used = max(self.lengths, default=0)
        slots, lengths = torch.tensor(self._slots)[:, None], torch.tensor(self.lengths)[:, None]
        origin = self._origin[: self.live, :used]
        self._least = self.earliest
        for layer in self._store.layers:
            size = layer.shape[3]
            places = torch.arange(min(size, used))
            # The last position of each row that is at this place, if there is one.
            positions = (lengths - 1 - (lengths - 1 - places) % size).clamp(min=0)
            sources = origin.long().gather(1, positions)
            for part in layer:
                part[slots, :, places] = part[sources, :, places]
        for row, slot in enumerate(self._slots):
            self._written[slot] = self.lengths[row]
        origin[:] = slots
        self._shared = False

    def _overwrites(self, lengths: Sequence[int]) -> bool:
        """Whether rows that grow to these lengths overwrite a position that a row still reads in a layer's window."""
        if self.layout is None or not self._shared:
            return False
        ends = torch.tensor(self._written)
        for row, slot in enumerate(self._slots):
            ends[slot] = max(self._written[slot], lengths[row])
        firsts = [max(0, length - self.layout.window + 1) for length in self.lengths]
        overwritten = ends - self.layout.size  # of each slot, the positions before this one
        if int(overwritten.max()) <= min(firsts):
            return False
        return any(
            bool((overwritten[self._origin[row, first:length].long()] > torch.arange(first, length)).any())
            for row, (first, length) in enumerate(zip(firsts, self.lengths, strict=True))
        )

    def _run(self, tokens: list[int], rows: list[int], wanted: list[int], most_likely: Tensor | None = None) -> Tensor:
        """Append each token to its row; the logits after the `wanted` ones [n, V].

        most_likely    if all tokens are wanted: gets the token of the largest logit after each
        """
        self.check_unobserved()
        # All keys of a call are written before any is read.
        most = AT_ONCE if self.layout is None else min(AT_ONCE, self.layout.rollback)
        if len(tokens) <= most:
            return self._call(tokens, rows, wanted, most_likely)
        parts = []
        for start in range(0, len(tokens), most):
            part = slice(start, start + most)
            outputs = [place - start for place in wanted if start <= place < start + most]
            best = None if most_likely is None else most_likely[part]
            parts.append(self._call(tokens[part], rows[part], outputs, best))
        return torch.cat(parts)

    def _call(self, tokens: list[int], rows: list[int], outputs: list[int], most_likely: Tensor | None) -> Tensor:
        lengths, places = list(self.lengths), []
        for row in rows:
            places.append(lengths[row])
            lengths[row] += 1
        if self._overwrites(lengths):
            self._copy_to_own_slots()
        new = Tokens(tokens, rows, places, [place + 1 for place in places], [self._slots[row] for row in rows])
        cache = CacheTensors(self._store, self._origin, self._memory)
        names = [self.row_adapters[row] for row in rows] if self.adapters else []
        adapters = [None if name is None else self._packed_adapters[name] for name in names]
        stack = self.model.decoder
        if max(lengths) > self._tables.positions:
            self._tables = make_tables(stack, min(2 * max(lengths), self.capacity))
        packed = self._weights.decoder
        # If the library reads the embeddings itself, no module is called.
        with contextlib.nullcontext() if packed.table is not None else inference_mode(self.model, self._called):
            logits = run(packed, stack, new, cache, outputs, self._tables, adapters, most_likely)
            logits = self.model.scale_and_cap(logits)
        self.lengths = lengths
        for row in set(rows):
            slot = self._slots[row]
            self._written[slot] = max(self._written[slot], lengths[row])
        return logits
