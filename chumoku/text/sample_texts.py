"""Which texts a tokenizer is trained on when there are more than it needs: some of them, spread over the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chumoku.text.byte_chars import whole

LONGEST_TEXT = 1 << 14  # a line of a gigabyte becomes many texts


def thinned(texts: Iterable[str], most: int) -> list[str]:
    """All texts, or, once they exceed `most` characters, every second, fourth, eighth …, spread over the whole."""
    kept: list[str] = []
    characters, step = 0, 1
    for number, text in enumerate(texts):
        if number % step:
            continue
        kept.append(text)
        characters += len(text)
        if characters > most:
            kept, step = kept[::2], 2 * step
            characters = sum(map(len, kept))
    return kept


def sampled(texts: list[str], most: int) -> list[str]:
    """All texts, or as many as have about `most` characters, spread evenly over the whole."""
    share = min(1.0, most / max(1, sum(map(len, texts))))
    return [text for number, text in enumerate(texts) if int((number + 1) * share) > int(number * share)]


def short_pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        text = whole(text)
        for start in range(0, len(text), LONGEST_TEXT):
            yield text[start : start + LONGEST_TEXT]
