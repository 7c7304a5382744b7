"""Attention between words, from the attention between their tokens.

A word attends as its tokens do on average, and is attended to as much as its tokens together.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import MissingExtraError
from chumoku.text import japanese
from chumoku.text.tokenizer import Tokenizer

WORD = re.compile(r"\w+(?:['’.-]\w+)*|[^\w\s]")
END = "(end)"  # the name of the tokens that end a text
JAPANESE = 0.1  # share of kana and kanji in a Japanese text
REPLACEMENT = "\ufffd"  # decoded from the first bytes of a character


class Word(NamedTuple):
    text: str
    places: list[int]  # of its tokens


def find_words(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[Word]:
    """The words of a text and the places of their tokens; a special token is a word of its own."""
    text = tokenizer.decode(tokens)
    starts, groups, last, before = word_starts(text), [], None, 0
    for place, token in enumerate(tokens):
        special = tokenizer.token(token) in tokenizer.specials
        # Bytes before an incomplete character may be decoded to replacements too, so the length can shrink.
        before = max(before, len(tokenizer.decode(tokens[:place]).rstrip(REPLACEMENT)))
        blank = len(text[before:]) - len(text[before:].lstrip())
        word = None if special else bisect_right(starts, before + blank)
        if word is not None and word == last:
            groups[-1].append(place)
        else:
            groups.append([place])
        last = word
    return [Word(_text_of(tokenizer, [tokens[place] for place in places]), places) for places in groups]


def word_starts(text: str) -> list[int]:
    """Where the words of a text start: by a dictionary in Japanese, else by spaces and punctuation.

    Without the extra `ja`, a word of a Japanese text may start anywhere, so every token is one.
    """
    if japanese.share_of_japanese(text) < JAPANESE:
        return [found.start() for found in WORD.finditer(text)]
    try:
        words = japanese.segment(text).split(japanese.SEPARATOR)
    except MissingExtraError:
        return list(range(len(text)))
    return [0, *accumulate(map(len, words))]


def merge_tokens(weights: Tensor, rows: Sequence[Word], columns: Sequence[Word]) -> Tensor:
    """The attention between words [..., rows, columns] of the weights between their tokens [..., T, S]."""
    attended = torch.stack([weights[..., word.places].sum(-1) for word in columns], -1)
    return torch.stack([attended[..., word.places, :].mean(-2) for word in rows], -2)


def _text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    if tokens == tokenizer.roles.end_tokens:
        return END
    return tokenizer.decode(tokens).strip() or tokenizer.token(tokens[0])
