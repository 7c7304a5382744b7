"""Beam search: the most likely outputs of a model, with `beam` hypotheses per sentence.

    score(y) = log p(y | x) / ((5 + |y|) / 6)^α         |y| counts the end token; α is `length_penalty` (GNMT, 2016)

    step        of all continuations of a sentence's live hypotheses, the `beam` most likely without end token stay
                live; those with an end token that are among the first `beam` of all are finished
    done        when `beam` hypotheses are finished, or when no live one can score above the best of them:
                log p only falls, so a hypothesis with log p = s reaches at most the larger of its scores at the next
                length and at `limit`
    at `limit`  hypotheses are cut, and compete as they are

The encoder runs once. Sentences that are done leave the batch. A beam of one is greedy search. Candidates are ranked
where the logits are and reach the host in one copy for each step, where `beam_results` keeps them as arrays.
`cross_attention` runs the model once more over a finished translation to get its attention weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import compact_rows, inference_mode, longest, upload
from chumoku.decoding.beam_results import Candidates, Results
from chumoku.decoding.beam_rules import Hypothesis, Numbers, Rules, check
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
    numbers, totals = np.arange(len(prompts)), np.zeros((len(prompts), 1), dtype=np.float32)
    results, dropped = Results(rules, len(prompts)), np.zeros(len(prompts), dtype=bool)
    for length in itertools.count(1):
        candidates = rank_candidates(logits, totals, rules, length=length)
        ended = candidates.tokens == rules.end
        any_ended = bool(ended.any())
        if any_ended or length >= rules.least_limit:
            results.collect(numbers, candidates, length=length)
        live = advance(candidates, ended, rules.beam) if any_ended else candidates.first(rules.beam)
        if tree is not None and numbers[0] == 0:
            grow_tree(tree, live.select(0), candidates.select(0), rules=rules, length=length)
        done = rules.done(results.scores[numbers], live.totals[:, 0], numbers, length=length)
        if still_wanted is not None:
            unwanted = ~np.array(still_wanted(numbers.tolist()), dtype=bool)
            dropped[numbers[unwanted]] = True
            done |= unwanted
        some_leave = bool(done.any())
        if some_leave:
            staying = compact_rows(np.flatnonzero(~done).tolist())
            numbers, live = numbers[staying], live.select(staying)
        # One move of rows for both: beams that continue, and sentences that leave.
        if some_leave or rules.beam > 1:
            engine.select_rows(live.rows.ravel().tolist())
        if not len(numbers):
            break
        logits = engine.step(upload(live.tokens.ravel().astype(np.int64), engine.device))
        totals = live.totals
        results.add_step(live)
    found = results.best()
    if not all(row or dropped[number] for number, row in enumerate(found)):
        raise ChumokuError("The model's logits are not finite numbers, so no token can be chosen.")
    return [[] if dropped[number] else row for number, row in enumerate(found)]


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


def rank_candidates(logits: Tensor, totals: Numbers, rules: Rules, *, length: int) -> Candidates:
    """The 2 · beam most likely continuations of each sentence: at most `beam` end, so at least `beam` do not.

    logits    [S · live, V]
    totals    log p of the live hypotheses so far [S, live]
    """
    # p is the model's own distribution: it is not renormalized without the forbidden tokens.
    forbidden = sorted([*rules.forbidden, *([rules.end] if length <= rules.min_new_tokens else [])])
    rank = ranking.rank if ranking.can_rank(logits) and not plain_formulas() else rank_plain
    return Candidates(*rank(logits, totals, forbidden, 2 * rules.beam))


def rank_plain(logits: Tensor, totals: Numbers, forbidden: Sequence[int], wanted: int) -> Candidates:
    """The `wanted` most likely continuations of each sentence."""
    sentences, live = totals.shape
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normalizer = logits.logsumexp(-1, keepdim=True)
    if forbidden:
        logits = logits.index_fill(-1, upload(forbidden, logits.device), -math.inf)
    # The best of a sentence are among the best of each of its rows.
    values, tokens = largest(logits, min(wanted, logits.shape[-1]))
    width = values.shape[-1]
    before = upload(totals, logits.device).to(logits.dtype)
    sums = ((values - normalizer).view(sentences, live, width) + before[:, :, None]).flatten(1)
    # If there are fewer tokens than beams, the rest of the beam gets −∞.
    sums = F.pad(sums, (0, max(0, wanted - live * width)), value=-math.inf)
    # A stable sort, so that a beam of one equals argmax even where rounding made two sums equal.
    values, order = sums.sort(dim=-1, descending=True, stable=True)
    values, order = values[:, :wanted], order[:, :wanted].clamp(max=live * width - 1)
    rows = order // width + live * torch.arange(sentences, device=order.device)[:, None]
    return to_host(values, rows, tokens.view(sentences, live * width).gather(1, order))


def to_host(totals: Tensor, rows: Tensor, tokens: Tensor) -> Candidates:
    """Candidates from tensors, with one copy from the device: the bits of `totals` travel as integers."""
    integers = torch.int32 if totals.dtype == torch.float32 else torch.int64
    packed = torch.stack([totals.view(integers), rows.to(integers), tokens.to(integers)]).cpu().numpy()
    return Candidates(packed[0].view(f"f{totals.itemsize}"), packed[1], packed[2])


def advance(candidates: Candidates, ended: Numbers, beam: int) -> Candidates:
    """The `beam` most likely candidates of each sentence that are not `ended` [S, n]."""
    # If there are fewer tokens than beams, too few may be left, and the rest of the beam gets −∞.
    order = np.argsort(ended, axis=1, kind="stable")[:, :beam]
    totals = np.where(ended, -np.inf, candidates.totals).astype(candidates.totals.dtype)
    return Candidates(
        *(np.take_along_axis(part, order, 1) for part in (totals, candidates.rows, candidates.tokens)),
    )


def grow_tree(tree: Tree, live: Candidates, candidates: Candidates, *, rules: Rules, length: int) -> None:
    """Add the candidates of the first sentence to the tree: which end here and which stay live."""
    cut = rules.limits[0] == length
    ranked = list(zip(*(part.tolist() for part in candidates), strict=True))
    ended = [nth < rules.beam and (cut or token == rules.end) for nth, (_, _, token) in enumerate(ranked)]
    kept = list(zip(live.rows.tolist(), live.tokens.tolist(), strict=True))
    tree.grow(ranked, ended, [] if cut else kept, step=length)
