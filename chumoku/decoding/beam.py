"""Beam search: the most likely outputs of a model, with `beam` hypotheses per sentence.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^α         |y| counts the end token; α is `length_penalty` (GNMT, 2016)

    step        of all continuations of a sentence's live hypotheses, the `beam` most likely without end token stay
                live; those with an end token that are among the first `beam` of all are finished
    done        when `beam` hypotheses are finished, or when no live one can score above the best of them:
                log p only falls, so a hypothesis with log p = s reaches at most the larger of its scores at the next
                length and at `limit`
    at `limit`  hypotheses are cut, and compete as they are

The encoder runs once. Sentences that are done leave the batch. A beam of one is greedy search. `cross_attention` runs
the model once more over a finished translation to get its attention weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import compact_rows, inference_mode, longest
from chumoku.decoding.beam_rules import Hypothesis, Rules, check
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.native import ranking
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.top_k import largest
from chumoku.errors import ChumokuError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.plain import plain_formulas
from chumoku.nn.tap import record

StillWanted = Callable[[Sequence[int]], Sequence[bool]]  # called at every step: which of these rows to continue


class Prefix(NamedTuple):
    """A live hypothesis: its last token after those of another prefix, and log p of all of them."""

    before: Prefix | None
    token: int
    total: float


class Sentence(NamedTuple):
    """The live hypotheses of a sentence: `beam` of them, best first; before the first token, one."""

    number: int  # its row in the input
    beams: list[Prefix]


class Candidate(NamedTuple):
    """A continuation of a live hypothesis."""

    total: float
    row: int  # of the hypothesis that it continues
    token: int


def search(
    model: EncoderDecoderModel,
    source: Tensor,
    *,
    source_mask: Tensor | None = None,
    begin: int | Sequence[int],
    end: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    limit: int | Sequence[int] = 256,
    min_new_tokens: int = 0,
    best: int = 1,
    forbidden: Sequence[int] = (),
    return_attention: bool = False,
    engine: Engine | None = None,
    still_wanted: StillWanted | None = None,
    tree: Tree | None = None,
) -> list[list[Hypothesis]]:
    """The `best` hypotheses for each row of `source` [B, S], best first.

    begin               the token that every output begins with, or several
    limit               most tokens including the end token, for all rows or for each; learned positions may end earlier
    forbidden           tokens that are never generated
    return_attention    each hypothesis comes with its cross-attention
    still_wanted        gets the live rows at every step; rows for which it returns False are dropped without result
    tree                records the search of the first row
    """
    prompt = [begin] if isinstance(begin, int) else list(begin)
    before = len(prompt) - 1  # tokens that take a place besides those that are counted by `limit`
    limits = [
        longest(model, before + each) - before for each in ([limit] * len(source) if isinstance(limit, int) else limit)
    ]
    limits = limits if engine is None else [min(each, engine.capacity - before) for each in limits]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits, min_new_tokens)
    check(model, len(source), rules, kind=EncoderDecoderModel)
    sources = unpad(source, source_mask)
    engine = engine or open_engine(model, rows=len(sources) * beam, capacity=before + max(limits))
    ranked = run_search(engine, [prompt] * len(sources), sources, rules, still_wanted=still_wanted, tree=tree)
    return with_attention(model, sources, ranked, prompt) if return_attention else ranked


def search_continuations(
    model: DecoderModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    end: int,
    beam: int = 1,
    length_penalty: float = 1.0,
    min_new_tokens: int = 0,
    best: int = 1,
    forbidden: Sequence[int] = (),
    engine: Engine | None = None,
) -> list[list[Hypothesis]]:
    """The `best` continuations of each prompt by a decoder, best first; `max_new_tokens` includes the end token."""
    limits = [longest(model, len(prompt) + max_new_tokens) - len(prompt) for prompt in prompts]
    rules = Rules(end, beam, best, length_penalty, sorted(set(forbidden)), limits, min_new_tokens)
    check(model, len(prompts), rules, kind=DecoderModel)
    capacity = max(map(len, prompts)) + max(limits)
    engine = engine or open_engine(model, rows=len(prompts) * beam, capacity=capacity)
    return run_search(engine, prompts, None, rules)


@torch.inference_mode()
def run_search(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None,
    rules: Rules,
    *,
    still_wanted: StillWanted | None = None,
    tree: Tree | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each prompt; none for rows that are no longer wanted."""
    engine.select_rows([])
    engine.add_rows(len(prompts), sources)
    logits = engine.prefill(prompts)
    live = [Sentence(number, [Prefix(None, -1, 0.0)]) for number in range(len(prompts))]
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    dropped: set[int] = set()
    for length in itertools.count(1):
        totals = [[one.total for one in sentence.beams] for sentence in live]
        candidates = rank_candidates(logits, totals, rules, length=length)
        collect(found, live, candidates, rules=rules, length=length)
        live, order = advance(live, candidates, rules)
        if tree is not None and live[0].number == 0:
            grow_tree(tree, live[0], candidates[0], order, rules=rules, length=length)
        done = [
            rules.done(found[number], beams[0].total, length=length, limit=rules.limits[number])
            for number, beams in live
        ]
        if still_wanted is not None:
            wanted = still_wanted([sentence.number for sentence in live])
            dropped |= {sentence.number for sentence, still in zip(live, wanted, strict=True) if not still}
            done = [over or not still for over, still in zip(done, wanted, strict=True)]
        if any(done):
            staying = compact_rows([place for place, over in enumerate(done) if not over])
            live = [live[place] for place in staying]
            order = [order[place * rules.beam + nth] for place in staying for nth in range(rules.beam)]
        # One move of rows for both: beams that continue, and sentences that leave.
        if any(done) or rules.beam > 1:
            engine.select_rows(order)
        if not live:
            break
        tokens = [one.token for sentence in live for one in sentence.beams]
        logits = engine.step(torch.tensor(tokens, device=engine.device))
    if not all(row or number in dropped for number, row in enumerate(found)):
        raise ChumokuError("The model's logits are not finite numbers, so no token can be chosen.")
    ranked = [sorted(row, key=lambda one: -one.score)[: rules.best] for row in found]
    return [[] if number in dropped else row for number, row in enumerate(ranked)]


