"""Beam search: the translations a model finds likeliest, looked for a few at a time.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^α         |y| counts the end token; α is `length_penalty` (GNMT, 2016)

    step        of all continuations of a sentence's live hypotheses, the `beam` likeliest that do not end live on;
                those that end and stand among the first `beam` of all are finished
    done        when `beam` hypotheses are finished, or when no live one can score above the best of them:
                log p only falls, so one of log p = s attains at most the larger of its scores at the next length
                and at `limit`
    at `limit`  hypotheses are cut, and compete as they are

The encoder runs once. Sentences that are done leave the batch. A beam of one is greedy search. `look` shows where each
word of a translation looked: one more pass over it, in which the weights are kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import answering, close_ranks, longest
from chumoku.decoding.engine import Engine, open_engine
from chumoku.decoding.select import largest
from chumoku.errors import ChumokuError, UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.nn.tap import record

STEEPEST = 10  # steeper, a score leaves what a float holds


class Hypothesis(NamedTuple):
    tokens: list[int]  # without begin and end
    score: float
    attention: Tensor | None = None  # [L, H, T, S] of each token and of what followed the last, when asked for


@dataclass(frozen=True)
class Rules:
    """What does not change during a search."""

    end: int
    beam: int
    best: int
    length_penalty: float
    forbidden: list[int]
    limits: list[int]  # a row's own
    least: int = 0

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
    """The hypotheses of the S sentences still searched: `beam` of each, or, before the first token, one."""

    sentences: list[int]  # their numbers in the batch given
    totals: Tensor  # [S, beam] log p so far
    written: Tensor  # [S · beam, t] tokens so far

    def keep(self, staying: list[int], beam: int) -> tuple[Live, list[int] | None]:
        """Only the sentences at these places, and the rows that are left of all; None while all are."""
        if len(staying) == len(self.sentences):
            return self, None
        order = close_ranks(staying)
        rows = [place * beam + row for place in order for row in range(beam)]
        index, taken = (
            torch.tensor(numbers, dtype=torch.int64, device=self.totals.device) for numbers in (order, rows)
        )
        return Live([self.sentences[place] for place in order], self.totals[index], self.written[taken]), rows


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
    least: int = 0,
    best: int = 1,
    forbidden: Sequence[int] = (),
    look: bool = False,
    engine: Engine | None = None,
) -> list[list[Hypothesis]]:
    """The `best` hypotheses for each row of `source` [B, S], best first.

    `limit` is the most tokens written, the end token among them, for all rows or for each; learned positions may end
    earlier. No sentence ends before it has `least` tokens. Tokens in `forbidden` are never written. With `look`, each
    hypothesis comes with its cross-attention.
    """
    limits = [longest(model, each) for each in ([limit] * len(source) if isinstance(limit, int) else limit)]
    limits = limits if engine is None else [min(each, engine.capacity) for each in limits]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits, least)
    check(model, len(source), rules, kind=EncoderDecoderModel)
    sources = real(source, source_mask)
    engine = engine or open_engine(model, rows=len(sources) * beam, capacity=max(limits))
    ranked = searched(engine, [[begin]] * len(sources), sources, rules)
    return with_attention(model, sources, ranked, begin) if look else ranked


def likeliest(
    model: DecoderModel,
    prompts: Sequence[Sequence[int]],
    *,
    new: int,
    end: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    least: int = 0,
    best: int = 1,
    forbidden: Sequence[int] = (),
    engine: Engine | None = None,
) -> list[list[Hypothesis]]:
    """The `best` ways a decoder goes on from each prompt, best first: up to `new` tokens, the end token among them."""
    limits = [longest(model, len(prompt) + new) - len(prompt) for prompt in prompts]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits, least)
    check(model, len(prompts), rules, kind=DecoderModel)
    capacity = max(map(len, prompts)) + max(limits)
    engine = engine or open_engine(model, rows=len(prompts) * beam, capacity=capacity)
    return searched(engine, prompts, None, rules)


@torch.inference_mode()
def searched(
    engine: Engine, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, rules: Rules
) -> list[list[Hypothesis]]:
    """The best hypotheses behind each prompt."""
    engine.take([])
    engine.enter(len(prompts), sources)
    logits = engine.read(prompts)
    numbers, device = list(range(len(prompts))), engine.device
    live = Live(
        numbers, torch.zeros(len(prompts), 1, device=device), torch.zeros(len(prompts), 0, device=device).long()
    )
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    for length in itertools.count(1):
        candidates = rank(logits, live.totals, rules, length=length)
        collect(found, live, candidates, rules=rules, length=length)
        live, order = go_on(live, candidates, rules)
        tops = zip(live.sentences, live.totals[:, 0].tolist(), strict=True)
        done = [rules.done(found[row], top, length=length, limit=rules.limits[row]) for row, top in tops]
        live, rows = live.keep([place for place, over in enumerate(done) if not over], rules.beam)
        # Once for both: for the beams that go on, and for the sentences that leave.
        if rows is not None or rules.beam > 1:
            engine.take(order if rows is None else [order[row] for row in rows])
        if not live.sentences:
            break
        logits = engine.step(live.written[:, -1])
    if not all(found):
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    return [sorted(row, key=lambda one: -one.score)[: rules.best] for row in found]


def look(model: EncoderDecoderModel, source: Sequence[int], tokens: Sequence[int], begin: int) -> Tensor:
    """The cross-attention [L, H, T, S] with which each token was written after `begin`, and what followed the last."""
    with answering(model), record(model, "decoder.blocks.*.cross_attention.weights") as tape:
        model(*(torch.tensor([row], device=model.device) for row in (source, [begin, *tokens])))
    return torch.stack([weights[0] for weights in tape.values()])


def with_attention(
    model: EncoderDecoderModel, sources: list[list[int]], ranked: list[list[Hypothesis]], begin: int
) -> list[list[Hypothesis]]:
    pairs = zip(sources, ranked, strict=True)
    return [[one._replace(attention=look(model, source, one.tokens, begin)) for one in row] for source, row in pairs]


def check(model: Model, rows: int, rules: Rules, *, kind: type[Model]) -> None:
    if not isinstance(model, kind):
        name = "encoder-decoder" if kind is EncoderDecoderModel else "decoder"
        raise UsageError(f"This search reads and writes as models of kind '{name}' do, and needs one of them.")
    if not 1 <= rules.best <= rules.beam:
        raise UsageError(f"The {rules.best} best of a beam of {rules.beam} were asked for; give 1 ≤ best ≤ beam.")
    if not abs(rules.length_penalty) <= STEEPEST:
        raise UsageError(
            f"A length penalty is a number from −{STEEPEST} to {STEEPEST}, 0 for none; "
            f"{rules.length_penalty} was given."
        )
    if len(rules.limits) != rows or min(rules.limits, default=0) < 1:
        raise UsageError(
            f"A limit is 1 or more, for all rows or for each of the {rows}, and there must be a row; "
            f"the limits are {rules.limits[:10]}."
        )
    for token in (rules.end, *rules.forbidden):
        if not 0 <= token < model.config.vocabulary:
            raise UsageError(
                f"There is no token {token} to end with or to forbid; there are {model.config.vocabulary}."
            )
    if not 0 <= rules.least < min(rules.limits):
        raise UsageError(
            f"At least {rules.least} tokens were asked for, and a row may have {min(rules.limits)} with its end; give "
            "0 or more, and leave room for the end."
        )
    if rules.end in rules.forbidden:
        raise UsageError(f"Token {rules.end} ends a sentence, so it cannot be forbidden.")


def real(source: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The tokens of each row without what fills it up."""
    if mask is None:
        return source.tolist()
    return [row[there].tolist() for row, there in zip(source.cpu(), mask.cpu(), strict=True)]


