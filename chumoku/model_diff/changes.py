"""What changed most from one model to another, in words.

tokens          the largest |log P_B − log P_A|, with the text before them and the token that each model expected most
translations    the largest |chrF_B − chrF_A| of a sentence, side by side
neighbors       queries whose nearest document is another one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chumoku.model_diff.tasks import Metric, Scores, TextTask, TranslationTask, VectorTask
from chumoku.models.model import Model
from chumoku.probe.token_labels import token_label

BEFORE, AFTER = 14, 6  # tokens shown around a changed token
CHRF = Metric("mean chrF of the sentences", "chrF", False)
CHARACTERS = 400  # of a text that is shown


@dataclass(frozen=True)
class ChangedToken:
    text: int  # number of its text, from 1
    before: str
    token: str
    after: str
    logprob_a: float
    logprob_b: float
    expected_a: str  # the most likely token
    expected_b: str


@dataclass(frozen=True)
class ChangedTranslation:
    text: int
    source: str
    reference: str
    translation_a: str
    translation_b: str
    chrf_a: float
    chrf_b: float


@dataclass(frozen=True)
class ChangedNeighbor:
    text: int
    query: str
    nearest_a: str
    nearest_b: str
    cosine_a: float
    cosine_b: float


Change = ChangedToken | ChangedTranslation | ChangedNeighbor


def changed_tokens(task: TextTask, a: Scores, b: Scores, *, most: int) -> tuple[list[ChangedToken], int]:
    """The tokens whose log probability changed most, and the number of tokens with any change."""
    changes = [two.logprobs - one.logprobs for one, two in zip(a.predictions, b.predictions, strict=True)]
    flat = torch.cat(changes)
    ends = torch.tensor([len(change) for change in changes]).cumsum(0)
    found = []
    for index in flat.abs().topk(min(most, len(flat))).indices.tolist():
        if flat[index] == 0:
            break
        number = int(torch.searchsorted(ends, index, right=True))
        found.append(_changed_token(task, a, b, number, index - (int(ends[number - 1]) if number else 0)))
    return found, int((flat != 0).sum())


def _changed_token(task: TextTask, a: Scores, b: Scores, number: int, index: int) -> ChangedToken:
    one, two, tokenizer = a.predictions[number], b.predictions[number], task.tokenizer
    ids, place = task.ids[number], int(one.places[index])
    return ChangedToken(
        text=number + 1,
        before=tokenizer.decode(ids[max(0, place - BEFORE) : place]),
        token=token_label(tokenizer, ids[place]),
        after=tokenizer.decode(ids[place + 1 : place + 1 + AFTER]),
        logprob_a=float(one.logprobs[index]),
        logprob_b=float(two.logprobs[index]),
        expected_a=token_label(tokenizer, int(one.best[index])),
        expected_b=token_label(tokenizer, int(two.best[index])),
    )


def changed_translations(
    task: TranslationTask, a: Sequence[str], b: Sequence[str], *, most: int
) -> tuple[list[ChangedTranslation], int]:
    """The translations whose chrF changed most, and the number of translations that differ."""
    different = [number for number in range(len(task)) if a[number] != b[number]]
    chrf = [score_sentences(task, side).values for side in (a, b)]
    different.sort(key=lambda number: -abs(chrf[1][number] - chrf[0][number]))
    found = []
    for number in different[:most]:
        source, reference, one, other = map(shorten, (*task.pairs[number], a[number], b[number]))
        found.append(ChangedTranslation(number + 1, source, reference, one, other, chrf[0][number], chrf[1][number]))
    return found, len(different)


def score_sentences(task: TranslationTask, translations: Sequence[str]) -> Scores:
    """The chrF of each translation."""
    import sacrebleu

    chrf = sacrebleu.CHRF()
    pairs = zip(translations, task.pairs, strict=True)
    values = [chrf.sentence_score(translation, [reference]).score for translation, (_, reference) in pairs]
    return Scores(values, [1.0] * len(values), [])


def changed_neighbors(task: VectorTask, a: Model, b: Model, *, most: int) -> tuple[list[ChangedNeighbor], int]:
    """Queries with another nearest document, the largest changes of its cosine first, and their number."""
    sides = []
    for model in (a, b):
        queries, documents = task.vectors(model, range(len(task)))
        sides.append((queries @ documents.T).max(1))
    (cosines_a, nearest_a), (cosines_b, nearest_b) = sides
    numbers = (nearest_a != nearest_b).nonzero()[:, 0].tolist()
    numbers.sort(key=lambda number: -abs(float(cosines_b[number] - cosines_a[number])))
    found = [
        ChangedNeighbor(
            number + 1,
            shorten(task.pairs[number][0]),
            shorten(task.pairs[int(nearest_a[number])][1]),
            shorten(task.pairs[int(nearest_b[number])][1]),
            float(cosines_a[number]),
            float(cosines_b[number]),
        )
        for number in numbers[:most]
    ]
    return found, len(numbers)


def shorten(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
