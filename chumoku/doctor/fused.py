"""Fast twins equal their formulas, on the tensors of a real pass:

attention   the fused kernel's heads = softmax(Q Kᵀ / √d_k) V
norms       the fused kernel's output = γ (x − μ) / √(σ² + ε) + β
experts     sorted and grouped = Σᵢ gᵢ FFNᵢ
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.subject import Patient
from chumoku.doctor.tools import answers, borrowed, distance, masked_way, sample, tolerance
from chumoku.models.model import Model
from chumoku.nn.attention import Attention, repeat_kv
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.norms import LayerNorm, RMSNorm, layer_norm, rms_norm
from chumoku.nn.plain import plain as plain_switch
from chumoku.nn.tap import record


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    batch = sample(patient)
    with borrowed(model), torch.no_grad(), plain_switch(False):
        for ask in (answers, masked_way):
            far: dict[str, float] = {}
            with ExitStack() as stack:
                for handle in hooks(model, far):
                    stack.callback(handle.remove)
                with record(model, "**.{queries,values,weights,heads}") as tape:
                    ask(model, batch)
            for name, module in model.named_modules():
                if isinstance(module, Attention):
                    query, value, weights, heads = (
                        tape[f"{name}.{tap}"] for tap in ("queries", "values", "weights", "heads")
                    )
                    far[name] = distance(weights @ repeat_kv(value, query), heads)
            guilty = [name for name, moved in far.items() if moved > tolerance(model)]
            if guilty:
                yield Finding(
                    "fused",
                    f"The fast way and the formula differ by {far[guilty[0]]:.1e}.",
                    guilty[0] + (f" and {len(guilty) - 1} more" if len(guilty) > 1 else ""),
                    0.97,
                    "Compare with the plain formula beside it (attend, layer_norm, rms_norm, MixtureOfExperts.plain).",
                )
                return


def hooks(model: Model, far: dict[str, float]) -> Iterator[Any]:
    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            far[name] = max(far.get(name, 0.0), distance(plain(module, inputs[0]), output))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, LayerNorm | RMSNorm | MixtureOfExperts):
            yield module.register_forward_hook(look(name))


def plain(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, LayerNorm):
        return layer_norm(x, module.gamma, module.beta, module.epsilon)
    if isinstance(module, RMSNorm):
        return rms_norm(x, module.gamma, module.epsilon)
    return module.plain(x)  # type: ignore[operator, no-any-return]


CHECK = Check("fused", "fast kernels equal their formulas", cheap=False, run=run)
