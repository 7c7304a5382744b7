"""Assign tensors to a model that was built on the meta device. Quantized ones replace the module of their matrix.

Floats become float32, unless all tensors are bf16.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chumoku.models.model import Model
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.modules import replace_module
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits, StoredWeight


def assign_tensors(model: Model, tensors: Mapping[str, Tensor | StoredWeight], device: torch.device | str) -> None:
    """Assign tensors to the model's parameters; a module whose tensor is quantized is replaced by a quantized one."""
    floats = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    dtypes = {tensor.dtype for tensor in floats.values()}
    dtype = torch.bfloat16 if dtypes == {torch.bfloat16} and len(floats) == len(tensors) else torch.float32
    floats = {name: tensor.to(device, dtype) for name, tensor in floats.items()}
    for name, stored in tensors.items():
        if not isinstance(stored, Tensor):
            path = name.rpartition(".")[0]
            install_quantized(model, path, type(stored)(*(tensor.to(device) for tensor in stored)), floats)
    model.load_state_dict(floats, strict=False, assign=True)  # strict would need shared tables twice
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def install_quantized(model: Model, path: str, stored: StoredWeight, floats: dict[str, Tensor]) -> None:
    """Replace the module at `path` by a quantized one; its bias moves from `floats` into that module."""
    module = model.get_submodule(path)
    if isinstance(module, Embedding):
        table = QuantizedEmbedding(stored, factor=module.factor)
        shared = [other for other, found in model.named_modules(remove_duplicate=False) if found is module]
        for other in shared:
            replace_module(model, other, table)
        if model.config.tie_output and f"{output_stack(model)}.embedding" in shared:
            for other, found in list(model.named_modules()):
                if isinstance(found, Logits):
                    replace_module(model, other, QuantizedLogits.of(stored, floats.pop(f"{other}.bias", None)))
        return
    kind = QuantizedLinear if isinstance(module, nn.Linear) else QuantizedLogits
    layer = kind.of(stored, floats.pop(f"{path}.bias", None))
    layer.in_features = model.config.width if isinstance(module, Logits) else int(module.in_features)  # type: ignore[arg-type]
    replace_module(model, path, layer)


def output_stack(model: Model) -> str:
    """The stack before the output; if the output is tied, the output matrix is its token table."""
    return "encoder" if model.config.kind == "encoder" else "decoder"
