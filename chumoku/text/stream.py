"""Streaming detokenisation: what is shown is always valid text, and its concatenation is the decoding at once.

A token may be part of a character. Text that still ends in � may become something else with the next token, so it is
held back; `finish` gives what was held. A few earlier tokens are decoded along, since some decoders treat the first
token of a text (its leading space) differently.
"""

from __future__ import annotations

from collections.abc import Callable

UNFINISHED = "\ufffd"


class Stream:
    """`push` each number and show what it returns; `finish` at the end."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0  # decoding starts here …
        self._shown = 0  # … and what comes before this token has been shown

    def push(self, number: int) -> str:
        """The text that this token completes; "" while a character is still open."""
        self._ids.append(number)
        before, after = self._texts()
        if after.endswith(UNFINISHED) or not after.startswith(before):
            return ""
        # All before the last shown token is behind us: decoding it again would only cost time.
        self._context, self._shown = max(self._shown - 1, 0), len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """What was held back."""
        before, after = self._texts()
        self._shown = len(self._ids)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._context : self._shown]), self._decode(self._ids[self._context :])
