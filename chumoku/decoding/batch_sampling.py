"""Choosing for a batch: the formulas of `decoding.choosers` for rows that each have a `Choice` of their own.

    plain greedy rows       the largest of each, in one go
    rows of one Choice      together; where k or p leave few tokens possible, only those few are looked at
    penalties               of the tokens seen, not of all

What has to be done is planned when rows enter or leave, so a step only does it. Nothing here waits for the device: a
row whose logits are no finite numbers gets the token −1, for whoever reads the tokens to see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chumoku.data.order import generator
from chumoku.decoding.sampling import Choice, lessened, precise
from chumoku.decoding.top_k import first_largest, largest, reached
from chumoku.errors import UsageError

HEAD = 64  # so many of the likeliest are tried first, and sixteen times as many when they are not enough
BROKEN = -1


class Voice:
    """One text: how it is chosen, its random numbers, and how much of it is written."""

    def __init__(
        self, choice: Choice, *, vocabulary: int, prompt: Sequence[int] = (), end: Sequence[int] = (), least: int = 0
    ) -> None:
        self.choice, self.prompt, self.end, self.least = choice, prompt, tuple(end), least
        self.random: np.random.Generator = generator(choice.seed, choice.row)
        self.written = 0
        named = {*choice.bias, *choice.forbidden, *end}
        if wrong := [token for token in named if not 0 <= token < vocabulary]:
            raise UsageError(
                f"There is no token {wrong[0]} to end with, to favor or to forbid; there are {vocabulary}."
            )
        if choice.remembers and not prompt:
            raise UsageError("Penalties are for tokens that were seen; give a prompt, be it a begin token alone.")
        impossible = sum(value == -math.inf for value in choice.edits(self.end if least else ()).values())
        if impossible == vocabulary:
            raise UsageError(f"All {vocabulary} tokens are forbidden, so there is nothing to choose from.")

    @property
    def short(self) -> bool:
        """Whether the text may not end yet."""
        return self.written < self.least and bool(self.end)

    def edits(self) -> dict[int, float]:
        return self.choice.edits(self.end if self.short else ())


class Plan(NamedTuple):
    """What is done to which rows; None stands for all of them."""

    edits: list[tuple[Tensor | None, Tensor, Tensor]]  # rows, tokens, and what is added to their logits
    penalties: tuple[Tensor, Tensor] | None  # repetition and presence [n, 1]
    groups: list[tuple[Tensor | None, Choice, list[Voice]]]
    valid: float  # for so many tokens


class Chooser:
    """Chooses for the rows of an engine, which enter, move and leave here as they do there."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.voices: list[Voice] = []
        self._vocabulary, self._device = vocabulary, device
        self._seen: Tensor | None = None  # [rows, t] tokens, some of them twice; kept while any row asks for it
        self._plan: Plan | None = None
        self._age = 0

    def enter(self, voices: Sequence[Voice]) -> None:
        """Rows behind those that are here."""
        self.voices += voices
        self._plan = None
        if self._seen is None and not any(voice.choice.remembers for voice in voices):
            return
        earlier = [] if self._seen is None else self._seen.tolist()
        # Rows that were here before and never asked have no penalty: for them any token will do.
        earlier += [[0]] * (len(self.voices) - len(voices) - len(earlier))
        seen = [*earlier, *([*voice.prompt] if voice.choice.remembers else [0] for voice in voices)]
        most = max(map(len, seen))
        self._seen = torch.tensor([[*row, *row[:1] * (most - len(row))] for row in seen], device=self._device)

    def take(self, rows: Sequence[int]) -> None:
        """Row i is now what row rows[i] was; the others are gone."""
        self.voices = [self.voices[row] for row in rows]
        self._plan = None
        if self._seen is not None:
            remembers = any(voice.choice.remembers for voice in self.voices)
            self._seen = self._seen[torch.tensor(rows, device=self._device)] if remembers else None

    @torch.inference_mode()
    def choose(self, logits: Tensor) -> Tensor:
        """A token for each row of [n, V], which may be overwritten; −1 where the logits are no numbers."""
        plan = self._planned()
        if self._seen is not None and plan.penalties is not None:
            repetition, presence = plan.penalties
            less = lessened(logits.gather(1, self._seen), repetition=repetition, presence=presence)
            logits.scatter_(1, self._seen, less.to(logits.dtype))
        for rows, tokens, values in plan.edits:
            if rows is None:
                logits.index_add_(1, tokens, values.to(logits.dtype).expand(len(logits), -1))
            else:
                logits[rows[:, None], tokens] += values.to(logits.dtype)
        chosen = None
        for rows, choice, voices in plan.groups:
            part = pick(logits if rows is None else logits[rows], choice, voices)
            if rows is None:
                chosen = part
            else:
                chosen = part.new_empty(len(logits)) if chosen is None else chosen
                chosen[rows] = part
        if chosen is None:
            raise UsageError("There are no rows to choose for.")
        self._note(chosen)
        return chosen

    def _note(self, chosen: Tensor) -> None:
        self._age += 1
        for voice in self.voices:
            voice.written += 1
        if self._seen is not None:
            self._seen = torch.cat([self._seen, chosen.clamp(min=0)[:, None]], 1)

    def _planned(self) -> Plan:
        if self._plan is None or self._age >= self._plan.valid:
            self._plan, self._age = self._make_plan(), 0
        return self._plan

    def _make_plan(self) -> Plan:
        edits: dict[tuple[tuple[int, float], ...], list[int]] = {}
        groups: dict[tuple[float | None, ...], list[int]] = {}
        for row, voice in enumerate(self.voices):
            changes = tuple(voice.edits().items())
            if changes:
                edits.setdefault(changes, []).append(row)
            choice = voice.choice
            shape = (0.0,) if choice.greedy else (choice.temperature, choice.top_k, choice.top_p, choice.min_p)
            groups.setdefault(shape, []).append(row)
        penalties = None
        if self._seen is not None:
            each = [(voice.choice.repetition, voice.choice.presence) for voice in self.voices]
            repetition, presence = torch.tensor(each, device=self._device).unbind(1)
            penalties = repetition[:, None], presence[:, None]
        return Plan(
            [(self._index(rows), *self._additions(changes)) for changes, rows in edits.items()],
            penalties,
            [
                (self._index(rows), self.voices[rows[0]].choice, [self.voices[row] for row in rows])
                for rows in groups.values()
            ],
            min((voice.least - voice.written for voice in self.voices if voice.short), default=math.inf),
        )

    def _index(self, rows: list[int]) -> Tensor | None:
        return None if len(rows) == len(self.voices) else torch.tensor(rows, device=self._device)

    def _additions(self, changes: tuple[tuple[int, float], ...]) -> tuple[Tensor, Tensor]:
        tokens, values = zip(*changes, strict=True)
        return torch.tensor(tokens, device=self._device), torch.tensor(values, device=self._device)