def cross_attention(
    model: EncoderDecoderModel, source: Sequence[int], tokens: Sequence[int], begin: int | Sequence[int]
) -> Tensor:
    """The cross-attention [L, H, T, S] that produced each token after `begin`, and the step after the last token."""
    prompt = [begin] if isinstance(begin, int) else list(begin)
    with inference_mode(model), record(model, "decoder.blocks.*.cross_attention.weights") as tape:
        model(*(torch.tensor([row], device=model.device) for row in (source, [*prompt, *tokens])))
    return torch.stack([weights[0, :, len(prompt) - 1 :] for weights in tape.values()])


def with_attention(
    model: EncoderDecoderModel, sources: list[list[int]], ranked: list[list[Hypothesis]], begin: Sequence[int]
) -> list[list[Hypothesis]]:
    pairs = zip(sources, ranked, strict=True)
    return [
        [one._replace(attention=cross_attention(model, source, one.tokens, begin)) for one in row]
        for source, row in pairs
    ]


def unpad(source: Tensor, mask: Tensor | None) -> list[list[int]]:
    """The tokens of each row without padding."""
    if mask is None:
        return source.tolist()
    return [row[there].tolist() for row, there in zip(source.cpu(), mask.cpu(), strict=True)]


def rank_candidates(logits: Tensor, totals: list[list[float]], rules: Rules, *, length: int) -> list[list[Candidate]]:
    """The 2 · beam most likely continuations of each sentence: at most `beam` end, so at least `beam` do not.

    logits    [S · live, V]
    totals    log p of the live hypotheses so far
    """
    # p is the model's own distribution: it is not renormalized without the forbidden tokens.
    forbidden = sorted([*rules.forbidden, *([rules.end] if length <= rules.min_new_tokens else [])])
    rank = ranking.rank if ranking.can_rank(logits) and not plain_formulas() else rank_plain
    return [[Candidate(*one) for one in each] for each in rank(logits, totals, forbidden, 2 * rules.beam)]


