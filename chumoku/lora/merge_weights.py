"""Merging: the adapter's change written into the matrices, and taken out again.

merge(model)       W ← W + s · B A (for DoRA its rows scaled to m); the model is a plain one, as fast as any
unmerge(model)     the matrices and adapters that were put aside come back, bit for bit: nothing is subtracted
merged(model)      another, plain model for answering and export, which shares everything that is equal
"""

from __future__ import annotations

import torch
from torch import nn

from chumoku.errors import UsageError
from chumoku.lora.adapters import (
    STATE_ATTRIBUTE,
    LoraState,
    active_adapter,
    adapted_modules,
    replace_module,
    restore_weight,
)
from chumoku.models.build import CLASSES
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted
from chumoku.nn.quantized import QuantisedEmbedding, QuantisedLogits, Quantized

QUANTIZED = (Quantized, QuantisedEmbedding)


@torch.no_grad()
def merge(model: Model) -> None:
    """Write the active adapter into the model's matrices. Until `unmerge`, the adapters are out of the way."""
    kept: LoraState | None = vars(model).get(STATE_ATTRIBUTE)
    if kept is None or active_adapter(model) is None:
        raise UsageError(
            "There is nothing to merge: no adapter of this model is active. Attach or switch to one first."
        )
    if kept.aside:
        raise UsageError("The adapters of this model are merged already.")
    modules = adapted_modules(model)
    new = {path: _merged_weight(path, module) for path, module in modules.items()}
    for path, module in modules.items():
        weight, before = new[path], None
        if weight is not None and isinstance(module.base, nn.Linear):
            before = module.base._parameters["weight"]
            module.base.weight = nn.Parameter(weight, requires_grad=False)
        kept.aside[path] = module, before
        replace_module(model, path, module.base)


def unmerge(model: Model) -> None:
    """Bring back what `merge` put aside."""
    kept: LoraState | None = vars(model).get(STATE_ATTRIBUTE)
    if kept is None or not kept.aside:
        raise UsageError("Nothing is merged into this model.")
    for path, (module, weight) in kept.aside.items():
        restore_weight(module, weight)
        module.adapters.to(model.device)
        replace_module(model, path, module.train(module.base.training))
    kept.aside.clear()


@torch.no_grad()
def merged_copy(model: Model) -> Model:
    """A plain model that answers as this one does, in eval mode; this one stays as it is. bf16 becomes float32."""
    quantized = {path: module for path, module in model.named_modules() if isinstance(module, QUANTIZED)}
    if any(module.kind != "bf16" for module in quantized.values()):
        raise UsageError(_quantized_message("this model"))
    modules = {} if (kept := vars(model).get(STATE_ATTRIBUTE)) is not None and kept.aside else adapted_modules(model)
    state = {}
    for name, tensor in model.state_dict().items():
        path, _, rest = name.partition(".adapters.")
        if rest and path in modules:
            continue
        path, _, own = name.rpartition(".base.")
        state[f"{path}.{own}" if path in modules else name] = tensor.detach()
    for path, part in quantized.items():
        own = path.removesuffix(".base")
        floats = state.pop(f"{own}.weight").float()
        if not (isinstance(part, QuantisedLogits) and model.config.tie_output):
            state[f"{own}.table" if isinstance(part, QuantisedEmbedding) else f"{own}.weight"] = floats
    for path, module in modules.items():
        weight = None if module.heard is None else module.weight_of(module.heard).detach()
        if weight is not None:
            state[f"{path}.weight"] = weight
    with torch.device("meta"):
        plain = CLASSES[model.config.kind](model.config)
    plain.load_state_dict(state, assign=True)
    return plain.requires_grad_(False).eval()


def _merged_weight(path: str, module: Adapted) -> torch.Tensor | None:
    """The matrix with the active adapter in it; None where it has none."""
    if module.heard is None:
        return None
    if isinstance(module.base, Quantized):
        raise UsageError(_quantized_message(path))
    return module.weight_of(module.heard).detach()


def _quantized_message(what: str) -> str:
    return (
        f"The weights of {what} are quantized, and an adapter's small changes cannot be written into them. "
        "Save the adapter, load it on the model in float32 and merge there; the result can be stored in int8 again."
    )
