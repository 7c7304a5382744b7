"""Classification and tagging: text in, labels with their probabilities out.

    classes   text → tokens → P(c | text) = softmax(logits)_c
    tags      words → tokens → P(c | word) at the first token of each word

Texts of similar length share a batch of rows × longest ≤ `batch_tokens`; results keep the given order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.embed import BATCH_TOKENS, encode
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import Model
from chumoku.nn import masks
from chumoku.text.progress import Progress, silent
from chumoku.text.tokenizer import Tokenizer


class TaggedWord(NamedTuple):
    word: str
    tag: str
    probability: float


def classify(
    model: Model,
    texts: Sequence[str],
    *,
    tokenizer: Tokenizer,
    batch_tokens: int = BATCH_TOKENS,
    note: Callable[[str], object] = warnings.warn,
    progress: Progress = silent,
) -> list[dict[str, float]]:
    """The probability of each class for each text, most likely first.

    note      called with a sentence if texts were truncated
    """
    names = check_head(model, "classes")
    rows = encode(model, texts, tokenizer, note=note)
    found = []
    for values in label_probabilities(model, rows, batch_tokens=batch_tokens, progress=progress):
        order = values.argsort(descending=True, stable=True).tolist()
        found.append({names[place]: float(values[place]) for place in order})
    return found


def tag(
    model: Model,
    sentences: Sequence[Sequence[str]],
    *,
    tokenizer: Tokenizer,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = silent,
) -> list[list[TaggedWord]]:
    """The most likely tag of each word; each sentence is a list of words."""
    names = check_head(model, "tags")
    rows, _, firsts = encode_words(model, sentences, tokenizer)
    values = label_probabilities(model, rows, batch_tokens=batch_tokens, progress=progress)
    return [name_tags(*one, names) for one in zip(sentences, firsts, values, strict=True)]


class EncodedWords(NamedTuple):
    rows: list[list[int]]
    words: list[list[str]]
    firsts: list[list[int]]  # the place of the first token of each word


def encode_words(model: Model, sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> EncodedWords:
    """The tokens of sentences that are lists of words."""
    limit = model.config.max_seq_length or model.config.context
    before, after = tokenizer.frame
    rows, firsts = [], []
    for number, words in enumerate(sentences, start=1):
        ids, numbers = tokenizer.encode_words(words)
        if not words:
            raise UsageError(f"Text {number} is empty. Give a text with a word in it.")
        if missing := next((word for place, word in enumerate(words) if place not in numbers), None):
            raise UsageError(f"The word {missing!r} of text {number} has no tokens, so it gets no tag. Remove it.")
        if len(before) + len(ids) + len(after) > limit:
            raise LengthError(
                f"Text {number} has {len(ids) + len(before) + len(after):,} tokens, but this model reads up to "
                f"{limit:,}. Split it into sentences."
            )
        rows.append([*before, *ids, *after])
        firsts.append([len(before) + numbers.index(place) for place in range(len(words))])
    return EncodedWords(rows, [list(words) for words in sentences], firsts)


def name_tags(words: Sequence[str], places: list[int], values: Tensor, names: Sequence[str]) -> list[TaggedWord]:
    """The most likely tag of each word; `values` [T, C]: probabilities of each token, words start at `places`."""
    best = values[places].max(-1)
    tags = zip(words, best.indices.tolist(), best.values.tolist(), strict=True)
    return [TaggedWord(word, names[label], probability) for word, label, probability in tags]


def label_probabilities(
    model: Model, rows: Sequence[Sequence[int]], *, batch_tokens: int, progress: Progress = silent
) -> list[Tensor]:
    """For each row of tokens, the probabilities of the classes [C], or of the tags of each token [T, C]."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    done = 0
    with inference_mode(model):
        for numbers in batches_by_length([len(row) for row in rows], most=batch_tokens):
            progress("classifying", done, len(rows), "texts")
            lengths = torch.tensor([len(rows[number]) for number in numbers])
            table = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[n]) for n in numbers], batch_first=True)
            real = masks.real_tokens(lengths, table.shape[1])
            mask = None if bool(real.all()) else real.to(model.device)
            logits = model(table.to(model.device), mask=mask).logits.float().cpu()
            for number, values in zip(numbers, logits.softmax(-1), strict=True):
                found[number] = values
            done += len(numbers)
    return found


def check_head(model: Model, head: str) -> Sequence[str]:
    """The names of the model's labels; refuse a model with another head."""
    if model.config.head_kind != head or model.config.labels is None:
        raise UsageError(f"This model has the head '{model.config.head_kind}', not '{head}'.")
    return model.config.labels
