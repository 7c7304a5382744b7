"""Where the difference of two models lives: one part of a model is replaced by the same part of the other.

    A's block i in B        the value of B with it − the value of B, on the same texts, with a paired interval
    B's block i in A        the other direction
    embeddings and output   everything outside the blocks is one part, because tied models share it

Nothing is copied and nothing is rounded: the new model has the modules of both, quantized ones too, and is run by the
same engine as any model. With all parts of A, B is A bit for bit. A part is called decisive if the paired t-test of its
difference, corrected by Holm for all transplants, has p < 0.05.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from chumoku.evaluation.paired import CONFIDENCE, PairedInterval, holm
from chumoku.model_diff.tasks import Scores, Task
from chumoku.models.model import Model
from chumoku.nn.modules import copy_containers, replace_module
from chumoku.text.progress import Progress, silent

REST = "embeddings and output"
Side = Literal["A", "B"]


@dataclass(frozen=True)
class Transplant:
    part: str  # decoder.blocks.3, or REST
    into: Side  # the model that gets this part of the other
    interval: PairedInterval  # value with the other's part − value without
    p_value: float  # corrected by Holm
    decisive: bool


def block_paths(model: Model) -> list[str]:
    """The addresses of all blocks, in the order of computation."""
    stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
    return [f"{name}.blocks.{number}" for name in stacks for number in range(len(getattr(model, name).blocks))]


def assemble(host: Model, donor: Model, parts: Collection[str]) -> Model:
    """The host with these parts of the donor; both share their modules and tensors with the result."""
    base, other = (donor, host) if REST in parts else (host, donor)
    assembled = copy_containers(base)
    for path in block_paths(host):
        if (path in parts) != (REST in parts):
            replace_module(assembled, path, other.get_submodule(path))
    return assembled


def transplant_parts(
    a: Model, b: Model, task: Task, numbers: Sequence[int], progress: Progress = silent
) -> list[Transplant]:
    """The effect of every part, in both directions, on the texts with these numbers."""
    directions: tuple[tuple[Side, Model, Model], ...] = (("B", b, a), ("A", a, b))
    hosts = {name: task.score(host, numbers) for name, host, _ in directions}
    parts = [*block_paths(a), REST]
    found: list[tuple[str, Side, Scores]] = []
    for part in parts:
        for name, host, donor in directions:
            progress("transplanting", len(found), 2 * len(parts), unit="parts")
            found.append((part, name, task.score(assemble(host, donor, {part}), numbers)))
    tests = holm([scores.p_value(hosts[host]) for _, host, scores in found], 1 - CONFIDENCE)
    return [
        Transplant(part, host, scores.interval(hosts[host]), test.adjusted, test.rejected)
        for (part, host, scores), test in zip(found, tests, strict=True)
    ]
