"""The examination: every check in turn, cheap ones first where one looks no further.

A check that has nothing to look at is skipped with its reason; one that breaks down says so, which is a finding too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from chumoku.doctor import (
    accumulation,
    alignment,
    batch_mates,
    batches,
    cache,
    checkpoint,
    dropout,
    first_loss,
    fused,
    future,
    gradients,
    labels,
    languages,
    leak,
    lines,
    modules,
    numbers,
    optimizer,
    overfit,
    padding,
    precision,
    special_tokens,
    tied,
    tokenizer,
    visibility,
)
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.open_subject import of_material
from chumoku.doctor.subject import Patient
from chumoku.errors import ChumokuError
from chumoku.models.model import Model
from chumoku.training.dataset import TrainingData

FEW = 100_000  # tokens that the cheap half reads
CHECKS: tuple[Check, ...] = (
    checkpoint.CHECK,
    numbers.CHECK,
    modules.CHECK,
    dropout.CHECK,
    future.CHECK,
    visibility.CHECK,
    batch_mates.CHECK,
    padding.CHECK,
    cache.CHECK,
    batches.CHECK,
    labels.CHECK,
    tied.CHECK,
    first_loss.CHECK,
    gradients.CHECK,
    tokenizer.CHECK,
    tokenizer.UNKNOWN_CHECK,
    special_tokens.CHECK,
    fused.CHECK,
    cache.ENGINE,
    accumulation.CHECK,
    optimizer.CHECK,
    overfit.CHECK,
    numbers.DEAD_CHECK,
    precision.CHECK,
    lines.CHECK,
    languages.CHECK,
    alignment.CHECK,
    leak.CHECK,
)


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # check → reason
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        return any(finding.broken for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 1), "broken": self.broken}


def examine(
    patient: Patient,
    *,
    checks: Sequence[Check] = CHECKS,
    told: Callable[[Check, list[Finding], str | None], None] = lambda check, findings, skipped: None,
) -> Report:
    """Make every check; `told` hears of each as it is done: its findings, or why it was skipped."""
    report, began = Report(), time.perf_counter()
    decided: str | None = None
    for check in checks:
        found: list[Finding] = []
        reason = f"the finding of '{decided}' hides what this one would see" if decided and check.of_model else None
        if reason is None:
            found, reason = made(check, patient)
        if reason is not None:
            report.skipped[check.name] = reason
        elif found:
            report.findings += found
            decided = check.name if check.decides else decided
        else:
            report.passed.append(check.name)
        told(check, found, reason)
    report.seconds = time.perf_counter() - began
    return report


def made(check: Check, patient: Patient) -> tuple[list[Finding], str | None]:
    try:
        return list(check.run(patient)), None
    except Skip as reason:
        return [], str(reason)
    except (ChumokuError, RuntimeError, ValueError, IndexError) as error:
        sentence = " ".join(str(error).split())[:300].removesuffix(".")
        todo = "What stops this check would stop training or decoding too; begin with this message."
        return [
            Finding(check.name, f"The check itself came to an end: {sentence}.", check.about, 0.6, todo, False)
        ], None


def quick(data: TrainingData, model: Model) -> list[Finding]:
    """The cheap half, for a training that is about to begin. The model, and all random numbers, stay as they are."""
    patient = replace(of_material(data, most=FEW), model=model)
    return examine(patient, checks=[check for check in CHECKS if check.cheap]).findings
