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
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import compact_rows, inference_mode, longest
from chumoku.decoding.beam_rules import Hypothesis, Rules, check
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.top_k import largest
from chumoku.errors import ChumokuError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.tap import record

StillWanted = Callable[[Sequence[int]], Sequence[bool]]  # called at every step: which of these rows to continue


@dataclass(frozen=True)
class Live:
    """The live hypotheses of S sentences: `beam` each; before the first token, one each."""

    sentences: list[int]  # their rows in the input
    totals: Tensor  # [S, beam] log p so far
    tokens: Tensor  # [S · beam, t] so far
    sums: Tensor  # [S · beam, t] log p up to each of them

    def keep(self, staying: list[int], beam: int) -> tuple[Live, list[int] | None]:
        """Keep only the sentences at these places; also returns the previous rows, or None if all stay."""
        if len(staying) == len(self.sentences):
            return self, None
        order = compact_rows(staying)
        rows = [place * beam + row for place in order for row in range(beam)]
        index, taken = (
            torch.tensor(numbers, dtype=torch.int64, device=self.totals.device) for numbers in (order, rows)
        )
        sentences = [self.sentences[place] for place in order]
        return Live(sentences, self.totals[index], self.tokens[taken], self.sums[taken]), rows


class Candidates(NamedTuple):
    """The most likely continuations of each sentence, best first: [S, 2 · beam] each."""

    totals: Tensor
    rows: Tensor  # which row each continues
    tokens: Tensor


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
    live = empty_beams(len(prompts), engine.device)
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    dropped: set[int] = set()
    for length in itertools.count(1):
        candidates = rank_candidates(logits, live.totals, rules, length=length)
        collect(found, live, candidates, rules=rules, length=length)
        live, order = advance(live, candidates, rules)
        if tree is not None and live.sentences[0] == 0:
            grow_tree(tree, live, candidates, order, rules=rules, length=length)
        tops = zip(live.sentences, live.totals[:, 0].tolist(), strict=True)
        done = [rules.done(found[row], top, length=length, limit=rules.limits[row]) for row, top in tops]
        if still_wanted is not None:
            wanted = still_wanted(live.sentences)
            dropped |= {row for row, still in zip(live.sentences, wanted, strict=True) if not still}
            done = [over or not still for over, still in zip(done, wanted, strict=True)]
        live, rows = live.keep([place for place, over in enumerate(done) if not over], rules.beam)
        # One move of rows for both: beams that continue, and sentences that leave.
        if rows is not None or rules.beam > 1:
            engine.select_rows(order if rows is None else [order[row] for row in rows])
        if not live.sentences:
            break
        logits = engine.step(live.tokens[:, -1])
    if not all(row or number in dropped for number, row in enumerate(found)):
        raise ChumokuError("The model's logits are not finite numbers, so no token can be chosen.")
    ranked = [sorted(row, key=lambda one: -one.score)[: rules.best] for row in found]
    return [[] if number in dropped else row for number, row in enumerate(ranked)]


def empty_beams(count: int, device: torch.device) -> Live:
    nothing = torch.zeros(count, 0, device=device)
    return Live(list(range(count)), torch.zeros(count, 1, device=device), nothing.long(), nothing)


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


def rank_candidates(logits: Tensor, totals: Tensor, rules: Rules, *, length: int) -> Candidates:
    """The 2 · beam most likely continuations: at most `beam` of them end, so at least `beam` do not."""
    (sentences, live), beam = totals.shape, rules.beam
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # p is the model's own distribution: it is not renormalized without the forbidden tokens.
    normalizer = logits.logsumexp(-1, keepdim=True)
    forbidden = [*rules.forbidden, *([rules.end] if length <= rules.min_new_tokens else [])]
    if forbidden:
        logits.index_fill_(-1, torch.tensor(forbidden, device=logits.device), -math.inf)
    # The best of a sentence are among the best of each of its rows.
    values, tokens = largest(logits, min(2 * beam, logits.shape[-1]))
    width = values.shape[-1]
    sums = ((values - normalizer).view(sentences, live, width) + totals[:, :, None]).flatten(1)
    # If there are fewer tokens than beams, the rest of the beam gets −∞.
    sums = F.pad(sums, (0, max(0, 2 * beam - live * width)), value=-math.inf)
    # A stable sort, so that a beam of one equals argmax even where rounding made two sums equal.
    values, order = sums.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, : 2 * beam], order[:, : 2 * beam].clamp(max=live * width - 1)
    rows = order // width + live * torch.arange(sentences, device=order.device)[:, None]
    return Candidates(values, rows, tokens.view(sentences, live * width).gather(1, order))


def collect(found: list[list[Hypothesis]], live: Live, candidates: Candidates, *, rules: Rules, length: int) -> None:
    """Add the candidates among the first `beam` that end here, or that are cut here, to `found`."""
    totals, rows, tokens = (part[:, : rules.beam] for part in candidates)
    cut = torch.tensor([rules.limits[row] == length for row in live.sentences], device=tokens.device)
    ending = ((tokens == rules.end) | cut[:, None]) & totals.isfinite()
    for place, nth in ending.nonzero().tolist():
        last = int(tokens[place, nth])
        row, total = rows[place, nth], float(totals[place, nth])
        text = live.tokens[row].tolist() + ([] if last == rules.end else [last])
        sums = [0.0, *live.sums[row].tolist(), total]
        steps = [after - before for before, after in itertools.pairwise(sums)]
        one = Hypothesis(text, rules.score(total, length), logprobs=steps)
        found[live.sentences[place]].append(one)


def advance(live: Live, candidates: Candidates, rules: Rules) -> tuple[Live, list[int]]:
    """The `beam` most likely candidates that do not end, and the row that each of them continues."""
    open_ones = candidates.totals.masked_fill(candidates.tokens == rules.end, -math.inf)
    totals, chosen = open_ones.topk(rules.beam)
    rows = candidates.rows.gather(1, chosen).flatten()
    tokens = candidates.tokens.gather(1, chosen).flatten()
    texts = torch.cat([live.tokens[rows], tokens[:, None]], 1)
    sums = torch.cat([live.sums[rows], totals.flatten()[:, None]], 1)
    return Live(live.sentences, totals, texts, sums), rows.tolist()


def grow_tree(tree: Tree, live: Live, candidates: Candidates, order: list[int], *, rules: Rules, length: int) -> None:
    """Add the candidates of the first sentence to the tree: which end here and which stay live."""
    totals, rows, tokens = (part[0].tolist() for part in candidates)
    cut = rules.limits[0] == length
    ended = [nth < rules.beam and (cut or token == rules.end) for nth, token in enumerate(tokens)]
    kept = list(zip(order[: rules.beam], live.tokens[: rules.beam, -1].tolist(), strict=True))
    tree.grow(list(zip(totals, rows, tokens, strict=True)), ended, [] if cut else kept, step=length)