def rank(logits: Tensor, totals: Tensor, rules: Rules, *, length: int) -> Candidates:
    """The 2 · beam likeliest continuations: at most `beam` of them end, so `beam` are left that do not."""
    (sentences, live), beam = totals.shape, rules.beam
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # p is the model's own: what is forbidden is not shared out among the rest.
    normaliser = logits.logsumexp(-1, keepdim=True)
    forbidden = [*rules.forbidden, *([rules.end] if length <= rules.least else [])]
    if forbidden:
        logits.index_fill_(-1, torch.tensor(forbidden, device=logits.device), -math.inf)
    # The best of a sentence are among the best of its rows.
    values, tokens = largest(logits, min(2 * beam, logits.shape[-1]))
    width = values.shape[-1]
    sums = ((values - normaliser).view(sentences, live, width) + totals[:, :, None]).flatten(1)
    # Fewer tokens than beams: the rest of the beam is impossible.
    sums = F.pad(sums, (0, max(0, 2 * beam - live * width)), value=-math.inf)
    # Stable, so that a beam of one takes the row's first even where rounding has made two alike.
    values, order = sums.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, : 2 * beam], order[:, : 2 * beam].clamp(max=live * width - 1)
    rows = order // width + live * torch.arange(sentences, device=order.device)[:, None]
    return Candidates(values, rows, tokens.view(sentences, live * width).gather(1, order))


def collect(found: list[list[Hypothesis]], live: Live, candidates: Candidates, *, rules: Rules, length: int) -> None:
    """Keep the candidates among the first `beam` that end here, or that are cut here."""
    totals, rows, tokens = (part[:, : rules.beam] for part in candidates)
    cut = torch.tensor([rules.limits[row] == length for row in live.sentences], device=tokens.device)
    ending = ((tokens == rules.end) | cut[:, None]) & totals.isfinite()
    for place, nth in ending.nonzero().tolist():
        last = int(tokens[place, nth])
        written = live.written[rows[place, nth]].tolist() + ([] if last == rules.end else [last])
        found[live.sentences[place]].append(Hypothesis(written, rules.score(float(totals[place, nth]), length)))


def go_on(live: Live, candidates: Candidates, rules: Rules) -> tuple[Live, list[int]]:
    """The `beam` likeliest candidates that do not end, and which row each of them continues."""
    open_ones = candidates.totals.masked_fill(candidates.tokens == rules.end, -math.inf)
    totals, chosen = open_ones.topk(rules.beam)
    rows = candidates.rows.gather(1, chosen).flatten()
    tokens = candidates.tokens.gather(1, chosen).flatten()
    return Live(live.sentences, totals, torch.cat([live.written[rows], tokens[:, None]], 1)), rows.tolist()