def rank_plain(
    logits: Tensor, totals: Sequence[Sequence[float]], forbidden: Sequence[int], wanted: int
) -> list[list[tuple[float, int, int]]]:
    """The `wanted` most likely continuations of each sentence, best first: (log p, row, token)."""
    sentences, live = len(totals), len(totals[0])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normalizer = logits.logsumexp(-1, keepdim=True)
    if forbidden:
        logits = logits.index_fill(-1, torch.tensor(forbidden, device=logits.device), -math.inf)
    # The best of a sentence are among the best of each of its rows.
    values, tokens = largest(logits, min(wanted, logits.shape[-1]))
    width = values.shape[-1]
    before = torch.tensor(totals, dtype=logits.dtype, device=logits.device)
    sums = ((values - normalizer).view(sentences, live, width) + before[:, :, None]).flatten(1)
    # If there are fewer tokens than beams, the rest of the beam gets −∞.
    sums = F.pad(sums, (0, max(0, wanted - live * width)), value=-math.inf)
    # A stable sort, so that a beam of one equals argmax even where rounding made two sums equal.
    values, order = sums.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, :wanted], order[:, :wanted].clamp(max=live * width - 1)
    rows = order // width + live * torch.arange(sentences, device=order.device)[:, None]
    found = (values, rows, tokens.view(sentences, live * width).gather(1, order))
    return [list(zip(*each, strict=True)) for each in zip(*(part.tolist() for part in found), strict=True)]


def collect(
    found: list[list[Hypothesis]],
    live: list[Sentence],
    candidates: list[list[Candidate]],
    *,
    rules: Rules,
    length: int,
) -> None:
    """Add the candidates among the first `beam` that end here, or that are cut here, to `found`."""
    prefixes = [one for sentence in live for one in sentence.beams]
    for sentence, ranked in zip(live, candidates, strict=True):
        cut = rules.limits[sentence.number] == length
        for total, row, token in ranked[: rules.beam]:
            if (cut or token == rules.end) and math.isfinite(total):
                text, sums = spell_out(Prefix(prefixes[row], token, total))
                steps = [after - before for before, after in itertools.pairwise(sums)]
                text = text[:-1] if token == rules.end else text
                found[sentence.number].append(Hypothesis(text, rules.score(total, length), logprobs=steps))


def spell_out(prefix: Prefix) -> tuple[list[int], list[float]]:
    """The tokens of a hypothesis, and log p before the first and after each of them."""
    tokens, sums = [], [prefix.total]
    while prefix.before is not None:
        tokens.append(prefix.token)
        prefix = prefix.before
        sums.append(prefix.total)
    return tokens[::-1], sums[::-1]


def advance(live: list[Sentence], candidates: list[list[Candidate]], rules: Rules) -> tuple[list[Sentence], list[int]]:
    """The `beam` most likely candidates that do not end, and the row that each of them continues."""
    prefixes = [one for sentence in live for one in sentence.beams]
    longer, order = [], []
    for sentence, ranked in zip(live, candidates, strict=True):
        # If there are fewer tokens than beams, too few may be left, and the rest of the beam gets −∞.
        ended = [one._replace(total=-math.inf) for one in ranked if one.token == rules.end]
        chosen = [*(one for one in ranked if one.token != rules.end), *ended][: rules.beam]
        longer.append(Sentence(sentence.number, [Prefix(prefixes[row], token, total) for total, row, token in chosen]))
        order += [one.row for one in chosen]
    return longer, order


def grow_tree(
    tree: Tree, sentence: Sentence, candidates: list[Candidate], order: list[int], *, rules: Rules, length: int
) -> None:
    """Add the candidates of the first sentence to the tree: which end here and which stay live."""
    cut = rules.limits[0] == length
    ended = [nth < rules.beam and (cut or one.token == rules.end) for nth, one in enumerate(candidates)]
    kept = list(zip(order[: rules.beam], (one.token for one in sentence.beams), strict=True))
    tree.grow(candidates, ended, [] if cut else kept, step=length)
