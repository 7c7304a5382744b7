"""Readable names of tokens for tables, axes and pages.

text                    unchanged, but a space becomes ␣ and a line end ⏎; SentencePiece's ▁ is kept
part of a character     its bytes: ‹e3›; in a row of tokens that has all of them, the character: 鬱 1/3, 鬱 2/3, 鬱 3/3
not in the tokenizer    #51200: a model's vocabulary may be a little larger than its tokenizer's
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from chumoku.text.byte_chars import show_piece
from chumoku.text.tokenizer import BYTE_TOKEN, Tokenizer

MAX_CHARS = 24
MAX_PARTS = 8  # tokens that are searched for the bytes of a character
SPACE_SENTENCE = "▁ stands for a space before the token: there a new word begins."
BYTES = re.compile(r"(?:‹[0-9a-f]{2}›)+")


class TokenLabel(NamedTuple):
    """The label of a token in a row."""

    text: str
    character: str | None = None  # that this token is a part of
    part: int = 1  # counted from 1


def token_label(tokenizer: Tokenizer, number: int) -> str:
    """A short name of a token id, in one line."""
    if not 0 <= number < tokenizer.size:
        return f"#{number}"
    name = tokenizer.token(number)
    if tokenizer.byte_level and name not in tokenizer.specials:
        name = show_piece(tokenizer.decode_bytes([number]))
    elif BYTE_TOKEN.fullmatch(name):
        name = show_piece(bytes.fromhex(name[3:5]))
    return make_visible(name) or f"#{number}"


def explain_space(names: Iterable[str]) -> str | None:
    """A sentence that explains ▁ if a name has it."""
    return SPACE_SENTENCE if any("▁" in name for name in names) else None


def label_row(labels: Sequence[str]) -> list[TokenLabel]:
    """The labels of tokens in a row: bytes that together are a character are named by it."""
    found: list[TokenLabel] = []
    for are_bytes, group in groupby(labels, key=lambda label: BYTES.fullmatch(label) is not None):
        some = list(group)
        found += _label_bytes(some) if are_bytes else map(TokenLabel, some)
    return found


def _label_bytes(labels: list[str]) -> Iterator[TokenLabel]:
    raw = [bytes.fromhex(label.replace("‹", "").replace("›", "")) for label in labels]
    start = 0
    while start < len(raw):
        end, character = _next_character(raw, start)
        count = end - start
        if count == 1:
            yield TokenLabel(labels[start])
        else:
            yield from (TokenLabel(f"{character} {part}/{count}", character, part) for part in range(1, count + 1))
        start = end


def _next_character(raw: list[bytes], start: int) -> tuple[int, str]:
    """The index after the first character of raw[start:], and the character; start + 1 and "" if it is incomplete."""
    for end in range(start + 1, min(start + MAX_PARTS, len(raw)) + 1):
        try:
            return end, make_visible(b"".join(raw[start:end]).decode("utf-8"))
        except UnicodeDecodeError:
            continue
    return start + 1, ""


def make_visible(text: str) -> str:
    """A text that can be drawn: without control characters and direction marks, and at most MAX_CHARS long."""
    text = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    text = "".join(f"‹{ord(char):02x}›" if unicodedata.category(char)[0] in "CZ" else char for char in text)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