def pick(logits: Tensor, choice: Choice, voices: Sequence[Voice]) -> Tensor:
    """A token for each row of [n, V] under one choice, whose penalties and edits are done already."""
    if choice.greedy:
        tokens = first_largest(logits)
        best = logits.gather(1, tokens[:, None])[:, 0]
        return tokens.where(best.isfinite(), BROKEN)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    numbers = torch.tensor([voice.random.random() for voice in voices], dtype=precise(logits.device))
    points = numbers.clamp(max=1 - torch.finfo(numbers.dtype).eps / 2).to(logits.device)
    best = logits.amax(-1, keepdim=True)
    if choice.top_k is not None:
        tokens = among(logits, best, choice, points, min(choice.top_k, logits.shape[-1]))
    elif choice.top_p is not None or choice.min_p is not None:
        # Elsewhere, asking whether a few were enough would take longer than putting all in order.
        few = logits.device.type == "cpu"
        tokens = among(logits, best, choice, points, min(HEAD, logits.shape[-1]) if few else logits.shape[-1])
    else:
        tokens = reached(((logits - best) / choice.temperature).exp(), points)
    # Where nothing was a number no sum exceeds anything, and the place found is none.
    return tokens.where(best[:, 0].isfinite(), BROKEN)


def among(logits: Tensor, best: Tensor, choice: Choice, points: Tensor, width: int) -> Tensor:
    """A token for each row from its `width` likeliest; from more of them, where a choice without top_k needs more."""
    top = largest(logits, width)
    values, enough = kept((top.values - best).to(points.dtype) / choice.temperature, logits, best, choice)
    tokens, order = top.places.sort(dim=-1)
    drawn = reached(values.gather(1, order).exp(), points).clamp(max=width - 1)
    chosen = tokens.gather(1, drawn[:, None])[:, 0]
    if choice.top_k is None and width < logits.shape[-1] and not enough.all():
        rows = (~enough).nonzero()[:, 0]
        wider = min(16 * width, logits.shape[-1])
        chosen[rows] = among(logits[rows], best[rows], choice, points[rows], wider)
    return chosen


def kept(values: Tensor, logits: Tensor, best: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
    """The likeliest tokens' values, largest first, −∞ where top_p or min_p say so; and whether no others stay."""
    enough = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    shares = values.exp()
    if choice.top_p is not None:
        # Of those that are looked at when k chose them, of all tokens otherwise.
        whole = shares if choice.top_k is not None else ((logits - best) / choice.temperature).exp()
        over = shares.cumsum(-1) >= choice.top_p * whole.sum(-1, keepdim=True)
        enough = over[:, -1]
        values = torch.cat([values[:, :1], values[:, 1:].masked_fill(over[:, :-1], -math.inf)], 1)
    if choice.min_p is not None:
        unlikely = shares < choice.min_p
        enough = enough | unlikely[:, -1]
        values = values.masked_fill(unlikely, -math.inf)
    return values, enough
