"""Streaming detokenization: what is shown is always valid text, and its concatenation is the decoding at once.

A token may be part of a character. Text that still ends in � may become something else with the next token, so it is
held back; `finish` gives what was held. The tokens shown last are decoded along, since some decoders treat the first
token of a text (its leading space) differently.
"""

from __future__ import annotations

from collections.abc import Callable

REPLACEMENT = "\ufffd"


class Stream:
    """`push` each number and show what it returns; `finish` at the end."""

    def __init__(self, decode: Callable[[list[int]], str], is_incomplete: Callable[[list[int]], bool]) -> None:
        """`is_incomplete` says of tokens that what they mean depends on the next one, whatever their text looks like."""
        self._decode, self._is_incomplete = decode, is_incomplete
        self._ids: list[int] = []
        self._context = 0  # decoding starts here …
        self._shown = 0  # … and what comes before this token has been shown

    def push(self, number: int) -> str:
        """The text that this token completes; "" while a character is still open."""
        self._ids.append(number)
        before, after = self._texts()
        if self._is_incomplete(self._ids[self._shown :]) or after.endswith(REPLACEMENT) or not after.startswith(before):
            return ""
        if after != before:
            # What was shown before this ended between characters: decoding may start there from now on.
            self._context, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def finish(self) -> str:
        """What was held back."""
        before, after = self._texts()
        self._shown = len(self._ids)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._context : self._shown]), self._decode(self._ids[self._context :])
