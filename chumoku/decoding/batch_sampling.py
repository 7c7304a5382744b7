"""Sampling for a batch: the formulas of `decoding.sampling` for rows that each have their own `SamplingOptions`.

    greedy rows                   one argmax for all of them; the engine's if all rows are greedy, without rules
    rows with equal options       sampled together; with top_k, top_p or min_p only the most likely tokens are sorted
    repetition, presence          applied to the tokens that were seen, not to the whole vocabulary

The work is planned when rows enter or leave; a step only executes the plan. Nothing here waits for the device: a row
whose logits are not finite gets the token −1 (INVALID).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chumoku.data.order import generator
from chumoku.decoding.batch import upload
from chumoku.decoding.constraint import Constraint
from chumoku.decoding.sampling import SamplingOptions, apply_frequency_penalty, penalize, widest_float
from chumoku.decoding.top_k import first_largest, largest, reached
from chumoku.errors import UsageError

FIRST_WIDTH = 64  # most likely tokens that are tried first; sixteen times as many if they are not enough
INVALID = -1


class SamplerState:
    """The sampling state of one text: its options, its random numbers, and how many tokens were generated."""

    def __init__(
        self,
        options: SamplingOptions,
        *,
        vocabulary: int,
        prompt: Sequence[int] = (),
        end: Sequence[int] = (),
        min_new_tokens: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        self.options, self.prompt, self.end, self.min_new_tokens = options, prompt, tuple(end), min_new_tokens
        self.constraint = constraint
        self.random: np.random.Generator = generator(options.seed, options.row)
        self.generated = 0
        if wrong := [token for token in {*options.bias, *options.forbidden, *end} if not 0 <= token < vocabulary]:
            raise UsageError(f"Token {wrong[0]} (end, bias or forbidden) is not in the vocabulary of {vocabulary}.")
        if options.penalizes_seen and not prompt:
            raise UsageError("Penalties need a prompt of at least one token, such as the begin token.")
        biases = options.biases(self.end if min_new_tokens else ())
        if sum(value == -math.inf for value in biases.values()) == vocabulary:
            raise UsageError(f"All {vocabulary} tokens are forbidden. Leave at least one possible.")

    @property
    def too_short(self) -> bool:
        """Whether the text may not end yet."""
        return self.generated < self.min_new_tokens and bool(self.end)

    def biases(self) -> dict[int, float]:
        return self.options.biases(self.end if self.too_short else ())


class Plan(NamedTuple):
    """What is done to which rows; rows = None means all rows."""

    biases: list[tuple[Tensor | None, Tensor, Tensor]]  # rows, tokens, and what is added to their logits
    penalties: tuple[Tensor, Tensor] | None  # repetition and presence [n, 1]
    frequency: Tensor | None  # [n, 1]
    groups: list[tuple[Tensor | None, SamplingOptions, list[SamplerState]]]
    greedy: bool  # every row takes the most likely token of the model's own logits
    valid_steps: float


class BatchSampler:
    """Samples a token for each row of an engine. Rows are added, moved and removed here as they are there."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self.states: list[SamplerState] = []
        self._vocabulary, self._device = vocabulary, device
        self._seen: Tensor | None = None  # [rows, t] tokens, may repeat; None unless a row has a penalty
        self._counts: Tensor | None = None  # [rows, V] of generated tokens; None unless a row has a frequency penalty
        self._plan: Plan | None = None
        self._plan_steps = 0

    def add_rows(self, states: Sequence[SamplerState]) -> None:
        """Append rows."""
        self.states += states
        self._plan = None
        self._add_counts(states)
        if self._seen is None and not any(state.options.penalizes_seen for state in states):
            return
        earlier = [] if self._seen is None else self._seen.tolist()
        # Earlier rows without penalties are filled with an arbitrary token.
        earlier += [[0]] * (len(self.states) - len(states) - len(earlier))
        seen = [*earlier, *([*state.prompt] if state.options.penalizes_seen else [0] for state in states)]
        most = max(map(len, seen))
        self._seen = torch.tensor([[*row, *row[:1] * (most - len(row))] for row in seen], device=self._device)

    def _add_counts(self, states: Sequence[SamplerState]) -> None:
        if self._counts is None and not any(state.options.frequency_penalty for state in states):
            return
        counts = torch.zeros(len(self.states), self._vocabulary, device=self._device)
        if self._counts is not None:
            counts[: len(self._counts)] = self._counts
        for row, state in enumerate(states, start=len(self.states) - len(states)):
            # The prompt of a text that was paused ends with what it had generated.
            generated = state.prompt[len(state.prompt) - state.generated :]
            tokens = torch.tensor([*generated], dtype=torch.int64, device=self._device)
            counts[row] += torch.bincount(tokens, minlength=self._vocabulary)
        self._counts = counts

    def select_rows(self, rows: Sequence[int]) -> None:
        """Row i becomes the previous row rows[i]; rows that are not listed are removed."""
        self.states = [self.states[row] for row in rows]
        self._plan = None
        index = torch.tensor(rows, dtype=torch.int64, device=self._device)
        if self._seen is not None:
            penalized = any(state.options.penalizes_seen for state in self.states)
            self._seen = self._seen[index] if penalized else None
        if self._counts is not None:
            penalized = any(state.options.frequency_penalty for state in self.states)
            self._counts = self._counts[index] if penalized else None

    @torch.inference_mode()
    def sample(self, logits: Tensor, most_likely: Tensor | None = None) -> Tensor:
        """A token for each row of [n, V], which may be overwritten; INVALID where the logits are not finite.

        most_likely    the token of the largest logit of each row, or INVALID, if the engine has computed them
        """
        plan = self._current_plan()
        if most_likely is not None and plan.greedy:
            self._record(most_likely)
            return most_likely
        if self._seen is not None and plan.penalties is not None:
            repetition, presence = plan.penalties
            penalized = penalize(logits.gather(1, self._seen), repetition_penalty=repetition, presence_penalty=presence)
            logits.scatter_(1, self._seen, penalized.to(logits.dtype))
        if self._counts is not None and plan.frequency is not None:
            logits = apply_frequency_penalty(logits, self._counts, frequency_penalty=plan.frequency)
        for rows, tokens, values in plan.biases:
            if rows is None:
                logits.index_add_(1, tokens, values.to(logits.dtype).expand(len(logits), -1))
            else:
                logits[rows[:, None], tokens] += values.to(logits.dtype)
        for row, state in enumerate(self.states):
            if state.constraint is not None:
                allowed = state.constraint.allowed(logits.shape[-1]).to(logits.device)
                logits[row].masked_fill_(~allowed, -math.inf)
        sampled = None
        for rows, options, states in plan.groups:
            part = sample_rows(logits if rows is None else logits[rows], options, states)
            if rows is None:
                sampled = part
            else:
                sampled = part.new_empty(len(logits)) if sampled is None else sampled
                sampled[rows] = part
        if sampled is None:
            raise UsageError("There are no rows to sample.")
        self._record(sampled)
        return sampled

    def _record(self, sampled: Tensor) -> None:
        self._plan_steps += 1
        for state in self.states:
            state.generated += 1
        if self._seen is None and self._counts is None:
            return
        tokens = sampled.clamp(min=0)[:, None]
        if self._seen is not None:
            self._seen = torch.cat([self._seen, tokens], 1)
        if self._counts is not None:
            self._counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=self._counts.dtype))

    def _current_plan(self) -> Plan:
        if self._plan is None or self._plan_steps >= self._plan.valid_steps:
            self._plan, self._plan_steps = self._make_plan(), 0
        return self._plan

    def _make_plan(self) -> Plan:
        biases: dict[tuple[tuple[int, float], ...], list[int]] = {}
        groups: dict[tuple[float | None, ...], list[int]] = {}
        for row, state in enumerate(self.states):
            additions = tuple(state.biases().items())
            if additions:
                biases.setdefault(additions, []).append(row)
            options = state.options
            key = (0.0,) if options.greedy else (options.temperature, options.top_k, options.top_p, options.min_p)
            groups.setdefault(key, []).append(row)
        all_options = [state.options for state in self.states]
        penalties: tuple[Tensor, Tensor] | None = None
        frequency: Tensor | None = None
        if self._seen is not None:
            repetition = self._column([options.repetition_penalty for options in all_options])
            penalties = repetition, self._column([options.presence_penalty for options in all_options])
        if self._counts is not None:
            frequency = self._column([options.frequency_penalty for options in all_options])
        return Plan(
            [(self._index(rows), *self._additions(additions)) for additions, rows in biases.items()],
            penalties,
            frequency,
            [(self._index(rows), all_options[rows[0]], [self.states[row] for row in rows]) for rows in groups.values()],
            self._seen is None
            and self._counts is None
            and not biases
            and all(state.options.greedy and state.constraint is None for state in self.states),
            min((state.min_new_tokens - state.generated for state in self.states if state.too_short), default=math.inf),
        )

    def _column(self, values: list[float]) -> Tensor:
        return torch.tensor(values, device=self._device)[:, None]

    def _index(self, rows: list[int]) -> Tensor | None:
        return None if len(rows) == len(self.states) else torch.tensor(rows, device=self._device)

    def _additions(self, additions: tuple[tuple[int, float], ...]) -> tuple[Tensor, Tensor]:
        tokens, values = zip(*additions, strict=True)
        return torch.tensor(tokens, device=self._device), torch.tensor(values, device=self._device)


