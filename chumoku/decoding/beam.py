"""Beam search: the translations a model finds likeliest, looked for a few at a time.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^α         |y| counts the end token; α is `length_penalty` (GNMT, 2016)

    step        of all continuations of a sentence's live hypotheses, the `beam` likeliest that do not end live on;
                those that end and stand among the first `beam` of all are finished
    done        when `beam` hypotheses are finished, or when no live one can score above the best of them:
                log p only falls, so one of log p = s attains at most the larger of its scores at the next length
                and at `limit`
    at `limit`  hypotheses are cut, and compete as they are

The encoder runs once. Sentences that are done leave the batch. A beam of one is greedy search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.batch import FIRST_CAPACITY, answering, close_ranks, longest, said
from chumoku.errors import ChumokuError, UsageError
from chumoku.models.model import EncoderDecoderModel
from chumoku.nn.cache import Cache


class Hypothesis(NamedTuple):
    tokens: list[int]  # without begin and end
    score: float


@dataclass(frozen=True)
class Rules:
    """What does not change during a search."""

    end: int
    beam: int
    best: int
    length_penalty: float
    forbidden: list[int]
    limits: list[int]  # a row's own

    def score(self, total: float, length: int) -> float:
        return float(total / ((5 + length) / 6) ** self.length_penalty)

    def done(self, found: list[Hypothesis], live: float, *, length: int, limit: int) -> bool:
        """Whether nothing above the `best` ones found can come of live hypotheses whose log p is `live` or less."""
        if length >= limit or len(found) >= self.beam or live == -math.inf:
            return True
        attainable = max(self.score(live, length + 1), self.score(live, limit))
        return sum(one.score >= attainable for one in found) >= self.best


@dataclass(frozen=True)
class Live:
    """The hypotheses of the S sentences still searched, in S · beam rows."""

    sentences: list[int]  # their numbers in the batch given
    totals: Tensor  # [S, beam] log p so far
    written: Tensor  # [S · beam, t] tokens so far, begin first
    cache: Cache

    def keep(self, staying: list[int], beam: int) -> Live:
        """Only the sentences at these places."""
        if not staying or len(staying) == len(self.sentences):
            return self if staying else replace(self, sentences=[])
        order = close_ranks(staying)
        index = torch.tensor(order, device=self.totals.device)
        rows = (index[:, None] * beam + torch.arange(beam, device=index.device)).flatten()
        return Live([self.sentences[i] for i in order], self.totals[index], self.written[rows], self.cache.take(rows))


class Candidates(NamedTuple):
    """A sentence's likeliest continuations, best first: [S, 2 · beam] each."""

    totals: Tensor
    rows: Tensor  # which row each continues
    tokens: Tensor


