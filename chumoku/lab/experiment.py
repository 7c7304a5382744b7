"""An experiment: a claim, a way to try it, and a verdict that follows from the numbers.

    claim → run(budget) → numbers → rule → holds | does not hold | holds only when …

A verdict that depends on what a model has learned needs the full budget; with less, the claim is "not judged".
Everything a reader is shown is said twice, in English and in Japanese (`Words`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

HOLDS, FAILS, PARTLY = "holds", "does not hold", "holds only when"
VERDICTS = (HOLDS, PARTLY, FAILS)  # what a rule can say
NOT_JUDGED = "not judged"  # the models were trained for too short a time for the rule to mean anything


class Words(NamedTuple):
    en: str
    ja: str


@dataclass(frozen=True)
class Claim:
    """What a note states, and how it could turn out to be wrong."""

    id: str
    notes: tuple[str, ...]  # the first three digits of the notes' file names
    title: Words
    stated: Words
    tried: Words
    refutes: Words
    rule: Words  # how the verdict follows from the numbers


@dataclass(frozen=True)
class Budget:
    """How much may be spent: scale 1 is the whole laboratory in 15 minutes on two cores, 0.1 in two."""

    scale: float = 1.0
    seeds: int = 3  # of experiments that train

    def steps(self, full: int, least: int = 1) -> int:
        return max(least, round(full * self.scale))


QUICK = Budget(scale=0.1, seeds=2)


class Correction(NamedTuple):
    """A note's number, the true one, and how it comes about."""

    said: str
    true: str
    computed: Words


@dataclass(frozen=True)
class Outcome:
    verdict: str  # one of VERDICTS, by the claim's rule
    numbers: dict[str, Any]  # what JSON can hold; of trained experiments every seed's value
    summary: Words
    when: Words | None = None  # of PARTLY: when it holds
    correction: Correction | None = None
    reading: Words | None = None  # one line below the figure


@dataclass(frozen=True)
class Experiment:
    """One file of `lab/claims`, opened."""

    claim: Claim
    run: Callable[[Budget], Outcome]
    draw: Callable[[Outcome, Any], None] | None = None  # onto a matplotlib Figure, from outcome.numbers alone


def opened(id: str) -> Experiment:
    """The experiment in the file of this id."""
    file = importlib.import_module(f"chumoku.lab.claims.{id.replace('-', '_')}")
    return Experiment(file.CLAIM, file.run, getattr(file, "draw", None))


def as_printed(said: Sequence[float], true: Sequence[float], digits: int) -> bool:
    """Whether every printed number is the true one, rounded to the digits it was printed with."""
    half = 0.5 * 10**-digits * (1 + 1e-6)
    return len(said) == len(true) and all(abs(s - t) <= half for s, t in zip(said, true, strict=True))


def listed(values: Sequence[float], digits: int = 3) -> str:
    """[0.265, 0.141], as a sentence shows it."""
    shown = (f"{0.0 if abs(value) < 0.5 * 10**-digits else value:.{digits}f}" for value in values)
    return f"[{', '.join(shown)}]".replace("-", "−")


def times(value: float, digits: int = 1) -> str:
    """1.2 × 10⁻⁷, as on paper, where a plain number would be unreadable; else plainly."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits + 2}g}".replace("-", "−")
    power = math.floor(math.log10(abs(value)))
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value / 10.0**power:.{digits}f} × 10{raised}".replace("-", "−")
