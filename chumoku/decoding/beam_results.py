"""The hypotheses of a beam search as arrays, so that a step costs a few operations for any number of rows.

step t      token, log p and row [S, beam] of each live hypothesis; the row is that of step t − 1 which it continues
finished    for each sentence fewer than 2 · beam, each with its score, its length and the row that it continues
best        only these become lists of tokens, which are read backwards from row to row
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from chumoku.decoding.beam_rules import Hypothesis, Numbers, Rules


class Candidates(NamedTuple):
    """Continuations of the live hypotheses of each sentence, best first; all [S, n]."""

    totals: Numbers  # log p
    rows: Numbers  # of the hypotheses that they continue, counted over all sentences
    tokens: Numbers

    def first(self, count: int) -> Candidates:
        """The first `count` of each sentence."""
        return Candidates(self.totals[:, :count], self.rows[:, :count], self.tokens[:, :count])

    def select(self, sentences: Any) -> Candidates:
        """Those of these sentences, or of this slice of them."""
        return Candidates(*(part[sentences] for part in self))


class Results:
    """The live hypotheses of every step, and the finished ones of `sentences` sentences."""

    def __init__(self, rules: Rules, sentences: int) -> None:
        self.rules = rules
        shape = (sentences, 2 * rules.beam)
        self.scores = np.full(shape, np.nan)  # of finished hypotheses, in the order in which they ended
        self._totals = np.zeros(shape)
        self._lengths, self._rows, self._tokens = np.zeros((3, *shape), dtype=np.int64)
        self._steps: list[Candidates] = []

    def add_step(self, live: Candidates) -> None:
        """The live hypotheses after another token."""
        self._steps.append(live)

    def collect(self, numbers: Numbers, candidates: Candidates, *, length: int) -> None:
        """Add the candidates among the first `beam` that end here, or that are cut here.

        numbers     the number of each sentence
        """
        first = candidates.first(self.rules.beam)
        cut = self.rules.limit_array[numbers] == length
        over = ((first.tokens == self.rules.end) | cut[:, None]) & np.isfinite(first.totals)
        if not over.any():
            return
        here = np.nonzero(over)
        count = (~np.isnan(self.scores[numbers])).sum(1)
        place = numbers[here[0]], (count[:, None] + over.cumsum(1) - 1)[here]
        self._totals[place] = first.totals[here]
        self.scores[place] = self._totals[place] / self.rules.divisor(length)
        self._lengths[place], self._rows[place], self._tokens[place] = length, first.rows[here], first.tokens[here]

    def best(self) -> list[list[Hypothesis]]:
        """The `best` finished hypotheses of each sentence, best first; the first to end where scores are equal."""
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, : self.rules.best]  # NaN comes last
        place = np.repeat(np.arange(len(order)), order.shape[1]), order.ravel()
        place = tuple(part[~np.isnan(self.scores[place])] for part in place)
        lengths, tokens, logprobs = self._lengths[place], *self._read_back(place)
        ended = self._tokens[place] == self.rules.end
        found: list[list[Hypothesis]] = [[] for _ in self.scores]
        for nth, (number, score) in enumerate(zip(place[0].tolist(), self.scores[place].tolist(), strict=True)):
            text = tokens[nth, : lengths[nth] - ended[nth]].tolist()
            found[number].append(Hypothesis(text, score, logprobs=logprobs[nth, : lengths[nth]].tolist()))
        return found

    def _read_back(self, place: tuple[Numbers, ...]) -> tuple[Numbers, Numbers]:
        """The tokens of these finished hypotheses and their log p [n, T], from the last one to the first."""
        lengths, rows = self._lengths[place], self._rows[place]
        longest, every = lengths.max(initial=0), np.arange(len(lengths))
        tokens, totals = np.zeros((len(lengths), longest), dtype=np.int64), np.zeros((len(lengths), longest + 1))
        tokens[every, lengths - 1], totals[every, lengths] = self._tokens[place], self._totals[place]
        for length in range(longest - 1, 0, -1):
            longer, step = lengths > length, self._steps[length - 1]
            row = rows[longer]
            tokens[longer, length - 1], totals[longer, length] = step.tokens.flat[row], step.totals.flat[row]
            rows[longer] = step.rows.flat[row]
        return tokens, np.diff(totals)