def sample_rows(logits: Tensor, options: SamplingOptions, states: Sequence[SamplerState]) -> Tensor:
    """A token for each row of [n, V]; penalties and biases are already applied."""
    if options.greedy:
        best, tokens = first_largest(logits)
        # x − x is 0 unless x is NaN or infinite; fewer kernels than isfinite and where.
        return tokens.masked_fill_(best - best != 0, INVALID)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    numbers = torch.tensor([state.random.random() for state in states], dtype=widest_float(logits.device))
    points = upload(numbers.clamp(max=1 - torch.finfo(numbers.dtype).eps / 2), logits.device)
    best = logits.amax(-1, keepdim=True)
    if options.top_k is not None:
        tokens = sample_from_top(logits, best, options, points, min(options.top_k, logits.shape[-1]))
    elif options.top_p is not None or options.min_p is not None:
        # On a GPU, checking whether a few tokens were enough takes longer than sorting all of them.
        few = logits.device.type == "cpu"
        width = min(FIRST_WIDTH, logits.shape[-1]) if few else logits.shape[-1]
        tokens = sample_from_top(logits, best, options, points, width)
    else:
        tokens = reached(((logits - best) / options.temperature).exp(), points)
    # If the logits are NaN, the index found is meaningless.
    return tokens.where(best[:, 0].isfinite(), INVALID)


