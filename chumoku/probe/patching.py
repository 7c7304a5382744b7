"""Activation patching and ablation: how the output changes when intermediate tensors are replaced.

    patch             replace a tensor, for example by that of another run
    ablate            switch off every head and every feed-forward in turn, sorted by effect
    switch_off        switch off some heads or outputs together, for any number of passes
    compare_without   the output before and after that; compare_edited the same for any edits

    effect            mean over positions of KL(before ‖ after) = Σ p log(p / q), in nats; for vectors 1 − cos

`probe.edits` says which tensors can be replaced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.record_check import check_same, debug_enabled
from chumoku.nn.tap import Tape, addresses, select
from chumoku.probe.edits import RECOMPUTED, Edit, apply_edits, make_edit, tensor_name, unchanged
from chumoku.probe.forward_pass import ModelInput, Tokens, final_output, make_input, run_model

PARTS = ("**.heads", "**.feedforward.output")  # what `ablate` switches off by default
MAX_TOGETHER, MAX_LOGITS = 32, 1 << 25  # parts that `ablate` switches off in one batch, and numbers in its output


class Change(NamedTuple):
    """The output before and after an edit: logits [B, T, V], or vectors [B, D]."""

    before: Tensor
    after: Tensor

    @property
    def max_difference(self) -> float:
        """The largest absolute difference of any element."""
        return float((self.before.float() - self.after.float()).abs().max())

    @property
    def effects(self) -> Tensor:
        """The effect at each position [B, T]; for vectors [B]."""
        if self.before.ndim == 2:
            return 1 - torch.cosine_similarity(self.before.double(), self.after.double(), dim=-1)
        p, q = (logits.double().log_softmax(-1) for logits in self)
        return (p.exp() * (p - q)).sum(-1).clamp(min=0)

    @property
    def effect(self) -> float:
        return float(self.effects.mean())

    def mean_effect(self, positions: Sequence[int]) -> float:
        """The mean effect over these positions; vectors have no positions."""
        return self.effect if self.before.ndim == 2 else float(self.effects[:, list(positions)].mean())


class Effect(NamedTuple):
    """How much the output changes without one part."""

    address: str
    head: int | None
    effect: float


def patch(
    model: Model,
    address: str,
    other: Tensor | Tape | Edit,
    tokens: Tokens,
    *,
    source: Tokens | None = None,
    positions: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    debug: bool | None = None,
) -> Change:
    """Replace the tensors at all matching addresses, and return the output before and after.

    address: an address or a pattern.
    other: a tensor, a tape of another run, or a function from the present tensor to the new one.
    tokens, source: token ids; `source` only for an encoder-decoder.
    positions, heads: if given, only these token positions and these heads are replaced.
    debug: also check that the edit mechanism itself does not change the output.
    """
    model = unwrap_compiled(model)
    targets = select(addresses(model), (address,))
    if isinstance(other, Tensor) and len(targets) > 1:
        raise UsageError(
            f"{len(targets)} addresses match {address}, but only one tensor was given. Pass a tape instead."
        )
    changes = {
        one: make_edit(other[one] if isinstance(other, Tape) else other, one, positions=positions, heads=heads)
        for one in targets
    }
    inputs = make_input(model, tokens, source)
    before = run_model(model, inputs)
    if debug_enabled(debug):
        with apply_edits(model, {one: unchanged for one in targets if tensor_name(one) not in RECOMPUTED}):
            check_same(before, run_model(model, inputs), "with nothing replaced")
    with apply_edits(model, changes):
        return Change(final_output(before), final_output(run_model(model, inputs)))


def ablate(
    model: Model,
    tokens: Tokens,
    *parts: str,
    source: Tokens | None = None,
    by: Literal["zero", "mean"] = "zero",
    positions: Sequence[int] | None = None,
    debug: bool | None = None,
) -> list[Effect]:
    """Switch each part off in turn, and return the effects, largest first.

    parts: addresses or patterns; at an address …heads each head is one part. Default: every head and feed-forward.
    by: "zero" replaces a part by zeros, "mean" by its mean over the positions.
    positions: an effect is the mean over these positions, for example those of a generated text. Default: over all.
    """
    if by not in ("zero", "mean"):
        raise UsageError(f"by='{by}' is unknown: use 'zero' or 'mean'.")
    model = unwrap_compiled(model)
    inputs = make_input(model, tokens, source)
    targets = select(addresses(model), parts or PARTS)
    if debug_enabled(debug):
        before = run_model(model, inputs)
        with apply_edits(model, dict.fromkeys(targets, unchanged)):
            check_same(before, run_model(model, inputs), "with nothing switched off")
    off, in_rows = _zero if by == "zero" else _mean, set(select(addresses(model), PARTS))
    every = [
        (address, head)
        for address in targets
        for head in (range(model.config.heads) if tensor_name(address) == "heads" else (None,))
    ]
    together, step = [part for part in every if part[0] in in_rows], _rows_together(model, inputs)
    groups = [together[start : start + step] for start in range(0, len(together), step)]
    effects = []
    for group in [*groups, *([part] for part in every if part[0] not in in_rows)]:
        edits = [(one, make_edit(off, one, heads=None if head is None else [head])) for one, head in group]
        for (address, head), change in zip(group, _changes(model, edits, inputs), strict=True):
            mean = change.effect if positions is None else change.mean_effect(positions)
            effects.append(Effect(address, head, mean))
    return sorted(effects, key=lambda one: -one.effect)


def _rows_together(model: Model, inputs: ModelInput) -> int:
    """How many parts `ablate` switches off in one batch, so that its logits stay small."""
    width = model.config.vocabulary if model.config.predicts_tokens else model.config.width
    return max(1, min(MAX_TOGETHER, MAX_LOGITS // (inputs.tokens.numel() * width) - 1))


def _changes(model: Model, edits: Sequence[tuple[str, Edit]], inputs: ModelInput) -> list[Change]:
    """The change by each edit of an address. Several are rows of one batch, whose first rows are not edited."""
    if len(edits) == 1:
        before = final_output(run_model(model, inputs))
        with apply_edits(model, dict(edits)):
            return [Change(before, final_output(run_model(model, inputs)))]
    copies = len(edits) + 1

    def edit_rows(address: str, tensor: Tensor) -> Tensor:
        first, *others = tensor.chunk(copies)
        pairs = zip(edits, others, strict=True)
        return torch.cat([first, *(change(rows) if one == address else rows for (one, change), rows in pairs)])

    source = None if inputs.source is None else inputs.source.repeat(copies, 1)
    with apply_edits(model, {address: functools.partial(edit_rows, address) for address, _ in edits}):
        output = final_output(run_model(model, ModelInput(inputs.tokens.repeat(copies, 1), source)))
    first, *others = output.chunk(copies)
    return [Change(first, one) for one in others]


@contextlib.contextmanager
def switch_off(model: Model, parts: Mapping[str, Sequence[int] | None]) -> Iterator[None]:
    """Inside, the tensors at these addresses are zero: only the given heads of each, or with None all of it.

    with switch_off(model, {"decoder.blocks.1.attention.heads": [0, 2], "decoder.blocks.0.feedforward.output": None}):
        pipeline.generate("Once upon a time")
    """
    with apply_edits(model, _set_to_zero(parts)):
        yield


def compare_without(
    model: Model, parts: Mapping[str, Sequence[int] | None], tokens: Tokens, *, source: Tokens | None = None
) -> Change:
    """The output of the whole model, and with these parts switched off (see `switch_off`)."""
    return compare_edited(model, _set_to_zero(parts), tokens, source=source)


def compare_edited(
    model: Model, changes: Mapping[str, Edit], tokens: Tokens, *, source: Tokens | None = None
) -> Change:
    """The output of the model as it is, and with these edits (see `apply_edits`)."""
    inputs = make_input(model, tokens, source)
    before = final_output(run_model(model, inputs))
    with apply_edits(model, changes):
        return Change(before, final_output(run_model(model, inputs)))


def _set_to_zero(parts: Mapping[str, Sequence[int] | None]) -> dict[str, Edit]:
    return {address: make_edit(_zero, address, heads=heads) for address, heads in parts.items()}


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


def _mean(tensor: Tensor) -> Tensor:
    """The mean over the positions, which are the second to last axis."""
    return tensor.mean(-2, keepdim=True).expand_as(tensor) if tensor.ndim > 2 else tensor.mean(0).expand_as(tensor)
