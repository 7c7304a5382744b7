"""Readable names of tokens for tables, axes and pages.

text                    unchanged, but a space becomes ␣ and a line end ⏎; SentencePiece's ▁ is kept
part of a character     its bytes: ‹e3›
not in the tokenizer    #51200: a model's vocabulary may be a little larger than its tokenizer's
"""

from __future__ import annotations

import unicodedata

from chumoku.text.byte_chars import show_piece
from chumoku.text.tokenizer import Tokenizer

MAX_CHARS = 24


def token_label(tokenizer: Tokenizer, number: int) -> str:
    """A short name of a token id, in one line."""
    if not 0 <= number < tokenizer.size:
        return f"#{number}"
    name = tokenizer.token(number)
    if tokenizer.byte_level and name not in tokenizer.specials:
        name = show_piece(tokenizer.decode_bytes([number]))
    return make_visible(name) or f"#{number}"


def make_visible(text: str) -> str:
    """A text that can be drawn: without control characters and direction marks, and at most MAX_CHARS long."""
    text = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    text = "".join(f"‹{ord(char):02x}›" if unicodedata.category(char)[0] in "CZ" else char for char in text)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
