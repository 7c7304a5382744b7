"""The rows of an engine, and the checks of arguments that all engines share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from chumoku.decoding.batch import longest
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.models.stack import rolling_layout
from chumoku.nn.cache import RollingLayout
from chumoku.nn.lora import Adapter
from chumoku.nn.modules import named_parts
from chumoku.nn.tap import observed


class Rows:
    """Sequences in rows 0 … live − 1, each with its own length."""

    most_likely: Tensor | None = None

    def __init__(
        self,
        model: DecoderModel | EncoderDecoderModel,
        *,
        rows: int,
        capacity: int,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        if not isinstance(model, (DecoderModel, EncoderDecoderModel)):
            raise UsageError("Decoding needs a model of kind 'decoder' or 'encoder-decoder'.")
        if rows < 1 or capacity < 1:
            raise LengthError(f"An engine needs 1 row or more and a capacity of 1 or more, not {rows} and {capacity}.")
        self.model, self.rows, self.capacity = model, rows, longest(model, capacity)
        self.device, self.vocabulary = model.device, model.config.vocabulary
        self.lengths: list[int] = []
        self.layout = self.rolling_layout()
        self._longest: list[int] = []  # the most tokens that each row has had; those of a copied row count
        self.adapters = dict(adapters or {})
        self.row_adapters: list[str | None] = []
        self._check_adapters()
        self._parts = tuple(part for _, part in named_parts(model))

    @property
    def live(self) -> int:
        return len(self.lengths)

    def rolling_layout(self) -> RollingLayout | None:
        """Which layers keep only their last positions."""
        return rolling_layout(self.model.config, self.capacity)

    @property
    def earliest(self) -> list[int]:
        """The fewest tokens to which each live row can be truncated; above 0 if a layer has overwritten old keys."""
        if self.layout is None:
            return [0] * self.live
        longest, size = map(max, self._longest, self.lengths), self.layout.size
        return [0 if length <= size else length - self.layout.rollback for length in longest]

    def append_rows(self, count: int, adapters: Sequence[str | None] | None) -> None:
        self.lengths += [0] * count
        self._longest += [0] * count
        self.row_adapters += adapters or [None] * count

    def reorder_rows(self, rows: Sequence[int]) -> None:
        """Row i gets the length and the adapter of the previous row rows[i]."""
        longest = self.lengths if self.layout is None else list(map(max, self._longest, self.lengths))
        self._longest = [longest[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.row_adapters = [self.row_adapters[row] for row in rows]

    def set_lengths(self, lengths: Sequence[int]) -> None:
        """Keep the first lengths[i] tokens of row i."""
        self._longest = list(map(max, self._longest, self.lengths))
        self.lengths = list(lengths)

    def has_adapter(self, first: int, count: int) -> bool:
        """Whether any of these rows has an adapter."""
        return bool(self.adapters) and any(name is not None for name in self.row_adapters[first : first + count])

    def _check_adapters(self) -> None:
        if self.adapters and not isinstance(self.model, DecoderModel):
            raise UsageError("Only a model of kind 'decoder' can have an adapter for each row.")
        for name, adapter in self.adapters.items():
            if any(matrix.magnitude is not None for matrix in adapter.values()):
                raise UsageError(f"The adapter '{name}' is a DoRA adapter, which must be merged into its model.")

    def check_new_rows(
        self, count: int, sources: Sequence[Sequence[int]] | None, adapters: Sequence[str | None] | None
    ) -> None:
        if adapters is not None and (len(adapters) != count or not {*adapters} <= {None, *self.adapters}):
            known = ", ".join(self.adapters) or "(none)"
            raise UsageError(f"{count} rows need {count} adapters or None; this engine has {known}.")
        if count < 0 or self.live + count > self.rows:
            raise LengthError(f"{count} rows cannot be added: {self.live} of {self.rows} are in use.")
        if isinstance(self.model, EncoderDecoderModel):
            if count and (sources is None or len(sources) != count or not all(map(len, sources))):
                raise UsageError(f"{count} rows of an encoder-decoder need {count} sources of one token or more.")
        elif sources is not None:
            raise UsageError("Sources were given, but this model has no encoder.")

    def check_prompts(self, prompts: Sequence[Sequence[int]], first: int) -> None:
        if not prompts or not all(map(len, prompts)):
            raise UsageError("Every prompt needs one token or more, and there must be a prompt.")
        self.check_live(first + len(prompts))
        self.check_room(max(self.lengths[first + number] + len(prompt) for number, prompt in enumerate(prompts)))

    def check_tokens(self, tokens: Tensor, new: int) -> None:
        """Check `new` tokens for each of the first rows."""
        count = tokens.shape[0]
        self.check_live(count)
        if not count or not new:
            raise UsageError("No tokens were given. Give one or more for each of the first rows.")
        self.check_room(max(self.lengths[:count]) + new)

    def check_unobserved(self) -> None:
        """For engines that do not call the model's modules, so that nothing inside can be recorded or edited."""
        if observed(self.model):
            raise UsageError(
                "Recording or editing of this model started after generation had started. Open record(), patch() or "
                "ablate() first, and start to generate inside."
            )

    def check_live(self, rows: int) -> None:
        if rows > self.live:
            raise LengthError(f"Tokens for {rows} rows were given, but there are {self.live}. Add rows first.")

    def check_room(self, positions: int) -> None:
        if positions > self.capacity:
            raise LengthError(
                f"A row would have {positions} tokens, but there is room for only {self.capacity}. Shorten the text, "
                "or open the engine with a larger capacity."
            )

    def check_lengths(self, lengths: Sequence[int]) -> None:
        fewer = len(lengths) == self.live and all(
            0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)
        )
        if not fewer:
            raise LengthError(f"Rows of {self.lengths} tokens cannot be truncated to {list(lengths)}.")
        if any(new < min(old, least) for new, old, least in zip(lengths, self.lengths, self.earliest, strict=True)):
            raise LengthError(
                f"Rows cannot be truncated to {list(lengths)} tokens: layers with an attention window have overwritten "
                f"older keys, so the shortest possible lengths are {self.earliest}. Compute these rows again."
            )

    def check_selection(self, rows: Sequence[int]) -> None:
        if len(rows) > self.rows or not all(0 <= row < self.live for row in rows):
            raise LengthError(
                f"Rows {list(rows)} cannot be selected: {self.live} exist, and there is room for {self.rows}."
            )
