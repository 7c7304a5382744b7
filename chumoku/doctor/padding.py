"""Padding has no effect:  f(row) = f(row padded and masked); padding in batches is the pad token, and is masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.data.batches import Batches, source_mask
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.sentence_rows import count_wrong_padding
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import (
    after_last_label,
    change_tokens,
    distance,
    has_begin_and_end,
    pad_rows,
    restore_after,
    sample_batch,
    tolerance,
    unpadded_source,
)
from chumoku.models.model import EncoderDecoderModel, Model

BATCHES = 40


def run(subject: Subject) -> Iterator[Finding]:
    if subject.model is None and subject.train is None and subject.validation is None:
        raise Skip("there is neither a model nor a corpus")
    for name, batches in (("training", subject.train), ("validation", subject.validation)):
        if batches is not None:
            yield from check_batches(batches, subject, name)
    if subject.model is not None:
        yield from check_model(subject, subject.model)


def check_model(subject: Subject, model: Model) -> Iterator[Finding]:
    batch = sample_batch(subject)
    with restore_after(model), torch.no_grad():
        moved = max(difference(model, batch, filler) for filler in (0, 1, model.config.vocabulary - 1))
        if moved > tolerance(model):
            side = "the source" if "source" in batch else "the row"
            yield Finding(
                "padding",
                f"Padding of {side} changes the output by {moved:.1e}, although it is masked.",
                "the model's masks",
                0.99,
                "Check that the padding mask (True = real token) reaches attention in every block.",
            )


def difference(model: Model, batch: Batch, filler: int) -> float:
    """The change of a short row's output when it is padded to the length of a longer row."""
    if isinstance(model, EncoderDecoderModel):
        long = unpadded_source(batch, 0)
        short = long[: max(1, len(long) // 2)]
        table, mask = pad_rows([short, long], min(filler, model.config.source_tokens - 1))
        target = batch["target"][[0]]
        alone = _logits(model(short[None], target))
        return distance(alone[0], _logits(model(table, target.expand(2, -1), source_mask=mask))[0])
    row = batch["tokens"][0]
    short = row[: max(1, len(row) // 2)]
    table, mask = pad_rows([short, change_tokens(row[None], model.config.vocabulary)[0]], filler)
    alone, together = model(short[None]), model(table, mask=mask)
    moved = distance(alone.hidden[0], together.hidden[0, : len(short)])
    if model.config.head_kind == "classes":
        moved = max(moved, distance(alone.logits[0], together.logits[0]))
    return moved if alone.vector is None else max(moved, distance(alone.vector[0], together.vector[0]))


def _logits(output: object) -> Tensor:
    return output.logits  # type: ignore[attr-defined, no-any-return]


def check_batches(batches: Batches, subject: Subject, name: str) -> Iterator[Finding]:
    """Findings about positions without a token that are not the pad token, or are not masked."""
    if subject.tokenizer is None or not {"source", "anchor"} & set(batches.batch(0, 0)):
        return
    source = subject.source_tokenizer or subject.tokenizer
    wrong: Counter[str] = Counter()
    for index in range(min(len(batches), BATCHES)):
        batch = batches.batch(0, index)
        if "anchor" in batch:
            wrong += count_wrong_padding(batch, source.roles.pad)
            continue
        # A target without begin or end token is reported by the check of labels.
        empty = after_last_label(batch["labels"]) & has_begin_and_end(batch, subject.tokenizer.roles)[:, None]
        pad, target_pad = source.roles.pad or 0, subject.tokenizer.roles.pad or 0
        sums: dict[str, Tensor] = {
            "Masked source positions contain a token other than <pad>": _other(
                batch["source"], ~source_mask(batch), pad
            ),
            "Target positions without a label contain a token other than <pad>": _other(
                batch["target"], empty, target_pad
            ),
            "Source positions with <pad> are not masked": ((batch["source"] == pad) & source_mask(batch)).sum(),
        }
        for sentence, cells_found in sums.items():
            wrong[sentence] += int(cells_found)
    for sentence, count in wrong.items():
        if count:
            yield Finding(
                "padding",
                f"{sentence} ({count:,} times).",
                f"the first {min(len(batches), BATCHES)} batches of {name}",
                0.95,
                "Compare the pad token of the batches with the tokenizer's pad token, and the mask with the lengths.",
            )


def _other(tokens: Tensor, empty: Tensor, pad: int) -> Tensor:
    return (empty & (tokens != pad)).sum()


CHECK = Check("padding", "padding has no effect and uses the pad token", cheap=True, run=run)
