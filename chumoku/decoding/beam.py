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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import answering, close_ranks, longest
from chumoku.decoding.beam_rules import Hypothesis, Rules, check
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.top_k import largest
from chumoku.errors import ChumokuError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.tap import record

Going = Callable[[Sequence[int]], Sequence[bool]]  # asked at every step: which of these rows somebody still waits for


@dataclass(frozen=True)
class Live:
    """The hypotheses of the S sentences still searched: `beam` of each, or, before the first token, one."""

    sentences: list[int]  # their numbers in the batch given
    totals: Tensor  # [S, beam] log p so far
    written: Tensor  # [S · beam, t] tokens so far
    sums: Tensor  # [S · beam, t] log p up to each of them

    def keep(self, staying: list[int], beam: int) -> tuple[Live, list[int] | None]:
        """Only the sentences at these places, and the rows that are left of all; None while all are."""
        if len(staying) == len(self.sentences):
            return self, None
        order = close_ranks(staying)
        rows = [place * beam + row for place in order for row in range(beam)]
        index, taken = (
            torch.tensor(numbers, dtype=torch.int64, device=self.totals.device) for numbers in (order, rows)
        )
        sentences = [self.sentences[place] for place in order]
        return Live(sentences, self.totals[index], self.written[taken], self.sums[taken]), rows


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
    going: Going | None = None,
    tree: Tree | None = None,
) -> list[list[Hypothesis]]:
    """The `best` hypotheses for each row of `source` [B, S], best first.

    `limit` is the most tokens written, the end token among them, for all rows or for each; learned positions may end
    earlier. No sentence ends before it has `least` tokens. Tokens in `forbidden` are never written. With `look`, each
    hypothesis comes with its cross-attention. Rows that are no longer `going` leave with none; a `tree` hears of all
    that was looked at for the first row.
    """
    limits = [longest(model, each) for each in ([limit] * len(source) if isinstance(limit, int) else limit)]
    limits = limits if engine is None else [min(each, engine.capacity) for each in limits]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits, least)
    check(model, len(source), rules, kind=EncoderDecoderModel)
    sources = real(source, source_mask)
    engine = engine or open_engine(model, rows=len(sources) * beam, capacity=max(limits))
    ranked = searched(engine, [[begin]] * len(sources), sources, rules, going=going, tree=tree)
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
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    rules: Rules,
    *,
    going: Going | None = None,
    tree: Tree | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses behind each prompt; none for those that are no longer going."""
    engine.take([])
    engine.enter(len(prompts), sources)
    logits = engine.read(prompts)
    live = begun(len(prompts), engine.device)
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    left: set[int] = set()
    for length in itertools.count(1):
        candidates = rank(logits, live.totals, rules, length=length)
        collect(found, live, candidates, rules=rules, length=length)
        live, order = go_on(live, candidates, rules)
        if tree is not None and live.sentences[0] == 0:
            grow(tree, live, candidates, order, rules=rules, length=length)
        tops = zip(live.sentences, live.totals[:, 0].tolist(), strict=True)
        done = [rules.done(found[row], top, length=length, limit=rules.limits[row]) for row, top in tops]
        if going is not None:
            wanted = going(live.sentences)
            left |= {row for row, still in zip(live.sentences, wanted, strict=True) if not still}
            done = [over or not still for over, still in zip(done, wanted, strict=True)]
        live, rows = live.keep([place for place, over in enumerate(done) if not over], rules.beam)
        # Once for both: for the beams that go on, and for the sentences that leave.
        if rows is not None or rules.beam > 1:
            engine.take(order if rows is None else [order[row] for row in rows])
        if not live.sentences:
            break
        logits = engine.step(live.written[:, -1])
    if not all(row or number in left for number, row in enumerate(found)):
        raise ChumokuError("The model's answers are no finite numbers, so no token is likelier than another.")
    ranked = [sorted(row, key=lambda one: -one.score)[: rules.best] for row in found]
    return [[] if number in left else row for number, row in enumerate(ranked)]


def begun(count: int, device: torch.device) -> Live:
    """Before the first token."""
    nothing = torch.zeros(count, 0, device=device)
    return Live(list(range(count)), torch.zeros(count, 1, device=device), nothing.long(), nothing)


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
    normalizer = logits.logsumexp(-1, keepdim=True)
    forbidden = [*rules.forbidden, *([rules.end] if length <= rules.least else [])]
    if forbidden:
        logits.index_fill_(-1, torch.tensor(forbidden, device=logits.device), -math.inf)
    # The best of a sentence are among the best of its rows.
    values, tokens = largest(logits, min(2 * beam, logits.shape[-1]))
    width = values.shape[-1]
    sums = ((values - normalizer).view(sentences, live, width) + totals[:, :, None]).flatten(1)
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
        row, total = rows[place, nth], float(totals[place, nth])
        written = live.written[row].tolist() + ([] if last == rules.end else [last])
        sums = [0.0, *live.sums[row].tolist(), total]
        steps = [after - before for before, after in itertools.pairwise(sums)]
        one = Hypothesis(written, rules.score(total, length), logprobs=steps)
        found[live.sentences[place]].append(one)


def go_on(live: Live, candidates: Candidates, rules: Rules) -> tuple[Live, list[int]]:
    """The `beam` likeliest candidates that do not end, and which row each of them continues."""
    open_ones = candidates.totals.masked_fill(candidates.tokens == rules.end, -math.inf)
    totals, chosen = open_ones.topk(rules.beam)
    rows = candidates.rows.gather(1, chosen).flatten()
    tokens = candidates.tokens.gather(1, chosen).flatten()
    written = torch.cat([live.written[rows], tokens[:, None]], 1)
    sums = torch.cat([live.sums[rows], totals.flatten()[:, None]], 1)
    return Live(live.sentences, totals, written, sums), rows.tolist()


def grow(tree: Tree, live: Live, candidates: Candidates, order: list[int], *, rules: Rules, length: int) -> None:
    """Tell the tree what was looked at for the first sentence, which ends here and which lives on."""
    totals, rows, tokens = (part[0].tolist() for part in candidates)
    cut = rules.limits[0] == length
    ended = [nth < rules.beam and (cut or token == rules.end) for nth, token in enumerate(tokens)]
    kept = list(zip(order[: rules.beam], live.written[: rules.beam, -1].tolist(), strict=True))
    tree.grow(list(zip(totals, rows, tokens, strict=True)), ended, [] if cut else kept, step=length)
