"""Sampling texts for tokenizer training when there are more than needed, spread over the whole corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

from chumoku.text.byte_chars import fix_surrogates

MAX_TEXT_LENGTH = 1 << 14


def subsample(texts: Iterable[str], max_characters: int) -> list[str]:
    """All texts, or a random half, quarter … of them if they have more than `max_characters` together. Reads them once.

    The choice is random, and the same every time: every second text of pairs would be one language only.
    """
    random, share, characters = Random(0), 1.0, 0
    chosen: list[tuple[float, str]] = []
    for text in texts:
        draw = random.random()
        if draw >= share:
            continue
        chosen.append((draw, text))
        characters += len(text)
        if characters > max_characters:
            share /= 2
            chosen = [(draw, text) for draw, text in chosen if draw < share] or [min(chosen)]
            characters = sum(len(text) for _, text in chosen)
    return [text for _, text in chosen]


def sample_randomly(texts: list[str], max_characters: int) -> list[str]:
    """All texts, or random ones (the same every time) that have about `max_characters` together."""
    random, share = Random(0), max_characters / max(1, sum(map(len, texts)))
    return [text for text in texts if random.random() < share] or texts[:1]


def split_long_texts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        text = fix_surrogates(text)
        for start in range(0, len(text), MAX_TEXT_LENGTH):
            yield text[start : start + MAX_TEXT_LENGTH]
