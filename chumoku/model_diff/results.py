"""What `chumoku.diff` returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from chumoku.evaluation.paired import PairedInterval
from chumoku.model_diff.changes import Change
from chumoku.model_diff.inside import Inside
from chumoku.model_diff.tasks import Metric
from chumoku.model_diff.transplant import Side, Transplant


@dataclass(frozen=True)
class Measure:
    """One metric of both models."""

    metric: Metric
    values: tuple[float, float]  # of A and of B, over all texts
    interval: PairedInterval  # B − A
    by_text: list[float]  # B − A of each text

    @property
    def better(self) -> Side | None:
        if not self.interval.excludes_zero:
            return None
        return "B" if (self.interval.difference < 0) == self.metric.lower_is_better else "A"


@dataclass(frozen=True)
class BleuDiff:
    """BLEU of both models' translations, compared by sacrebleu's paired bootstrap."""

    a: float
    b: float
    p_value: float
    signature: str


@dataclass(frozen=True)
class ModelDiff:
    """The differences of two models, A and B."""

    names: tuple[str, str]
    models: tuple[str, str]  # kind, size and precision, in words
    measures: list[Measure]  # the first one decides which model is better
    texts: int
    tokens: int
    skipped: int  # texts that could not be scored
    changed: list[Change]
    changed_count: int  # how many tokens, translations or neighbors differ
    bleu: BleuDiff | None = None  # of translators
    inside: Inside | None = None
    transplants: list[Transplant] = field(default_factory=list)
    transplant_texts: int = 0
    other_shape: list[str] = field(default_factory=list)  # settings that differ, if blocks cannot be compared

    @property
    def better(self) -> Side | None:
        """Which model is better; None if they cannot be told apart."""
        return self.measures[0].better

    @property
    def decisive(self) -> Transplant | None:
        """The transplant with the largest effect that is surely not chance."""
        surely = [one for one in self.transplants if one.decisive]
        return max(surely, key=lambda one: abs(one.interval.difference), default=None)

    def as_dict(self) -> dict[str, Any]:
        """All parts, for JSON."""
        return {"better": self.better, **asdict(self)}
