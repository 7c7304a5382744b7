"""The KV cache is correct:  logits computed step by step, with rows of different lengths = logits of one full pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from chumoku.decoding.engines.open_engine import open_engine
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import (
    MAX_DOUBLE,
    ROWS,
    count_parameters,
    distance,
    pad_rows,
    restore_after,
    sample_batch,
    tolerance,
    unpadded_source,
)
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model

STEPS = ((0, 1), (1, 2), (2, 4))
MANY = 8  # rows, for a small model
ENGINE_TOLERANCE = 3e-3  # engines sum in another order, through many layers
SPARE = 3  # extra positions, so that a token written too far is measured instead of causing an error
GenerativeModel = DecoderModel | EncoderDecoderModel
Sources = list[Tensor] | None
TODO = "Check the positions of new tokens (past + i), where keys are written, and the mask over past tokens."


def run(subject: Subject) -> Iterator[Finding]:
    model = require_generative(subject)
    batch = sample_batch(subject, MANY if count_parameters(model) <= MAX_DOUBLE else ROWS)
    with restore_after(model), torch.no_grad():
        difference, what = cache_difference(model, batch)
        if difference > tolerance(model):
            yield Finding(
                "cache",
                f"With a cache, {what} differ by {difference:.1e} from the full pass.",
                "the decoder's cache",
                0.99,
                TODO,
            )


def run_engine(subject: Subject) -> Iterator[Finding]:
    model = require_generative(subject)
    batch = sample_batch(subject)
    with restore_after(model, precise=False), torch.no_grad():
        rows, later, sources = split_rows(model, batch)
        engine = open_engine(model, rows=len(rows), capacity=max(map(len, rows)) + later.shape[1] + SPARE)
        engine.add_rows(len(rows), None if sources is None else [source.tolist() for source in sources])
        found = [engine.prefill([row.tolist() for row in rows]).float()]
        found += [engine.step(later[:, place]).float() for place in range(later.shape[1])]
        worst = 0.0
        for row, expected in enumerate(full_logits(model, rows, later, sources)):
            stepped = torch.stack([logits[row] for logits in found])
            worst = max(worst, distance(expected[len(rows[row]) - 1 :].to(stepped.device), stepped))
    if worst > (ENGINE_TOLERANCE if model.dtype == torch.float32 else tolerance(model)):
        yield Finding(
            "engine",
            f"{type(engine).__name__}, which decodes this model here, differs by {worst:.1e} from the model itself.",
            "decoding",
            0.9,
            "Decode with the plain model (with chumoku.plain(): …) until this engine is fixed; please report it.",
        )


def require_generative(subject: Subject) -> GenerativeModel:
    model = subject.require_model()
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        raise Skip("an encoder has no cache")
    if model.config.labels is not None:
        raise Skip("this model generates no tokens")
    return model


def split_rows(model: Model, batch: Batch) -> tuple[list[Tensor], Tensor, Sources]:
    """Prompts of different lengths, the tokens that follow each, and sources of different lengths."""
    key = "target" if "target" in batch else "tokens"
    table = batch[key]
    later = min(STEPS[-1][1], table.shape[1] - 1)
    if later < 1:
        raise Skip("the texts are too short to split")
    capacity = table.shape[1] - later
    rows = [table[row, : max(1, capacity - 2 * row)] for row in range(len(table))]
    sources = (
        [unpadded_source(batch, row)[: max(1, len(unpadded_source(batch, row)) - row)] for row in range(len(table))]
        if "source" in batch
        else None
    )
    return rows, table[:, -later:], sources


def full_logits(model: GenerativeModel, rows: list[Tensor], later: Tensor, sources: Sources) -> Iterator[Tensor]:
    """The logits of each row, computed in one pass without a cache."""
    for number, row in enumerate(rows):
        tokens = torch.cat([row, later[number]])[None]
        output = model(tokens) if sources is None else model(sources[number][None], tokens)
        yield output.logits[0]


def cache_difference(model: GenerativeModel, batch: Batch) -> tuple[float, str]:
    rows, later, sources = split_rows(model, batch)
    table, _ = pad_rows(rows, 0)
    lengths = torch.tensor([len(row) for row in rows], device=table.device)
    step: Callable[..., Any]
    cache: Any
    capacity = table.shape[1] + later.shape[1] + SPARE
    pieces: list[Tensor] = []
    if isinstance(model, EncoderDecoderModel):
        source, mask = pad_rows(sources or [], 0)
        cache, step = model.new_cache(model.encode(source, mask=mask), capacity), model.decode
    else:
        cache, step = model.new_cache(len(rows), capacity), model
    prompt: Any = step(table, cache=cache, lengths=lengths)
    cache = prompt.cache
    for start, end in STEPS:
        if start < later.shape[1]:
            output: Any = step(later[:, start : min(end, later.shape[1])], cache=cache)
            cache = output.cache
            pieces.append(output.logits)
    stepped = torch.cat(pieces, 1)
    worst = (0.0, "")
    for number, expected in enumerate(full_logits(model, rows, later, sources)):
        length = len(rows[number])
        in_prompt = distance(expected[:length], prompt.logits[number, :length])
        worst = max(worst, (in_prompt, "the logits of a prompt"))
        worst = max(worst, (distance(expected[length:], stepped[number]), "the logits of the steps after a prompt"))
    return worst


CHECK = Check("cache", "decoding with a cache gives the same logits", cheap=True, run=run)
ENGINE = Check("engine", "the decoding engine gives the same logits", cheap=False, run=run_engine)
