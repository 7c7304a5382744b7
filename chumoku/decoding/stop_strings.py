"""Stop strings: a text ends before the first of them, independent of token boundaries.

    text returned so far | pending: possibly the start of a stop string | next characters

Pending is the longest suffix of the text that is a prefix of a stop string. The failure table of Knuth, Morris and
Pratt (1977) gives the next shorter one when a character does not match, so every character is processed once. The first
complete stop string ends the text; if several are complete at once, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

from chumoku.errors import UsageError
from chumoku.text.tokenizer import Tokenizer

BEFORE = 16  # last prompt tokens that the tokenizer needs to decode the spaces after them


class StopStrings:
    """`push` returns the text that is certain; `finish` returns the pending rest, unless the text has `stopped`."""

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise UsageError("stop must be a list of strings, not one string. Put it in a list.")
        if not all(stops):
            raise UsageError("A stop string must not be empty.")
        self.stopped = False
        self._stops = list(stops)
        self._tables = [failure_table(stop) for stop in stops]
        self._matched = [0] * len(stops)  # the length of the prefix of each stop string that the text ends with
        self._pending = ""

    def push(self, text: str) -> str:
        if self.stopped:
            return ""
        text, start = self._pending + text, len(self._pending)
        for place in range(start, len(text)):
            complete = self._advance(text[place])
            if complete:
                self.stopped, self._pending = True, ""
                return text[: place + 1 - complete]
        shown = len(text) - max(self._matched, default=0)
        self._pending = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        pending, self._pending = self._pending, ""
        return pending

    def _advance(self, character: str) -> int:
        """The length of the longest stop string that this character completes, or 0."""
        complete = 0
        for number, stop in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = self._tables[number][matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                complete = max(complete, matched)
                matched = 0
            self._matched[number] = matched
        return complete


class TextStream:
    """Decodes tokens one by one into text, up to a stop string.

    before    the prompt's tokens: some tokenizers drop the space of a first token
    stop      strings before which the text ends
    """

    def __init__(self, tokenizer: Tokenizer, *, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self._stream, self._stopping = tokenizer.stream(), StopStrings(stop)
        for token in before[-BEFORE:]:
            self._stream.push(token)
        self._stream.finish()

    @property
    def stopped(self) -> bool:
        return self._stopping.stopped

    def push(self, token: int) -> str:
        """The text that is certain after this token."""
        return self._stopping.push(self._stream.push(token))

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        return self._stopping.push(self._stream.finish()) + self._stopping.finish()


def failure_table(stop: str) -> list[int]:
    """For each prefix of a stop string, the length of its longest proper suffix that is also a prefix."""
    table, matched = [0] * len(stop), 0
    for place in range(1, len(stop)):
        while matched and stop[place] != stop[matched]:
            matched = table[matched - 1]
        matched += stop[place] == stop[matched]
        table[place] = matched
    return table
