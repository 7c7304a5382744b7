"""Padding changes nothing:  f(row) = f(row filled up and masked); what fills rows up is the pad token, masked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.data.batches import Batches
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import behind, borrowed, changed, distance, framed, ragged, real, sample, tolerance
from chumoku.models.model import EncoderDecoderModel, Model

BATCHES = 40


def run(patient: Patient) -> Iterator[Finding]:
    if patient.model is None and patient.train is None and patient.validation is None:
        raise Skip("there is neither a model nor a corpus")
    for name, batches in (("training", patient.train), ("validation", patient.validation)):
        if batches is not None:
            yield from cells(batches, patient, name)
    if patient.model is not None:
        yield from noticed(patient, patient.model)


def noticed(patient: Patient, model: Model) -> Iterator[Finding]:
    batch = sample(patient)
    with borrowed(model), torch.no_grad():
        moved = max(difference(model, batch, filler) for filler in (0, 1, model.config.vocabulary - 1))
        if moved > tolerance(model):
            side = "the source" if "source" in batch else "the row"
            yield Finding(
                "padding",
                f"What {side} is filled up with changes the answers, by {moved:.1e}, although it is masked.",
                "the model's masks",
                0.99,
                "Look at how the padding mask reaches attention: True = a real token, and every block needs it.",
            )


def difference(model: Model, batch: Batch, filler: int) -> float:
    """How far the answers of a short row move when it is filled up beside a longer one."""
    if isinstance(model, EncoderDecoderModel):
        long = real(batch, 0)
        short = long[: max(1, len(long) // 2)]
        table, mask = ragged([short, long], min(filler, model.config.source_tokens - 1))
        target = batch["target"][[0]]
        alone = _logits(model(short[None], target))
        return distance(alone[0], _logits(model(table, target.expand(2, -1), source_mask=mask))[0])
    row = batch["tokens"][0]
    short = row[: max(1, len(row) // 2)]
    table, mask = ragged([short, changed(row[None], model.config.vocabulary)[0]], filler)
    alone, together = model(short[None]), model(table, mask=mask)
    moved = distance(alone.hidden[0], together.hidden[0, : len(short)])
    return moved if alone.vector is None else max(moved, distance(alone.vector[0], together.vector[0]))


def _logits(output: object) -> Tensor:
    return output.logits  # type: ignore[attr-defined, no-any-return]


def cells(batches: Batches, patient: Patient, name: str) -> Iterator[Finding]:
    """Whether the cells that hold no token are filled with the pad token, and are known to be empty."""
    if patient.tokenizer is None or "source" not in batches.batch(0, 0):
        return
    source = patient.source_tokenizer or patient.tokenizer
    wrong: dict[str, int] = {}
    for index in range(min(len(batches), BATCHES)):
        batch = batches.batch(0, index)
        # What stands behind a target without begin or end may be a token of it: that is a finding about labels.
        empty = behind(batch["labels"]) & framed(batch, patient.tokenizer.roles)[:, None]
        pad, target_pad = source.roles.pad or 0, patient.tokenizer.roles.pad or 0
        sums: dict[str, Tensor] = {
            "source cells that are masked hold a token other than <pad>": _other(
                batch["source"], ~batch["source_mask"], pad
            ),
            "target cells without a label hold a token other than <pad>": _other(batch["target"], empty, target_pad),
            "source cells hold <pad> and count as real": ((batch["source"] == pad) & batch["source_mask"]).sum(),
        }
        for sentence, cells_found in sums.items():
            wrong[sentence] = wrong.get(sentence, 0) + int(cells_found)
    for sentence, count in wrong.items():
        if count:
            yield Finding(
                "padding",
                f"{count:,} {sentence}.",
                f"the first {min(len(batches), BATCHES)} batches of {name}",
                0.95,
                "Compare the pad token of the batches with the tokenizer's, and the mask with the lengths.",
            )


def _other(tokens: Tensor, empty: Tensor, pad: int) -> Tensor:
    return (empty & (tokens != pad)).sum()


CHECK = Check("padding", "padding changes nothing, and is what it should be", cheap=True, run=run)
