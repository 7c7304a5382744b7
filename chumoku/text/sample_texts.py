"""Sampling texts for tokenizer training when there are more than needed, spread over the whole corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chumoku.text.byte_chars import fix_surrogates

MAX_TEXT_LENGTH = 1 << 14


def subsample(texts: Iterable[str], max_characters: int) -> list[str]:
    """All texts, or every 2nd, 4th, 8th … text if they have more than `max_characters` together. Reads texts once."""
    chosen: list[str] = []
    characters, step = 0, 1
    for number, text in enumerate(texts):
        if number % step:
            continue
        chosen.append(text)
        characters += len(text)
        if characters > max_characters:
            chosen, step = chosen[::2], 2 * step
            characters = sum(map(len, chosen))
    return chosen


def sample_evenly(texts: list[str], max_characters: int) -> list[str]:
    """All texts, or evenly spaced ones that have about `max_characters` together."""
    share = min(1.0, max_characters / max(1, sum(map(len, texts))))
    return [text for number, text in enumerate(texts) if int((number + 1) * share) > int(number * share)]


def split_long_texts(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        text = fix_surrogates(text)
        for start in range(0, len(text), MAX_TEXT_LENGTH):
            yield text[start : start + MAX_TEXT_LENGTH]
