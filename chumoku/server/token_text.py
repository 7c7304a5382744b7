"""Tokens one by one: by name, for the page; as text and bytes, for those who want to know how likely each was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from chumoku.probe.token_labels import token_label
from chumoku.text.tokenizer import Tokenizer

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
PART = "bytes:"
SPACE = "▁"  # how SentencePiece writes a space


def named(tokens: Sequence[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [{"id": token, "text": token_label(tokenizer, token)} for token in tokens]


class Spelled(NamedTuple):
    text: str  # part of a character is written as OpenAI writes it: bytes:\xe3\x81
    raw: bytes

    @property
    def letters(self) -> int:
        """How much of a text it is; what is part of a character counts when the character is whole, as nothing."""
        return 0 if self.text.startswith(PART) else len(self.text)


def spelled(tokenizer: Tokenizer, number: int) -> Spelled:
    """One token by itself; a special one by its name, one beyond the tokenizer as nothing."""
    if not 0 <= number < tokenizer.size:
        return Spelled("", b"")
    name = tokenizer.token(number)
    if name in tokenizer.specials:
        raw = name.encode()
    elif tokenizer.byte_level:
        raw = tokenizer.decode_bytes([number])
    elif found := BYTE.fullmatch(name):
        raw = bytes.fromhex(found[1])
    else:
        raw = name.replace(SPACE, " ").encode()
    try:
        return Spelled(raw.decode("utf-8"), raw)
    except UnicodeDecodeError:
        return Spelled(PART + "".join(f"\\x{byte:02x}" for byte in raw), raw)


class Spellings(dict[int, Spelled]):
    """Every token that was asked for, spelled once: a request's likeliest are the same few again and again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, number: int) -> Spelled:
        self[number] = word = spelled(self._tokenizer, number)
        return word
