"""Log probabilities of given tokens, computed by the same engine that generates text.

log P(continuation | context) = Σ log P(token | context, tokens of the continuation before it)

score_labels           the tokens at the end of rows of one length; used for perplexity too
score_continuations    continuations of any lengths, in batches of rows with equally long continuations, so that no
                       row is padded
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import DecoderModel
from chumoku.text.progress import Progress, silent

BATCH_TOKENS = 1 << 13  # rows × longest of a batch
AT_ONCE = 512  # rows of logits computed at a time


class ContinuationScore(NamedTuple):
    logprob: float
    is_greedy: bool  # whether every token is the most likely one, so that greedy decoding generates the continuation


def score_labels(
    engine: Engine,
    contexts: Sequence[Sequence[int]],
    inputs: Tensor,
    labels: Tensor,
    *,
    sources: Sequence[Sequence[int]] | None = None,
) -> tuple[Tensor, Tensor]:
    """The log probability of each label [rows, T] in float64, and the most likely token instead of it [rows, T].

    contexts    the tokens before the inputs of each row, of any numbers; all empty or none
    inputs      [rows, T]: the token before each label
    sources     of each row, for an encoder-decoder
    """
    engine.select_rows([])
    engine.add_rows(len(inputs), sources)
    if any(contexts):
        engine.prefill(contexts)
    logprobs = torch.empty(inputs.shape, dtype=torch.float64)
    best = torch.empty(inputs.shape, dtype=torch.int64)
    step = max(1, AT_ONCE // len(inputs))
    for first in range(0, inputs.shape[1], step):
        part = slice(first, first + step)
        logits = engine.extend(inputs[:, part].to(engine.device)).float()
        wanted = labels[:, part, None].to(engine.device)
        logprobs[:, part] = logits.log_softmax(-1).gather(-1, wanted)[..., 0].cpu().double()
        best[:, part] = logits.argmax(-1).cpu()
    return logprobs, best


def score_continuations(
    model: DecoderModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], *, progress: Progress = silent
) -> list[ContinuationScore]:
    """A score for each (context, continuation), both token ids of one token or more.

    progress    called with the number of scored continuations so far
    """
    for context, continuation in pairs:
        if not context or not continuation:
            raise UsageError("A continuation is scored after a context, and both need one token or more.")
        if len(context) + len(continuation) > model.config.context + 1:
            raise LengthError(
                f"A context and its continuation have {len(context) + len(continuation):,} tokens, and this model "
                f"scores up to {model.config.context + 1:,}. Cut the context at its start."
            )
    scores: dict[int, ContinuationScore] = {}
    engine: Engine | None = None
    with torch.inference_mode():
        for numbers in _batches(pairs):
            rows = [pairs[number] for number in numbers]
            longest = max(len(context) + len(continuation) - 1 for context, continuation in rows)
            if engine is None or engine.rows < len(rows) or engine.capacity < longest:
                engine = open_engine(model, rows=len(rows), capacity=longest)
            labels = torch.tensor([list(continuation) for _, continuation in rows])
            inputs = torch.tensor([[context[-1], *continuation[:-1]] for context, continuation in rows])
            logprobs, best = score_labels(engine, [context[:-1] for context, _ in rows], inputs, labels)
            totals = zip(logprobs.sum(1).tolist(), (best == labels).all(1).tolist(), strict=True)
            scores.update(zip(numbers, (ContinuationScore(*total) for total in totals), strict=True))
            progress("scoring", len(scores), len(pairs), unit="continuations")
    return [scores[number] for number in range(len(pairs))]


def _batches(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Iterator[list[int]]:
    """Numbers of pairs with equally long continuations, and contexts of all one token or all more."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for number, (context, continuation) in enumerate(pairs):
        groups.setdefault((len(continuation), len(context) > 1), []).append(number)
    for _, group in sorted(groups.items(), reverse=True):
        lengths = [len(pairs[number][0]) + len(pairs[number][1]) for number in group]
        for places in batches_by_length(lengths, most=BATCH_TOKENS):
            yield [group[place] for place in places]
