"""Watching: one forward pass, seen from outside, whatever the kind of the model.

    encoder           model(tokens)                masked-token logits, or the text's vector
    decoder           model(tokens)                next-token logits
    encoder-decoder   model(source, tokens)        next-token logits of what is written

Looking never changes the result. With `debug`, or CHUMOKU_DEBUG=1 in the environment, that is checked each time
(`nn.unseen`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.model import Model, Output
from chumoku.nn.tap import Tape, record

Tokens = Tensor | Sequence[int]


class Given(NamedTuple):
    """What a model is asked: tokens [B, T], and the source [B, S] of one that translates."""

    tokens: Tensor
    source: Tensor | None = None


def given(model: Model, tokens: Tokens, source: Tokens | None = None) -> Given:
    """Numbers or tensors as the model wants them; one sequence is a batch of one."""
    wants = model.config.kind == "encoder-decoder"
    if wants != (source is not None):
        told = "reads a source: give source=" if wants else "reads one text alone: leave source out"
        raise UsageError(f"A model of kind '{model.config.kind}' {told}.")
    return Given(_batch(model, tokens), None if source is None else _batch(model, source))


def _batch(model: Model, tokens: Tokens) -> Tensor:
    whole = tokens if isinstance(tokens, Tensor) else torch.tensor(list(tokens), dtype=torch.int64)
    whole = whole.to(model.device)
    return whole[None] if whole.ndim == 1 else whole


def ask(model: Model, asked: Given) -> Output:
    """One forward pass without gradients and without dropout; afterwards every part is in the mode it was in."""
    with still(model), torch.no_grad():
        output: Output = model(asked.tokens) if asked.source is None else model(asked.source, asked.tokens)
    return output


def watch(
    model: Model, tokens: Tokens, *patterns: str, source: Tokens | None = None, debug: bool | None = None
) -> tuple[Output, Tape]:
    """What a model says, and what it had inside at the addresses that match (all of them when none is given)."""
    model = plain(model)
    asked = given(model, tokens, source)
    with record(model, *patterns, debug=debug) as tape:
        seen = ask(model, asked)
    return seen, tape


def answer(output: Output) -> Tensor:
    """What a model says: logits [B, T, V], or, without words to say, vectors [B, D]."""
    if output.logits is not None:
        return output.logits
    return output.hidden if output.vector is None else output.vector


def plain(model: Model) -> Model:
    """The model itself, where torch.compile has wrapped it."""
    found: Model = getattr(model, "_orig_mod", model)
    return found


@contextlib.contextmanager
def still(model: Model) -> Iterator[None]:
    """No part is in training mode inside; afterwards every part is in the mode it was in."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
