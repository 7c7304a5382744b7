"""Checks and findings.

    Check     name · description · cheap or not · run(subject) → findings
    Finding   what is wrong · where · how sure, from 0 to 1 · what to do

A finding with sure ≥ 0.5 means that something is broken; below 0.5 it is a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chumoku.doctor.subject import Subject

BROKEN = 0.5


class Skip(Exception):
    """Raised by a check that does not apply to this subject; its text is the reason."""


@dataclass(frozen=True)
class Finding:
    check: str
    what: str
    where: str
    sure: float
    todo: str
    measured: bool = True  # False: the check stopped with an error

    @property
    def broken(self) -> bool:
        return self.sure >= BROKEN


@dataclass(frozen=True)
class Check:
    name: str
    description: str  # what is true when nothing is wrong
    cheap: bool  # fast enough to run before every training
    run: Callable[[Subject], Iterator[Finding]]
    blocks_others: bool = False  # after a finding here, other model checks are skipped: they would fail for this reason
    needs_model: bool = True
