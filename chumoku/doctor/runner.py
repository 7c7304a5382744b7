"""Runs the checks, cheap ones first. A check that does not apply is skipped; a check that crashes is a finding."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from chumoku.doctor import (
    accumulation,
    alignment,
    batch_mates,
    batches,
    cache,
    chat,
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
    rewards,
    special_tokens,
    tied,
    tokenizer,
    visibility,
)
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.open_subject import subject_from_data
from chumoku.doctor.subject import Subject
from chumoku.errors import ChumokuError
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.training.datasets import TrainingData

SILENCED = (  # how warnings start that say nothing new to the user
    "This model differs from its config",  # reported by the check of modules
    "mkldnn_matmul failed, switching to BLAS gemm",  # bf16 on a processor without it: another kernel computes the same
)
QUICK_TOKENS = 100_000  # corpus tokens that the cheap checks read
QUICK_PARAMETERS = 50_000_000  # of a model on a CPU whose passes the quick checks may run
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
    chat.CHECK,
    rewards.CHECK,
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
    subject: Subject,
    *,
    checks: Sequence[Check] = CHECKS,
    on_check: Callable[[Check, list[Finding], str | None], None] = lambda check, findings, skipped: None,
) -> Report:
    """Run the checks on a subject. `on_check` is called after each with its findings, or the reason it was skipped."""
    report, began = Report(), time.perf_counter()
    blocked_by: str | None = None
    for check in checks:
        found: list[Finding] = []
        reason = (
            f"'{blocked_by}' failed, and this check would only fail with it"
            if blocked_by and check.needs_model
            else None
        )
        if reason is None:
            found, reason = run_check(check, subject)
        if reason is not None:
            report.skipped[check.name] = reason
        elif found:
            report.findings += found
            blocked_by = check.name if check.blocks_others else blocked_by
        else:
            report.passed.append(check.name)
        on_check(check, found, reason)
    report.seconds = time.perf_counter() - began
    return report


def run_check(check: Check, subject: Subject) -> tuple[list[Finding], str | None]:
    try:
        with warnings.catch_warnings():
            for message in SILENCED:
                warnings.filterwarnings("ignore", message)
            return list(check.run(subject)), None
    except Skip as reason:
        return [], str(reason)
    except (ChumokuError, RuntimeError, ValueError, IndexError) as error:
        sentence = f"{' '.join(str(error).split())[:300].removesuffix('.')}."
        todo = "The same error would stop training or decoding; fix it first."
        return [
            Finding(check.name, f"The check stopped with an error: {sentence}", check.description, 0.6, todo, False)
        ], None


def run_quick_checks(data: TrainingData, model: Model) -> list[Finding]:
    """Run the cheap checks before training; of a large model on a CPU, only those of the data.

    The model and all random states stay unchanged.
    """
    subject = replace(
        subject_from_data(data, max_tokens=QUICK_TOKENS), model=model if is_quickly_checked(model) else None
    )
    return examine(subject, checks=[check for check in CHECKS if check.cheap]).findings


def is_quickly_checked(model: Model) -> bool:
    """Whether checking the model itself takes seconds: one pass of a large model takes that long on a CPU."""
    return model.device.type != "cpu" or count(model.config).parameters <= QUICK_PARAMETERS
