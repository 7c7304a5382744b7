"""An experiment: a claim, a way to test it, and a verdict that follows from the numbers.

    claim → run(budget) → numbers → rule → holds | does not hold | holds only when …

A verdict that depends on training needs the full budget; with less, the claim is "not judged". Where a rule compares
values of trained seeds, "does not hold" also needs an interval over the seeds that supports it (`refute`). All texts
for readers are in English and Japanese (`Words`); those that do not depend on the numbers are in `claims.toml`.
"""

from __future__ import annotations

import functools
import importlib
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from chumoku.evaluation.paired import paired_t
from chumoku.probe.bilingual import Words as Words  # the claims import it from here

HOLDS, FAILS, PARTLY = "holds", "does not hold", "holds only when"
NOT_JUDGED = "not judged"  # the models were not trained long enough for the rule, or their seeds do not refute it
VERDICTS = (HOLDS, PARTLY, FAILS, NOT_JUDGED)  # possible results of a rule


@dataclass(frozen=True)
class Claim:
    """A statement of the notes, how it is tested, and what would refute it."""

    id: str
    notes: tuple[str, ...]  # the first three digits of the notes' file names
    title: Words
    stated: Words  # the statement
    tried: Words  # the experiment
    refutes: Words  # what would refute it
    rule: Words  # how the verdict follows from the numbers
    reading: Words | None = None  # caption of the figure


@dataclass(frozen=True)
class Budget:
    """How much work to do: with scale 1 all claims take four to seven minutes on two cores, with 0.1 one."""

    scale: float = 1.0
    seeds: int = 3  # for experiments that train

    def steps(self, full: int, minimum: int = 1) -> int:
        """Training steps: `full` times the scale, but at least `minimum`."""
        return max(minimum, round(full * self.scale))


QUICK = Budget(scale=0.1, seeds=2)


class Correction(NamedTuple):
    """The value in the note, the correct value, and its calculation."""

    note: str
    true: str
    computed: Words


@dataclass(frozen=True)
class Outcome:
    verdict: str  # one of VERDICTS, from the claim's rule
    numbers: dict[str, Any]  # JSON values; trained experiments have one value per seed
    summary: Words
    when: Words | None = None  # the condition under which it holds; None if the verdict is not PARTLY
    correction: Correction | None = None

    def __post_init__(self) -> None:
        if self.verdict != PARTLY:
            object.__setattr__(self, "when", None)


@dataclass(frozen=True)
class Experiment:
    """A claim and its file in `lab/claims`."""

    claim: Claim
    run: Callable[[Budget], Outcome]
    draw: Callable[[Outcome, Any], None] | None = None  # draws outcome.numbers on a matplotlib Figure


@functools.cache
def load_claims() -> dict[str, Claim]:
    """All claims by id, in reading order."""
    tables = tomllib.loads(resources.files("chumoku.lab").joinpath("claims.toml").read_text("utf-8"))
    claims = {}
    for id, table in tables.items():
        notes = tuple(table.pop("notes"))
        claims[id] = Claim(id, notes, **{name: Words(**texts) for name, texts in table.items()})
    return claims


def load_experiment(id: str) -> Experiment:
    """Import the experiment with this id."""
    file = importlib.import_module(f"chumoku.lab.claims.{id.replace('-', '_')}")
    return Experiment(load_claims()[id], file.run, getattr(file, "draw", None))


def refute(*conditions: Sequence[float]) -> str:
    """The verdict on a claim that is not seen to hold: FAILS if the seeds refute a condition of it, else NOT_JUDGED.

    conditions    of each condition a number per seed: by how much it is met; below 0 is against the claim
    """
    return FAILS if any(map(is_refuted, conditions)) else NOT_JUDGED


def is_refuted(margins: Sequence[float]) -> bool:
    """Whether Student's 95 % interval of the mean margin over the seeds is below 0.

    A margin that is not finite, as of a diverged run, has no mean: then all seeds must be below 0.
    """
    if len(margins) < 2 or not all(map(math.isfinite, margins)):
        return len(margins) > 1 and all(margin < 0 for margin in margins)
    return paired_t(margins, [0.0] * len(margins)).high < 0


def matches_rounded(printed: Sequence[float], exact: Sequence[float], digits: int) -> bool:
    """Whether every printed number is the exact number rounded to `digits`."""
    half = 0.5 * 10**-digits * (1 + 1e-6)
    return len(printed) == len(exact) and all(abs(p - e) <= half for p, e in zip(printed, exact, strict=True))


def format_list(values: Sequence[float], digits: int = 3) -> str:
    """Numbers as text: [0.265, 0.141]."""
    shown = (f"{0.0 if abs(value) < 0.5 * 10**-digits else value:.{digits}f}" for value in values)
    return f"[{', '.join(shown)}]".replace("-", "−")


def format_number(value: float, digits: int = 1) -> str:
    """A number as text: in scientific notation (1.2 × 10⁻⁷) if very small or large, else as usual."""
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits + 2}g}".replace("-", "−")
    power = math.floor(math.log10(abs(value)))
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value / 10.0**power:.{digits}f} × 10{raised}".replace("-", "−")
