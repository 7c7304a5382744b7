"""Generation: a decoder goes on from a prompt, one token at a time.

    p = softmax(logits / temperature)      temperature 0: the likeliest token
    top_k   only the k likeliest           top_p   only the fewest likeliest that reach p together (Holtzman, 2019)
    token = the first t with p₀ + … + p_t > u · (p₀ + … + p_V)           u from [0, 1), of the row's own random numbers

A row's random numbers depend on (seed, row) alone, so its text does not depend on its batch mates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chumoku.data.order import generator
from chumoku.decoding.batch import FIRST_CAPACITY, answering, close_ranks, longest, said
from chumoku.errors import ChumokuError, LengthError, UsageError
from chumoku.models.model import DecoderModel
from chumoku.nn.cache import Cache

Chooser = Callable[[Tensor], Tensor]


class Live(NamedTuple):
    """The rows still written: their numbers in the batch given, what the model says to each, and their past."""

    rows: list[int]
    logits: Tensor  # [rows, V]
    cache: Cache


def generate(
    model: DecoderModel,
    tokens: Sequence[Sequence[int]],
    *,
    new: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    end: int | None = None,
) -> list[list[int]]:
    """Up to `new` tokens after each prompt, without the prompt and without `end`, at which a row stops.

    With learned positions, prompt and text together end at the model's context.
    """
    choosers = choosers_of(temperature, top_k=top_k, top_p=top_p)
    check(model, tokens, new)
    rooms = [longest(model, len(prompt) + new) - len(prompt) for prompt in tokens]
    written: list[list[int]] = [[] for _ in tokens]
    randoms = [generator(seed, row) for row in range(len(tokens))]
    if not any(rooms):
        return written
    with answering(model):
        live = read(model, tokens, [row for row, room in enumerate(rooms) if room], new=new)
        while live.rows:
            chosen = choose(live.logits, choosers, [randoms[row] for row in live.rows])
            for row, token in zip(live.rows, chosen.tolist(), strict=True):
                written[row].append(token)
            unfinished = (written[row][-1] != end and len(written[row]) < rooms[row] for row in live.rows)
            live = go_on(model, live, chosen, staying=[place for place, more in enumerate(unfinished) if more])
    return [row[:-1] if row and row[-1] == end else row for row in written]


def read(model: DecoderModel, tokens: Sequence[Sequence[int]], rows: list[int], *, new: int) -> Live:
    """The prompts in one pass, filled up on the right."""
    lengths = torch.tensor([len(tokens[row]) for row in rows])
    table = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for place, row in enumerate(rows):
        table[place, : lengths[place]] = torch.tensor(tokens[row])
    table, lengths = table.to(model.device), lengths.to(model.device)
    cache = model.new_cache(len(rows), table.shape[1] + min(new, FIRST_CAPACITY))
    # Rows of one length need no lengths, and the cache is faster without.
    ragged = min(len(tokens[row]) for row in rows) < table.shape[1]
    logits, cache = said(model(table, cache=cache, lengths=lengths if ragged else None))
    return Live(rows, logits[torch.arange(len(rows), device=logits.device), lengths - 1], cache)


def go_on(model: DecoderModel, live: Live, chosen: Tensor, *, staying: list[int]) -> Live:
    """The rows at the places `staying`, one token later."""
    if not staying:
        return live._replace(rows=[])
    rows, cache = live.rows, live.cache
    if len(staying) < len(rows):
        order = close_ranks(staying)
        index = torch.tensor(order, device=chosen.device)
        rows, chosen, cache = [rows[place] for place in order], chosen[index], cache.take(index)
    logits, cache = said(model(chosen[:, None], cache=cache.room(1)))
    return Live(rows, logits[:, -1], cache)


def choose(logits: Tensor, choosers: Sequence[Chooser] | None, randoms: Sequence[np.random.Generator]) -> Tensor:
    """A token for each row of [B, V]: the likeliest where there are no choosers, else one drawn after them."""
    if not logits.amax(-1).isfinite().all():
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    if choosers is None:
        return logits.argmax(-1)
    logits = logits.double()
    for chooser in choosers:
        logits = chooser(logits)
    return draw(logits, randoms)


def draw(logits: Tensor, randoms: Sequence[np.random.Generator]) -> Tensor:
    """A token for each row of [B, V], by one random number of the row's own."""
    shares = logits.softmax(-1).cumsum(-1)
    points = torch.tensor([random.random() for random in randoms], dtype=shares.dtype, device=shares.device)
    return torch.searchsorted(shares, points[:, None] * shares[:, -1:], right=True)[:, 0]


def tempered(logits: Tensor, *, temperature: float) -> Tensor:
    """Below 1 the likely become likelier, above 1 all become more alike."""
    return logits / temperature


def keep_top_k(logits: Tensor, *, k: int) -> Tensor:
    """All but the k largest become impossible."""
    values, tokens = logits.topk(min(k, logits.shape[-1]))
    return torch.full_like(logits, -math.inf).scatter(-1, tokens, values)


def keep_top_p(logits: Tensor, *, p: float) -> Tensor:
    """All become impossible but the fewest, likeliest ones whose probabilities reach p together."""
    values, tokens = logits.sort(descending=True, stable=True)
    reached = values.softmax(-1).cumsum(-1) >= p
    # What reaches p is still needed; what comes after it is not.
    values[..., 1:].masked_fill_(reached[..., :-1], -math.inf)
    return torch.empty_like(logits).scatter(-1, tokens, values)


def choosers_of(temperature: float, *, top_k: int | None, top_p: float | None) -> list[Chooser] | None:
    """What is done to the logits before one is drawn; None for greedy."""
    if (
        not 0 <= temperature < math.inf
        or (top_k is not None and top_k < 1)
        or (top_p is not None and not 0 < top_p <= 1)
    ):
        raise UsageError(
            f"Temperature is 0 or more, top_k 1 or more and top_p above 0 and at most 1; given were {temperature}, "
            f"{top_k} and {top_p}."
        )
    if temperature == 0:
        return None
    choosers: list[Chooser] = [functools.partial(tempered, temperature=temperature)]
    if top_k is not None:
        choosers.append(functools.partial(keep_top_k, k=top_k))
    if top_p is not None:
        choosers.append(functools.partial(keep_top_p, p=top_p))
    return choosers


def check(model: DecoderModel, tokens: Sequence[Sequence[int]], new: int) -> None:
    if not isinstance(model, DecoderModel):
        raise UsageError("Generation goes on from a prompt: it needs a model of kind 'decoder'.")
    if new < 0 or any(len(prompt) == 0 for prompt in tokens):
        raise UsageError(
            f"{new} new tokens were asked for after prompts of {[len(prompt) for prompt in tokens][:10]} tokens; a "
            "prompt has 1 or more (a begin token, where there is nothing else), and new is 0 or more."
        )
    most = max(map(len, tokens), default=0)
    if longest(model, most) < most:
        raise LengthError(
            f"A prompt has {most} tokens, and the learned positions of this model end at {model.config.context}. "
            "Shorten the prompt, or use a model with a larger context."
        )
