"""Single tokens as labels for the web page, and as text and bytes for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chumoku.probe.token_labels import label_row, token_label
from chumoku.text.token_bytes import token_bytes
from chumoku.text.tokenizer import Tokenizer

BYTES_PREFIX = "bytes:"


def label_tokens(tokens: Sequence[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Each token as {"id", "text"}; one that is a part of a character also has {"character", "part"}."""
    labels = label_row([token_label(tokenizer, token) for token in tokens])
    return [
        {"id": token, "text": text} | ({} if character is None else {"character": character, "part": part})
        for token, (text, character, part) in zip(tokens, labels, strict=True)
    ]


class TokenText(NamedTuple):
    text: str  # an incomplete character is written as in the OpenAI API: bytes:\xe3\x81
    raw: bytes

    @property
    def characters(self) -> int:
        """Length of the text in characters; tokens that are part of a character count as 0."""
        return 0 if self.text.startswith(BYTES_PREFIX) else len(self.text)


def token_text(tokenizer: Tokenizer, number: int) -> TokenText:
    """Text and bytes of one token: the name of a special token, empty for numbers beyond the tokenizer."""
    raw = token_bytes(tokenizer, number)
    try:
        return TokenText(raw.decode("utf-8"), raw)
    except UnicodeDecodeError:
        return TokenText(BYTES_PREFIX + "".join(f"\\x{byte:02x}" for byte in raw), raw)


class TokenTextCache(dict[int, TokenText]):
    """Token → TokenText, computed once: the most likely tokens of a request repeat often."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, number: int) -> TokenText:
        self[number] = text = token_text(self._tokenizer, number)
        return text
