"""Tokens as people read them: in a table, on an axis, on a page.

a piece of text   as it is, spaces as ␣ and line ends as ⏎; SentencePiece's own mark ▁ stays
part of a letter  its bytes, ‹e3›
beyond the list   #51200: models are built a little larger than their tokenizer
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from chumoku.text.byte_chars import show_piece
from chumoku.text.tokenizer import Tokenizer

LONGEST = 24


def names_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [name_of(tokenizer, number) for number in ids]


def name_of(tokenizer: Tokenizer, number: int) -> str:
    """One token's name, short and in one line."""
    if not 0 <= number < tokenizer.size:
        return f"#{number}"
    name = tokenizer.token(number)
    if tokenizer.byte_level and name not in tokenizer.specials:
        name = show_piece(tokenizer.decode_bytes([number]))
    return visible(name) or f"#{number}"


def visible(text: str) -> str:
    """What can be drawn: no control characters, no direction marks, and no more than fits."""
    text = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    text = "".join(f"‹{ord(char):02x}›" if unicodedata.category(char)[0] in "CZ" else char for char in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
