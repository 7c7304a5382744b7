"""The cache keeps the past:  logits step by step, rows of different lengths = logits of each row's whole pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from chumoku.decoding.engines.open_engine import open_engine
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Patient
from chumoku.doctor.tools import PRECISE, ROWS, borrowed, distance, ragged, real, sample, size, tolerance
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model

STEPS = ((0, 1), (1, 2), (2, 4))
MANY = 8  # rows, where they are cheap
ENGINE_FAR = 3e-3  # sums in another order, through many layers
SPARE = 3  # positions: a token written behind its place is then measured, and not only refused
Speaking = DecoderModel | EncoderDecoderModel
TODO = "Look at the positions of new tokens (past + i), at where keys are written, and at the mask over the past."


def run(patient: Patient) -> Iterator[Finding]:
    model = speaking(patient)
    batch = sample(patient, MANY if size(model) <= PRECISE else ROWS)
    with borrowed(model), torch.no_grad():
        moved, what = noticed(model, batch)
        if moved > tolerance(model):
            yield Finding(
                "cache",
                f"With a cache, {what} differ by {moved:.1e} from the whole pass.",
                "the decoder's cache",
                0.99,
                TODO,
            )


def run_engine(patient: Patient) -> Iterator[Finding]:
    model = speaking(patient)
    batch = sample(patient)
    with borrowed(model, precise=False), torch.no_grad():
        rows, later, sources = parted(model, batch)
        engine = open_engine(model, rows=len(rows), capacity=max(map(len, rows)) + later.shape[1] + SPARE)
        engine.add_rows(len(rows), None if sources is None else [source.tolist() for source in sources])
        found = [engine.prefill([row.tolist() for row in rows]).float()]
        found += [engine.step(later[:, place]).float() for place in range(later.shape[1])]
        worst = 0.0
        for row, expected in enumerate(whole(model, rows, later, sources)):
            stepped = torch.stack([logits[row] for logits in found])
            worst = max(worst, distance(expected[len(rows[row]) - 1 :].to(stepped.device), stepped))
    if worst > (ENGINE_FAR if model.dtype == torch.float32 else tolerance(model)):
        yield Finding(
            "engine",
            f"{type(engine).__name__}, which decodes this model here, differs by {worst:.1e} from the model itself.",
            "decoding",
            0.9,
            "Decode with the model itself (with chumoku.plain(): …) until this engine is repaired; please report it.",
        )


def speaking(patient: Patient) -> Speaking:
    model = patient.the_model()
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        raise Skip("an encoder has no cache")
    return model


def parted(model: Model, batch: Batch) -> tuple[list[Tensor], Tensor, list[Tensor] | None]:
    """Beginnings of different lengths, what follows each, and the sources, shorter and longer too."""
    key = "target" if "target" in batch else "tokens"
    table = batch[key]
    later = min(STEPS[-1][1], table.shape[1] - 1)
    if later < 1:
        raise Skip("the texts are too short to be cut in two")
    room = table.shape[1] - later
    rows = [table[row, : max(1, room - 2 * row)] for row in range(len(table))]
    sources = (
        [real(batch, row)[: max(1, len(real(batch, row)) - row)] for row in range(len(table))]
        if "source" in batch
        else None
    )
    return rows, table[:, -later:], sources


def whole(model: Speaking, rows: list[Tensor], later: Tensor, sources: list[Tensor] | None) -> Iterator[Tensor]:
    """The logits of each row's whole pass."""
    for number, row in enumerate(rows):
        tokens = torch.cat([row, later[number]])[None]
        output = model(tokens) if sources is None else model(sources[number][None], tokens)
        yield output.logits[0]


def noticed(model: Speaking, batch: Batch) -> tuple[float, str]:
    rows, later, sources = parted(model, batch)
    table, _ = ragged(rows, 0)
    lengths = torch.tensor([len(row) for row in rows], device=table.device)
    step: Callable[..., Any]
    cache: Any
    room = table.shape[1] + later.shape[1] + SPARE
    pieces: list[Tensor] = []
    if isinstance(model, EncoderDecoderModel):
        source, mask = ragged(sources or [], 0)
        cache, step = model.new_cache(model.encode(source, mask=mask), room), model.decode
    else:
        cache, step = model.new_cache(len(rows), room), model
    prompt: Any = step(table, cache=cache, lengths=lengths)
    cache = prompt.cache
    for start, end in STEPS:
        if start < later.shape[1]:
            output: Any = step(later[:, start : min(end, later.shape[1])], cache=cache)
            cache = output.cache
            pieces.append(output.logits)
    stepped = torch.cat(pieces, 1)
    worst = (0.0, "")
    for number, expected in enumerate(whole(model, rows, later, sources)):
        size = len(rows[number])
        worst = max(worst, (distance(expected[:size], prompt.logits[number, :size]), "the logits of a prompt"))
        worst = max(worst, (distance(expected[size:], stepped[number]), "the logits of the steps after a prompt"))
    return worst


CHECK = Check("cache", "decoding with a cache says the same", cheap=True, run=run)
ENGINE = Check("engine", "the engine that decodes here says the same", cheap=False, run=run_engine)
