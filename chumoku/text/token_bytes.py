"""The bytes that one token adds to a text."""

from __future__ import annotations

from chumoku.text.tokenizer import BYTE_TOKEN, Tokenizer

SPACE = "▁"  # SentencePiece's space


def token_bytes(tokenizer: Tokenizer, number: int) -> bytes:
    """The bytes of a token; of a special token its name, of a number beyond the tokenizer nothing."""
    if not 0 <= number < tokenizer.size:
        return b""
    name = tokenizer.token(number)
    if name in tokenizer.specials:
        return name.encode()
    if tokenizer.byte_level:
        return tokenizer.decode_bytes([number])
    if BYTE_TOKEN.fullmatch(name):
        return bytes.fromhex(name[3:5])
    return name.replace(SPACE, " ").encode()
