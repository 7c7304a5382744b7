"""Streaming detokenization: the returned texts are valid, and joined they equal the decoding of all ids at once.

A token may be part of a character. Text that ends in � may change with the next token, so it is held back until then
or until `finish`. Each call also decodes the tokens returned last, because some decoders treat the first token of a
text (its leading space) differently.
"""

from __future__ import annotations

from collections.abc import Callable

REPLACEMENT = "\ufffd"


class Stream:
    """Call `push` with each id and show the text it returns, then call `finish`."""

    def __init__(self, decode: Callable[[list[int]], str], is_incomplete: Callable[[list[int]], bool]) -> None:
        """`is_incomplete` tells whether the text of these ids may still change with the next id."""
        self._decode, self._is_incomplete = decode, is_incomplete
        self._ids: list[int] = []
        self._context = 0  # decoding starts here …
        self._shown = 0  # … and the text before this token has been returned

    def push(self, token_id: int) -> str:
        """The text that this token completes, or "" while a character is incomplete."""
        self._ids.append(token_id)
        before, after = self._texts()
        if self._is_incomplete(self._ids[self._shown :]) or after.endswith(REPLACEMENT) or not after.startswith(before):
            return ""
        if after != before:
            # The text returned before this ended at a character boundary, so decoding can start there from now on.
            self._context, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """The text that was held back."""
        before, after = self._texts()
        self._shown = len(self._ids)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._context : self._shown]), self._decode(self._ids[self._context :])
