"""Merge an adapter into the model's matrices, and undo it.

merge(model)          W ← W + s · B A (for DoRA with rows scaled to m); the model then runs without adapters
unmerge(model)        restores the original matrices and adapters exactly; nothing is subtracted
merged_copy(model)    a new model without adapters, for inference and export; unchanged tensors are shared
"""

from __future__ import annotations

import torch
from torch import nn

from chumoku.errors import UsageError
from chumoku.lora.adapters import active_adapter, adapted_modules, get_state, restore_weight
from chumoku.models.build import CLASSES
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted
from chumoku.nn.modules import replace_module
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits

QUANTIZED = (QuantizedLinear, QuantizedEmbedding)


@torch.no_grad()
def merge(model: Model) -> None:
    """Merge the active adapter into the model's matrices and remove all adapters, until `unmerge`."""
    state = get_state(model)
    if state is None or active_adapter(model) is None:
        raise UsageError(
            "There is nothing to merge: no adapter of this model is active. Call attach or set_adapter first."
        )
    if state.merged:
        raise UsageError("The adapters of this model are already merged.")
    modules = adapted_modules(model)
    new = {path: _merged_weight(path, module) for path, module in modules.items()}
    for path, module in modules.items():
        weight, before = new[path], None
        if weight is not None and isinstance(module.base, nn.Linear):
            before = module.base._parameters["weight"]
            module.base.weight = nn.Parameter(weight, requires_grad=False)
        state.merged[path] = module, before
        replace_module(model, path, module.base)


def unmerge(model: Model) -> None:
    """Restore the matrices and adapters that `merge` replaced."""
    state = get_state(model)
    if state is None or not state.merged:
        raise UsageError("Nothing is merged into this model.")
    for path, (module, weight) in state.merged.items():
        restore_weight(module, weight)
        module.adapters.to(model.device)
        replace_module(model, path, module.train(module.base.training))
    state.merged.clear()


@torch.no_grad()
def merged_copy(model: Model) -> Model:
    """A new model without adapters that computes the same, in eval mode; bf16 becomes float32."""
    quantized = {path: module for path, module in model.named_modules() if isinstance(module, QUANTIZED)}
    if any(module.kind != "bf16" for module in quantized.values()):
        raise UsageError(_quantized_message("this model"))
    lora_state = get_state(model)
    modules = {} if lora_state is not None and lora_state.merged else adapted_modules(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        path, _, rest = name.partition(".adapters.")
        if rest and path in modules:
            continue
        path, _, own = name.rpartition(".base.")
        tensors[f"{path}.{own}" if path in modules else name] = tensor.detach()
    for path, part in quantized.items():
        own = path.removesuffix(".base")
        floats = tensors.pop(f"{own}.weight").float()
        if not (isinstance(part, QuantizedLogits) and model.config.tie_output):
            tensors[f"{own}.table" if isinstance(part, QuantizedEmbedding) else f"{own}.weight"] = floats
    for path, module in modules.items():
        weight = None if module.active_adapter is None else module.merged_weight(module.active_adapter).detach()
        if weight is not None:
            tensors[f"{path}.weight"] = weight
    with torch.device("meta"):
        result = CLASSES[model.config.kind](model.config)
    result.load_state_dict(tensors, assign=True)
    return result.requires_grad_(False).eval()


def _merged_weight(path: str, module: Adapted) -> torch.Tensor | None:
    """The matrix with the active adapter merged; None if the adapter does not change this matrix."""
    if module.active_adapter is None:
        return None
    if isinstance(module.base, QuantizedLinear):
        raise UsageError(_quantized_message(path))
    return module.merged_weight(module.active_adapter).detach()


def _quantized_message(what: str) -> str:
    return (
        f"The weights of {what} are quantized, so an adapter cannot be merged into them. Save the adapter, load it on "
        "the float32 model and merge it there; the result can be quantized again."
    )