def sample_from_top(logits: Tensor, best: Tensor, options: SamplingOptions, points: Tensor, width: int) -> Tensor:
    """A token for each row from its `width` most likely ones; from more where top_p or min_p keep more than that."""
    top = largest(logits, width)
    values, enough = filter_top((top.values - best).to(points.dtype) / options.temperature, logits, best, options)
    tokens, order = top.places.sort(dim=-1)
    index = reached(values.gather(1, order).exp(), points).clamp(max=width - 1)
    sampled = tokens.gather(1, index[:, None])[:, 0]
    if options.top_k is None and width < logits.shape[-1] and not enough.all():
        rows = (~enough).nonzero()[:, 0]
        wider = min(16 * width, logits.shape[-1])
        sampled[rows] = sample_from_top(logits[rows], best[rows], options, points[rows], wider)
    return sampled


def filter_top(values: Tensor, logits: Tensor, best: Tensor, options: SamplingOptions) -> tuple[Tensor, Tensor]:
    """Values (descending) of the most likely tokens, −∞ where dropped; and whether no other token would be kept."""
    enough = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    shares = values.exp()
    if options.top_p is not None:
        # p refers to the k tokens that top_k left, or to all tokens.
        total = shares if options.top_k is not None else ((logits - best) / options.temperature).exp()
        over = shares.cumsum(-1) >= options.top_p * total.sum(-1, keepdim=True)
        enough = over[:, -1]
        values = torch.cat([values[:, :1], values[:, 1:].masked_fill(over[:, :-1], -math.inf)], 1)
    if options.min_p is not None:
        unlikely = shares < options.min_p
        enough = enough | unlikely[:, -1]
        values = values.masked_fill(unlikely, -math.inf)
    return values, enough
