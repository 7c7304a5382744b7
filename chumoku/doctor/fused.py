"""Fast kernels equal their formulas, on the tensors of a real pass:

attention   fused kernel = softmax(Q Kᵀ / √d_k) V
norms       fused kernel = γ (x − μ) / √(σ² + ε) + β
experts     sorted and grouped = Σᵢ gᵢ FFNᵢ
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Subject
from chumoku.doctor.tools import distance, restore_after, run_model, run_model_masked, sample_batch, tolerance
from chumoku.models.model import Model
from chumoku.nn.attention import Attention, repeat_kv
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from chumoku.nn.plain import plain as plain_switch
from chumoku.nn.tap import record


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    batch = sample_batch(subject)
    with restore_after(model), torch.no_grad(), plain_switch(False):
        for ask in (run_model, run_model_masked):
            distances: dict[str, float] = {}
            with ExitStack() as stack:
                for handle in hooks(model, distances):
                    stack.callback(handle.remove)
                with record(model, "**.{queries,values,weights,heads}") as tape:
                    ask(model, batch)
            for name, module in model.named_modules():
                if isinstance(module, Attention):
                    query, value, weights, heads = (
                        tape[f"{name}.{tap}"] for tap in ("queries", "values", "weights", "heads")
                    )
                    distances[name] = distance(weights @ repeat_kv(value, query), heads)
            failing = [name for name, value in distances.items() if value > tolerance(model)]
            if failing:
                yield Finding(
                    "fused",
                    f"The fast kernel and the formula differ by {distances[failing[0]]:.1e}.",
                    f"{failing[0]} and {len(failing) - 1} more" if len(failing) > 1 else failing[0],
                    0.97,
                    "Compare with the plain formula (attend, layer_norm, rms_norm, MixtureOfExperts.plain).",
                )
                return


def hooks(model: Model, distances: dict[str, float]) -> Iterator[Any]:
    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            distances[name] = max(distances.get(name, 0.0), distance(plain(module, inputs[0]), output))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, LayerNorm | RMSNorm | MixtureOfExperts):
            yield module.register_forward_hook(look(name))


def plain(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, LayerNorm):
        return layer_norm(x, module.gamma, module.beta, module.epsilon)
    if isinstance(module, RMSNorm):
        return rms_norm(x, module.factor(), module.epsilon)
    return module.plain(x)  # type: ignore[operator, no-any-return]


CHECK = Check("fused", "fast kernels equal their formulas", cheap=False, run=run)
