"""The tree of a beam search: every continuation that was considered, and what became of it.

step 1        猫 −0.4 ── は −0.9 ── </s> −1.2      chosen: on the way to the best hypothesis
              犬 −1.7 ── が −3.1                   dropped: leads to no finished or live hypothesis

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
    """The search tree of one sentence: call `grow` at every step and `finish` at the end."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._rows = [-1]  # the node of each live hypothesis

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

    def finish(self, best: Sequence[int], end: int) -> None:
        """Set the state of every node, given the tokens of the best hypothesis."""
        ends = [place for place, node in enumerate(self.nodes) if node.state == "ended"]
        for place in [*ends, *(row for row in self._rows if row >= 0)]:
            for above in self._above(place):
                self.nodes[above].state = "live"
        won = [place for place in ends if [token for token in self._tokens(place) if token != end] == list(best)]
        for place in ends:
            self.nodes[place].state = "ended"
        # Two hypotheses may have the same tokens, one cut and one ended; the more likely one won.
        for place in sorted(won, key=lambda place: -self.nodes[place].score)[:1]:
            for above in (place, *self._above(place)):
                self.nodes[above].state = "chosen"

    def _above(self, place: int) -> list[int]:
        above = []
        while (place := self.nodes[place].parent) >= 0:
            above.append(place)
        return above

    def _tokens(self, place: int) -> list[int]:
        return [self.nodes[node].token for node in reversed([place, *self._above(place)])]
