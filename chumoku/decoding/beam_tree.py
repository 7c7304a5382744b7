"""The tree of a beam search: every continuation that was looked at, and what became of it.

step 1        猫 −0.4 ── は −0.9 ── </s> −1.2      chosen: on the way to the best hypothesis
              犬 −1.7 ── が −3.1                   dropped: nothing found or still searched lies behind it

logprob = log p of the token          score = log p of all tokens so far
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["live", "ended", "dropped", "chosen"]


@dataclass
class Node:
    parent: int  # −1: the begin token
    token: int
    logprob: float
    score: float
    step: int
    state: State


class Tree:
    """Of one sentence; `grow` hears of every step, `judge` of the end."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._rows = [-1]  # the node at which each live hypothesis stands

    def grow(
        self,
        candidates: Sequence[tuple[float, int, int]],
        ended: Sequence[bool],
        kept: Sequence[tuple[int, int]],
        *,
        step: int,
    ) -> None:
        """`candidates` are (score, row, token), best first, `kept` the (row, token) that live on."""
        found: dict[tuple[int, int], int] = {}
        for (score, row, token), over in zip(candidates, ended, strict=True):
            if score == -math.inf or (row, token) in found:
                continue
            parent = self._rows[row]
            before = self.nodes[parent].score if parent >= 0 else 0.0
            found[row, token] = len(self.nodes)
            self.nodes.append(Node(parent, token, score - before, score, step, "ended" if over else "dropped"))
        self._rows = [found.get(pair, -1) for pair in kept]

    def judge(self, best: Sequence[int], end: int) -> None:
        """What became of each branch, once `best` is the hypothesis that won."""
        ends = [place for place, node in enumerate(self.nodes) if node.state == "ended"]
        for place in [*ends, *(row for row in self._rows if row >= 0)]:
            for above in self._above(place):
                self.nodes[above].state = "live"
        won = [place for place in ends if [token for token in self._words(place) if token != end] == list(best)]
        for place in ends:
            self.nodes[place].state = "ended"
        # Of two ways to the same words, one cut and one ended, the likelier was taken for the better.
        for place in sorted(won, key=lambda place: -self.nodes[place].score)[:1]:
            for above in (place, *self._above(place)):
                self.nodes[above].state = "chosen"

    def _above(self, place: int) -> list[int]:
        above = []
        while (place := self.nodes[place].parent) >= 0:
            above.append(place)
        return above

    def _words(self, place: int) -> list[int]:
        return [self.nodes[node].token for node in reversed([place, *self._above(place)])]
