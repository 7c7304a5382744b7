"""What every engine knows of its rows, and what it refuses before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from chumoku.decoding.batch import longest
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.tap import observed


class Rows:
    """Sequences under a decoder: rows 0 … live − 1, of lengths of their own."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel, *, rows: int, capacity: int) -> None:
        if not isinstance(model, (DecoderModel, EncoderDecoderModel)):
            raise UsageError("Decoding needs a model that has a decoder: of kind 'decoder' or 'encoder-decoder'.")
        if rows < 1 or capacity < 1:
            raise LengthError(f"An engine for {rows} rows of {capacity} tokens can hold nothing; give 1 or more each.")
        self.model, self.rows, self.capacity = model, rows, longest(model, capacity)
        self.device, self.vocabulary = model.device, model.config.vocabulary
        self.lengths: list[int] = []
        self._parts = tuple(model.modules())

    @property
    def live(self) -> int:
        return len(self.lengths)

    def check_entering(self, count: int, sources: Sequence[Sequence[int]] | None) -> None:
        if count < 0 or self.live + count > self.rows:
            raise LengthError(f"{self.live} rows are live and {count} more do not fit: this engine has {self.rows}.")
        if isinstance(self.model, EncoderDecoderModel):
            if count and (sources is None or len(sources) != count or not all(map(len, sources))):
                raise UsageError(f"{count} rows of an encoder-decoder need {count} sources of one token or more.")
        elif sources is not None:
            raise UsageError("Sources were given, and this model has no encoder to read them.")

    def check_reading(self, pieces: Sequence[Sequence[int]], first: int) -> None:
        if not pieces or not all(map(len, pieces)):
            raise UsageError("A piece to read has one token or more.")
        self.check_live(first + len(pieces))
        self.check_room(max(self.lengths[first + number] + len(piece) for number, piece in enumerate(pieces)))

    def check_tokens(self, tokens: Tensor, new: int) -> None:
        """`new` tokens for each of the first rows."""
        self.check_live(len(tokens))
        if not tokens.numel():
            raise UsageError("No tokens were given; give one or more for each of the first rows.")
        self.check_room(max(self.lengths[: len(tokens)]) + new)

    def check_unobserved(self) -> None:
        """For engines that do not call the model's own modules, and so neither show nor change what is inside."""
        if observed(self.model):
            raise UsageError(
                "Recording or editing of this model began after its generation had. Open record(), patch() or ablate() "
                "first, and begin to generate inside."
            )

    def check_live(self, rows: int) -> None:
        if rows > self.live:
            raise LengthError(f"{rows} rows were given tokens, and {self.live} are live. Let the others enter first.")

    def check_room(self, positions: int) -> None:
        if positions > self.capacity:
            raise LengthError(
                f"A row would have {positions} tokens, and there is room for {self.capacity}. Shorten the text, or "
                "open the engine with a larger capacity."
            )

    def check_lengths(self, lengths: Sequence[int]) -> None:
        fewer = len(lengths) == self.live and all(
            0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)
        )
        if not fewer:
            raise LengthError(f"Rows of {self.lengths} tokens cannot go back to {list(lengths)}.")

    def check_taking(self, rows: Sequence[int]) -> None:
        if len(rows) > self.rows or not all(0 <= row < self.live for row in rows):
            raise LengthError(f"Rows {list(rows)} cannot be taken: {self.live} are live, and {self.rows} have room.")
