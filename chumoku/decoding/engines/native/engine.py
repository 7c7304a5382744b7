"""The native engine: rows of keys and values that never move.

    store    [L, 2, R, C, G·K]     keys and values, each row's new ones in its home
    origin   [R, C]                in which home a row's position lies

When beams change places only `origin` does: a row goes on from another's past by reading it where it lies, and writes
what comes in a home of its own. Cross-attention's keys and values lie beside, once for each source.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.decoding.batch import answering
from chumoku.decoding.engines.native.call import Past, Tokens, encoded, rotation, run, unsupported, weights
from chumoku.decoding.engines.rows import Rows
from chumoku.errors import TooLargeError, UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel

AT_ONCE = 256  # tokens in one call
FIRST = 512  # positions whose angles are computed at first; then twice as many, and so on


class NativeEngine(Rows):
    """Decoding on the processor, a whole step in one call."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel, *, rows: int, capacity: int) -> None:
        if reason := unsupported(model):
            raise UsageError(f"The native engine cannot run this model: {reason.rstrip('.')}.")
        super().__init__(model, rows=rows, capacity=capacity)
        config = model.config
        self._weights = weights(model)
        wide = config.key_heads * config.head_width
        try:
            # Memory that is not yet written costs nothing, and is never read.
            self._store = torch.empty(config.decoder_depth, 2, rows, self.capacity, wide)
        except RuntimeError as error:
            raise TooLargeError(
                f"Keys and values of {rows:,} rows of {self.capacity:,} tokens are more than this machine's memory "
                "holds. Ask for fewer tokens, or for fewer rows at once."
            ) from error
        self._origin = torch.zeros(rows, self.capacity, dtype=torch.int32)
        self._homes: list[int] = []
        self._shared = False  # whether a past may be several rows'
        self._memory: list[Tensor] = []  # a row's source
        self._rotation = rotation(model.decoder, min(FIRST, self.capacity))
        # The modules that a step calls; all others are only weights to it.
        self._called = (model.decoder, *(part for name, part in model.decoder.named_modules() if "blocks" not in name))

    @property
    def nbytes(self) -> int:
        sources = {source.data_ptr(): source.nbytes for source in self._memory}
        return self._store.nbytes + self._origin.nbytes + sum(sources.values())

    def enter(self, count: int, sources: Sequence[Sequence[int]] | None = None) -> None:
        self.check_entering(count, sources)
        if sources and isinstance(self.model, EncoderDecoderModel):
            with answering(self.model, self._parts):
                self._memory += encoded(self.model, self._weights, sources)
        self.lengths += [0] * count
        self._house([*self._homes, *[None] * count])

    def read(self, pieces: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        self.check_reading(pieces, first)
        tokens = [token for piece in pieces for token in piece]
        rows = [first + number for number, piece in enumerate(pieces) for _ in piece]
        ends = list(itertools.accumulate(map(len, pieces)))
        return self._run(tokens, rows, [end - 1 for end in ends])

    def step(self, tokens: Tensor) -> Tensor:
        self.check_tokens(tokens, 1)
        every = list(range(len(tokens)))
        return self._run(tokens.tolist(), every, every)

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        self.check_tokens(tokens, new)
        rows = [row for row in range(count) for _ in range(new)]
        return self._run(tokens.flatten().tolist(), rows, list(range(count * new))).view(count, new, -1)

    def forget(self, lengths: Sequence[int]) -> None:
        self.check_lengths(lengths)
        if self._shared:
            self._settle()  # what is written next must not be another's past
        self.lengths = list(lengths)

    def take(self, rows: Sequence[int]) -> None:
        self.check_taking(rows)
        # Rows that share a past need homes of their own. While all rows are of one length, nobody's past lies where any
        # of them will write, and each place keeps its home; else the first to come of a row keeps its.
        shared, alike = len(set(rows)) < len(rows), len(set(self.lengths)) == 1
        if shared and alike:
            homes = [self._homes[place] if place < self.live else None for place in range(len(rows))]
        else:
            firsts = {row: place for place, row in reversed(list(enumerate(rows)))}
            homes = [self._homes[row] if firsts[row] == place else None for place, row in enumerate(rows)]
        self._shared = self._shared or shared
        self.lengths = [self.lengths[row] for row in rows]
        used = max(self.lengths, default=0)
        self._origin[: len(rows), :used] = self._origin[list(rows), :used]
        self._memory = [self._memory[row] for row in rows] if self._memory else []
        self._house(homes)

    def _house(self, homes: Sequence[int | None]) -> None:
        """A home for each row: the one it has, or one in which nobody's past lies."""
        self._homes = [-1 if home is None else home for home in homes]
        missing = [place for place, home in enumerate(homes) if home is None]
        if not missing:
            return
        empty = [home for home in range(self.rows) if home not in set(homes)]
        pasts = {home for row, length in enumerate(self.lengths) for home in set(self._origin[row, :length].tolist())}
        free = [home for home in empty if home not in pasts]
        enough = len(free) >= len(missing)
        for place, home in zip(missing, free if enough else empty, strict=False):
            self._homes[place] = home
        if not enough:
            self._settle()

    def _settle(self) -> None:
        """Copy every row's past into its own home."""
        used = max(self.lengths, default=0)
        homes, steps = torch.tensor(self._homes), torch.arange(used)
        origin = self._origin[: self.live, :used]
        for part in self._store.flatten(0, 1):
            part[homes, :used] = part[origin.long(), steps]
        origin[:] = homes[:, None]
        self._shared = False

    def _run(self, tokens: list[int], rows: list[int], wanted: list[int]) -> Tensor:
        """Read tokens, each behind what its row has; the logits after those wanted [n, V]."""
        self.check_unobserved()
        parts = [self._call(tokens, rows, start, wanted) for start in range(0, len(tokens), AT_ONCE)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _call(self, tokens: list[int], rows: list[int], start: int, wanted: list[int]) -> Tensor:
        tokens, rows = tokens[start : start + AT_ONCE], rows[start : start + AT_ONCE]
        asked = [place - start for place in wanted if start <= place < start + len(tokens)]
        lengths, places = list(self.lengths), []
        for row in rows:
            places.append(lengths[row])
            lengths[row] += 1
        new = Tokens(tokens, rows, places, [place + 1 for place in places], [self._homes[row] for row in rows])
        past = Past(self._store, self._origin, self._memory)
        stack = self.model.decoder
        if self._rotation is not None and max(lengths) > len(self._rotation[0]):
            self._rotation = rotation(stack, min(2 * max(lengths), self.capacity))
        with answering(self.model, self._called):
            said = run(self._weights.decoder, stack, new, past, asked, self._rotation)
        self.lengths = lengths
        return said
