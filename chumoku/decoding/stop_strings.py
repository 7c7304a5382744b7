"""Stop strings: a text ends before any of them, wherever the borders of its tokens are.

    text shown so far | what may be the beginning of a stop string, held back | what comes next

How much is held back is, for each stop string, the longest of its beginnings that the text ends with. The table of
Knuth, Morris and Pratt (1977) says what is left of it when the next character does not fit, so every character is
looked at once. The stop string that is complete first ends the text; of several at once, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

from chumoku.errors import UsageError
from chumoku.text.tokenizer import Tokenizer

BEFORE = 16  # tokens of a prompt that tell how the text after it is spaced


class Stopping:
    """`push` text and show what comes back; `finish` gives what was held, unless the text has `stopped`."""

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise UsageError("Stop strings are a list; one alone is a list of one.")
        if not all(stops):
            raise UsageError("An empty stop string would stop every text before it begins.")
        self.stopped = False
        self._stops = list(stops)
        self._falls = [falls(stop) for stop in stops]
        self._matched = [0] * len(stops)  # how much of each stop string the text ends with
        self._held = ""

    def push(self, text: str) -> str:
        if self.stopped:
            return ""
        text, start = self._held + text, len(self._held)
        for place in range(start, len(text)):
            complete = self._advance(text[place])
            if complete:
                self.stopped, self._held = True, ""
                return text[: place + 1 - complete]
        shown = len(text) - max(self._matched, default=0)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """The length of the longest stop string that this character completes, or 0."""
        complete = 0
        for number, stop in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = self._falls[number][matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                complete = max(complete, matched)
                matched = 0
            self._matched[number] = matched
        return complete


class Utterance:
    """Tokens in, text out: valid at any time, and ended by stop strings.

    `before` is what the text goes on from: some tokenizers drop the space of a token that stands first.
    """

    def __init__(self, tokenizer: Tokenizer, *, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self._stream, self._stopping = tokenizer.stream(), Stopping(stop)
        for token in before[-BEFORE:]:
            self._stream.push(token)
        self._stream.finish()

    @property
    def stopped(self) -> bool:
        return self._stopping.stopped

    def push(self, token: int) -> str:
        """What can be shown now."""
        return self._stopping.push(self._stream.push(token))

    def finish(self) -> str:
        """What was held back, at the end of the tokens."""
        return self._stopping.push(self._stream.finish()) + self._stopping.finish()


def falls(stop: str) -> list[int]:
    """For each beginning of a stop string, the length of the longest shorter one that it ends with."""
    table, matched = [0] * len(stop), 0
    for place in range(1, len(stop)):
        while matched and stop[place] != stop[matched]:
            matched = table[matched - 1]
        matched += stop[place] == stop[matched]
        table[place] = matched
    return table
