"""Tied weights are one tensor:  output matrix = embedding table, encoder's table = decoder's table."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.models.model import Model
from chumoku.nn.embeddings import Embedding, Logits


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    config = model.config
    if not config.tie_output and not config.share_embeddings:
        raise Skip("this model has no tied weights")
    tables = {name: table for name in ("encoder", "decoder") if (table := table_of(model, name)) is not None}
    reading = tables.get("decoder", tables.get("encoder"))
    writing = next((module.weight for module in model.modules() if isinstance(module, Logits)), None)
    if config.tie_output and reading is not None and writing is not None:
        yield from compare(reading, writing, "the output matrix and the embedding table")
    if config.share_embeddings and len(tables) == 2:
        yield from compare(tables["encoder"], tables["decoder"], "the encoder's and the decoder's embedding tables")


def table_of(model: Model, stack: str) -> Tensor | None:
    embedding = getattr(getattr(model, stack, None), "embedding", None)
    return embedding.table if isinstance(embedding, Embedding) else None


def compare(one: Tensor, other: Tensor, what: str) -> Iterator[Finding]:
    if one.data_ptr() == other.data_ptr():
        return
    equal = one.shape == other.shape and torch.equal(one, other)
    yield Finding(
        "tied",
        "The tables that should be one are two tensors, which will differ after one step."
        if equal
        else "The tables that should be one are two tensors, and they differ.",
        what,
        0.9 if equal else 0.99,
        "Make them one parameter again, or set tie_output / share_embeddings to false.",
    )


CHECK = Check("tied", "tied weights are one tensor", cheap=True, run=run)
