"""Choosing for a batch: the formulas of `decoding.choosers` for rows that each have a `Choice` of their own.

    plain greedy rows       one argmax for all of them
    rows of one Choice      together; where k or p leave few tokens possible, only those few are looked at

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
from chumoku.decoding.choosers import Choice, draw, penalised, precise
from chumoku.errors import UsageError

HEAD = 256  # so many of the likeliest are tried before all are put in order
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
                f"There is no token {wrong[0]} to end with, to favour or to forbid; there are {vocabulary}."
            )
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
        self._seen: Tensor | None = None  # [rows, V], kept while any row asks for it
        self._plan: Plan | None = None
        self._age = 0

    def enter(self, voices: Sequence[Voice]) -> None:
        """Rows behind those that are here."""
        self.voices += voices
        self._plan = None
        if self._seen is None and not any(voice.choice.remembers for voice in voices):
            return
        first = len(self.voices) - len(voices)
        if self._seen is None:
            self._seen = torch.zeros(first, self._vocabulary, dtype=torch.bool, device=self._device)
        new = torch.zeros(len(voices), self._vocabulary, dtype=torch.bool, device=self._device)
        for row, voice in enumerate(voices):
            if voice.choice.remembers and voice.prompt:
                new[row, torch.tensor(voice.prompt, device=self._device)] = True
        self._seen = torch.cat([self._seen, new])

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
            logits = penalised(logits, self._seen, repetition=repetition, presence=presence)
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
            self._seen.scatter_(1, chosen.clamp(min=0)[:, None], True)

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
        best, tokens = logits.max(-1)
        return tokens.where(best.isfinite(), BROKEN)
    values, places = likely(logits.to(torch.promote_types(logits.dtype, torch.float32)), choice)
    numbers = [voice.random.random() for voice in voices]
    points = torch.tensor(numbers, dtype=precise(logits.device)).to(logits.device)
    drawn = draw(values.exp(), points.clamp(max=1 - torch.finfo(points.dtype).eps / 2))
    # Where nothing was a number no sum exceeds anything, and the place found is none.
    fine = values.amax(-1).isfinite()
    drawn = drawn.clamp(max=values.shape[-1] - 1)
    chosen = drawn if places is None else places.gather(1, drawn[:, None])[:, 0]
    return chosen.where(fine, BROKEN)


def likely(logits: Tensor, choice: Choice) -> tuple[Tensor, Tensor | None]:
    """(l − max l) / temperature of tokens by rising number, −∞ where they are impossible; and their numbers."""
    if choice.top_k is None and choice.top_p is None and choice.min_p is None:
        return (logits - logits.amax(-1, keepdim=True)) / choice.temperature, None
    size = logits.shape[-1]
    width = size if choice.top_k is None else min(choice.top_k, size)
    if choice.top_k is None and logits.device.type == "cpu":
        # Elsewhere, asking whether a few were enough would take longer than putting all in order.
        width = min(HEAD, size)
    top = logits.topk(width)
    values, enough = kept(top.values, logits, choice)
    if choice.top_k is None and width < size and not enough.all():
        top = logits.topk(size)
        values, _ = kept(top.values, logits, choice)
    tokens, order = top.indices.sort(dim=-1)
    return values.gather(-1, order), tokens


def kept(values: Tensor, logits: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
    """The likeliest tokens' values, largest first, −∞ where top_p or min_p say so; and whether no others stay."""
    best = values[:, :1]
    values = (values - best).to(precise(values.device)) / choice.temperature
    enough = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    shares = values.exp()
    if choice.top_p is not None:
        # Of those that are looked at when k chose them, of all tokens otherwise.
        whole = shares if choice.top_k is not None else ((logits - best) / choice.temperature).exp()
        reached = shares.cumsum(-1) >= choice.top_p * whole.sum(-1, keepdim=True, dtype=shares.dtype)
        enough = reached[:, -1]
        values[:, 1:].masked_fill_(reached[:, :-1], -math.inf)
    if choice.min_p is not None:
        unlikely = shares < choice.min_p
        enough = enough | unlikely[:, -1]
        values = values.masked_fill(unlikely, -math.inf)
    return values, enough
