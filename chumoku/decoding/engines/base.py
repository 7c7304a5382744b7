"""Engines: sequences under a decoder, whatever computes them.

    enter    empty rows behind the live ones; an encoder-decoder's rows come with their sources, encoded here and once
    read     a piece of any length for each row       → logits after the last token of each piece
    step     one token for each row                   → logits after it
    extend   several tokens for each row              → logits after every one of them
    forget   rows go back to what they were some tokens ago
    take     row i goes on from what row rows[i] was; rows that are not named are gone

`TorchEngine` is the model itself over a cache, for every model. Its memory [L, 2, rows, G, positions, K] is taken as it
is needed, twice as much at a time, and never more than was agreed. Of a long piece so many positions are read at a time
that their hidden vectors stay small, and only the last one goes through the output matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chumoku.decoding.batch import answering
from chumoku.decoding.engines.encoder_outputs import Sources, grown, move
from chumoku.decoding.engines.rows import Rows
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn import masks
from chumoku.nn.cache import Cache
from chumoku.nn.quantized import Quantized
from chumoku.nn.tap import tap

AT_ONCE = 512  # positions of one row that are read in one pass …
TOGETHER = 8192  # … and of all rows


class Engine(Protocol):
    """Sequences under a decoder: rows 0 … live − 1, each with its own past."""

    @property
    def model(self) -> DecoderModel | EncoderDecoderModel: ...

    @property
    def rows(self) -> int:
        """The most that may be live."""

    @property
    def capacity(self) -> int:
        """The most tokens of each."""

    @property
    def live(self) -> int: ...

    @property
    def lengths(self) -> list[int]:
        """How many tokens each live row has read."""

    @property
    def nbytes(self) -> int:
        """The memory of the caches."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def enter(self, count: int, sources: Sequence[Sequence[int]] | None = None) -> None:
        """`count` empty rows behind the live ones, for encoder-decoders with a source each."""

    def read(self, pieces: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        """Append pieces[i], of one token or more, to row first + i; the logits after its last token [n, V]."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [n] to rows 0 … n − 1; the logits after each [n, V]."""

    def extend(self, tokens: Tensor) -> Tensor:
        """Append tokens [n, T] to rows 0 … n − 1; the logits after every one [n, T, V]."""

    def forget(self, lengths: Sequence[int]) -> None:
        """Row i goes back to its first lengths[i] tokens."""

    def take(self, rows: Sequence[int]) -> None:
        """Row i goes on from what row rows[i] was; as many rows as are named."""


class TorchEngine(Rows):
    """The model as it is, on whatever device it is."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel, *, rows: int, capacity: int) -> None:
        super().__init__(model, rows=rows, capacity=capacity)
        self._floats = self._dequantized()
        self._store = self._nothing()
        self._places: Tensor | None = None  # the lengths where the model is, until something but a step changes them
        self._sources = Sources(rows)

    def _dequantized(self) -> list[Tensor]:
        """Quantized matrices in floats, kept for as long as the engine lives, because every step uses each of them."""
        return [part.float_weight() for part in self._parts if isinstance(part, Quantized)]

    @property
    def nbytes(self) -> int:
        return self._store.nbytes + self._sources.nbytes

    def enter(self, count: int, sources: Sequence[Sequence[int]] | None = None) -> None:
        self.check_entering(count, sources)
        model = self.model
        if sources and isinstance(model, EncoderDecoderModel):
            with answering(model, self._parts):
                lengths = torch.tensor([len(source) for source in sources])
                table = pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
                real = masks.real_tokens(lengths, table.shape[1])
                mask = None if real.all() else real.to(self.device)
                states = model.encode(table.to(self.device), mask=mask).states
                self._sources.enter(model.decoder.project(states), lengths.tolist())  # type: ignore[arg-type]
        self.lengths += [0] * count
        self._places = None

    def read(self, pieces: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        self.check_reading(pieces, first)
        rows, ends = [], []
        with answering(self.model, self._parts):
            for start, table, taken, last in self._chunks(pieces, first):
                hidden = self._forward(table, first + start)
                for place, count in enumerate(taken, start=first + start):
                    self.lengths[place] += count
                self._places = None
                done = [place for place, over in enumerate(last) if over]
                if done:
                    rows += [start + place for place in done]
                    ends.append(hidden[done, [taken[place] - 1 for place in done]])
            order = sorted(range(len(rows)), key=rows.__getitem__)
            hidden = ends[0] if len(ends) == 1 else torch.cat(ends)[order]
            return self._answer(hidden)

    def step(self, tokens: Tensor) -> Tensor:
        return self.extend(tokens[:, None])[:, 0]

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        self.check_tokens(tokens, new)
        with answering(self.model, self._parts):
            logits = self._answer(self._forward(tokens, 0))
            self.lengths[:count] = [length + new for length in self.lengths[:count]]
            if self._places is not None:
                self._places[:count] += new
        return logits

    def forget(self, lengths: Sequence[int]) -> None:
        self.check_lengths(lengths)
        self.lengths = list(lengths)
        self._places = None

    def take(self, rows: Sequence[int]) -> None:
        self.check_taking(rows)
        moves = [(place, row) for place, row in enumerate(rows) if place != row]
        with answering(self.model, self._parts):
            if moves:
                used = max(self.lengths[row] for _, row in moves)
                self._reserve(len(rows), used)
                # One layer at a time: what is on its way then stays in the processor's own memory.
                move([part[:, :, :used] for layer in self._store for part in layer], moves)
            self._sources.take(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self._places = None
        if not rows:
            self._store = self._nothing()

    def _nothing(self) -> Tensor:
        """Memory for no rows: what an empty engine holds."""
        config = self.model.config
        shape = (len(self.model.decoder.blocks), 2, 0, config.key_heads, 0, config.head_width)
        return torch.zeros(shape, dtype=self.model.dtype, device=self.device)

    def _chunks(
        self, pieces: Sequence[Sequence[int]], first: int
    ) -> Iterator[tuple[int, Tensor, list[int], list[bool]]]:
        """What to read next: the first row, its tokens and its neighbors', how many are real, and who is then done."""
        read = [0] * len(pieces)
        while unread := [row for row, piece in enumerate(pieces) if read[row] < len(piece)]:
            for start, end in runs(unread):
                rows = range(start, end)
                # What fills a shorter row up is written behind its end, where there must be room for it.
                room = self.capacity - max(self.lengths[first + row] for row in rows)
                new = min(max(len(pieces[row]) - read[row] for row in rows), room, AT_ONCE, -(-TOGETHER // len(rows)))
                parts = [pieces[row][read[row] : read[row] + new] for row in rows]
                for row, part in zip(rows, parts, strict=True):
                    read[row] += len(part)
                table = pad_sequence([torch.tensor(part) for part in parts], batch_first=True).to(self.device)
                yield start, table, list(map(len, parts)), [read[row] == len(pieces[row]) for row in rows]

    def _forward(self, tokens: Tensor, first: int) -> Tensor:
        """The hidden vectors of tokens [n, T] behind what rows first … first + n − 1 have read."""
        count, new = tokens.shape
        lengths = self.lengths[first : first + count]
        used = max(lengths)
        self._reserve(self.live, used + new)
        places = None if min(lengths) == used else self._ragged()[first : first + count]
        memory = self._sources.memory(first, first + count)
        cache = Cache(self._store[:, :, first : first + count], used, places)
        hidden: Tensor = self.model.decoder(tokens, memory=memory, cache=cache)
        return hidden

    def _ragged(self) -> Tensor:
        if self._places is None:
            self._places = torch.tensor(self.lengths).to(self.device)
        return self._places

    def _answer(self, hidden: Tensor) -> Tensor:
        return tap(self.model, "logits", self.model.head(hidden, self.model.decoder.embedding.table))

    def _reserve(self, rows: int, positions: int) -> None:
        shape = list(self._store.shape)
        if rows <= shape[2] and positions <= shape[4]:
            return
        used = min(shape[4], max(self.lengths, default=0))
        shape[2] = grown(shape[2], rows, most=self.rows)
        shape[4] = grown(shape[4], positions, most=self.capacity)
        # Zeros, not empty memory: what is masked out is still multiplied, and 0 · NaN is NaN.
        store = self._store.new_zeros(shape)
        kept = min(self.live, self._store.shape[2])
        store[:, :, :kept, :, :used] = self._store[:, :, :kept, :, :used]
        self._store = store


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as ranges: 0 1 2 5 6 → (0, 3), (5, 7)."""
    start = rows[0]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following != row + 1:
            yield start, row + 1
            start = following if following is not None else start