def search(
    model: EncoderDecoderModel,
    source: Tensor,
    *,
    source_mask: Tensor | None = None,
    begin: int,
    end: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    limit: int | Sequence[int] = 256,
    best: int = 1,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The `best` hypotheses for each row of `source` [B, S], best first.

    `limit` is the most tokens written, the end token among them, for all rows or for each; learned positions may end
    earlier. Tokens in `forbidden` are never written.
    """
    limits = [longest(model, each) for each in ([limit] * len(source) if isinstance(limit, int) else limit)]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits)
    check(model, source, rules)
    found: list[list[Hypothesis]] = [[] for _ in limits]
    length = 0
    with answering(model):
        live = start(model, source, source_mask, begin=begin, rules=rules)
        while live.sentences:
            length += 1
            logits, cache = said(model.decode(live.written[:, -1:], cache=live.cache.room(1)))
            candidates = rank(logits[:, -1], live.totals, rules)
            collect(found, live, candidates, rules=rules, length=length)
            live = go_on(live, candidates, cache, rules)
            likeliest = zip(live.sentences, live.totals[:, 0].tolist(), strict=True)
            done = [rules.done(found[row], top, length=length, limit=limits[row]) for row, top in likeliest]
            live = live.keep([place for place, over in enumerate(done) if not over], beam)
    if not all(found):
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    return [sorted(row, key=lambda one: -one.score)[:best] for row in found]


def check(model: EncoderDecoderModel, source: Tensor, rules: Rules) -> None:
    if not isinstance(model, EncoderDecoderModel):
        raise UsageError("Beam search reads a source and writes a target: it needs a model of kind 'encoder-decoder'.")
    if not 1 <= rules.best <= rules.beam:
        raise UsageError(f"The {rules.best} best of a beam of {rules.beam} were asked for; give 1 ≤ best ≤ beam.")
    if len(rules.limits) != len(source) or min(rules.limits, default=0) < 1:
        raise UsageError(
            f"A limit is 1 or more, for all rows or for each of the {len(source)}, and there must be a row; "
            f"the limits are {rules.limits[:10]}."
        )
    for token in (rules.end, *rules.forbidden):
        if not 0 <= token < model.config.vocabulary:
            raise UsageError(
                f"There is no token {token} to end with or to forbid; there are {model.config.vocabulary}."
            )
    if rules.end in rules.forbidden:
        raise UsageError(f"Token {rules.end} ends a sentence, so it cannot be forbidden.")


def start(model: EncoderDecoderModel, source: Tensor, mask: Tensor | None, *, begin: int, rules: Rules) -> Live:
    """Every sentence with one hypothesis, the empty one; the rest of its beam is impossible."""
    memory = model.encode(source, mask=mask)
    beam, capacity = rules.beam, min(max(rules.limits), FIRST_CAPACITY)
    precise = torch.promote_types(model.dtype, torch.float32)
    totals = torch.full((len(source), beam), -math.inf, dtype=precise, device=source.device)
    totals[:, 0] = 0.0
    written = torch.full((len(source) * beam, 1), begin, device=source.device)
    return Live(list(range(len(source))), totals, written, model.new_cache(memory, capacity).repeat(beam))


def rank(logits: Tensor, totals: Tensor, rules: Rules) -> Candidates:
    """The 2 · beam likeliest continuations: at most `beam` of them end, so `beam` are left that do not."""
    sentences, beam = totals.shape
    logits = logits.to(totals.dtype)
    # p is the model's own: what is forbidden is not shared out among the rest.
    normaliser = logits.logsumexp(-1, keepdim=True)
    if rules.forbidden:
        logits = logits.index_fill(-1, torch.tensor(rules.forbidden, device=logits.device), -math.inf)
    # The best of a sentence are among the best of its rows.
    values, tokens = logits.topk(min(2 * beam, logits.shape[-1]))
    width = values.shape[-1]
    sums = (values - normaliser).view(sentences, beam, width) + totals[:, :, None]
    # Stable, so that a beam of one takes the row's first even where rounding has made two alike.
    values, order = sums.flatten(1).sort(dim=-1, descending=True, stable=True)
    values, order = values[:, : 2 * beam], order[:, : 2 * beam]
    rows = order // width + beam * torch.arange(sentences, device=order.device)[:, None]
    return Candidates(values, rows, tokens.view(sentences, beam * width).gather(1, order))


def collect(found: list[list[Hypothesis]], live: Live, candidates: Candidates, *, rules: Rules, length: int) -> None:
    """Keep the candidates among the first `beam` that end here, or that are cut here."""
    totals, rows, tokens = (part[:, : rules.beam] for part in candidates)
    cut = torch.tensor([rules.limits[row] == length for row in live.sentences], device=tokens.device)
    ending = ((tokens == rules.end) | cut[:, None]) & totals.isfinite()
    for place, nth in ending.nonzero().tolist():
        last = int(tokens[place, nth])
        written = live.written[rows[place, nth], 1:].tolist() + ([] if last == rules.end else [last])
        found[live.sentences[place]].append(Hypothesis(written, rules.score(float(totals[place, nth]), length)))


def go_on(live: Live, candidates: Candidates, cache: Cache, rules: Rules) -> Live:
    """The `beam` likeliest candidates that do not end, each behind the row it continues."""
    open_ones = candidates.totals.masked_fill(candidates.tokens == rules.end, -math.inf)
    totals, chosen = open_ones.topk(rules.beam)
    rows = candidates.rows.gather(1, chosen).flatten()
    tokens = candidates.tokens.gather(1, chosen).flatten()
    # Rows change places within their sentence, whose source is the same for all of them.
    cache = cache.take(rows, memory=False) if rules.beam > 1 else cache
    return Live(live.sentences, totals, torch.cat([live.written[rows], tokens[:, None]], 1), cache)
