"""What a check is, and what it says.

    Check     name · what holds in health · cheap or not · run(patient) → findings
    Finding   what is wrong · where · how sure, from 0 to 1 · what to do

From 0.5 on a finding means that something is broken; below, that it is worth a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chumoku.doctor.subject import Patient

BROKEN = 0.5


class Skip(Exception):
    """Raised by a check that cannot be made of this patient; its text is the reason."""


@dataclass(frozen=True)
class Finding:
    check: str
    what: str
    where: str
    sure: float
    todo: str
    measured: bool = True  # or the check came to an end before it could measure anything

    @property
    def broken(self) -> bool:
        return self.sure >= BROKEN


@dataclass(frozen=True)
class Check:
    name: str
    about: str  # what holds in health
    cheap: bool  # worth making before every training
    run: Callable[[Patient], Iterator[Finding]]
    decides: bool = False  # after a finding here, other checks of the model could say nothing of their own
    of_model: bool = True
