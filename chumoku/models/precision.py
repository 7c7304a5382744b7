"""Convert a model to another precision; nn/quantized.py has the formulas.

    float32   4 bytes per weight    int8   1 + 1/16 byte,   one scale per 32 weights
    bf16      2 bytes               int4   1/2 + 1/8 byte,  one scale and one offset per 32 weights

Matrices, which hold nearly all weights, are converted (for bf16, and on request, also the token table). Experts and the
activations between matrices stay float32. On a GPU everything that is not a quantized weight is bf16, for its tensor
cores.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from chumoku.errors import UsageError
from chumoku.models.build import CLASSES
from chumoku.models.model import Model
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.lora import Adapted
from chumoku.nn.modules import replace_module
from chumoku.nn.quantized import (
    GROUP,
    Kind,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedLogits,
    quantize,
    quantized_kinds,
)

Precision = Literal["float32", "bf16", "int8", "int4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def to_precision(model: Model, precision: str, *, tables: bool = False) -> Model:
    """Return a copy of the model at this precision, for inference only; unchanged tensors are shared with the model.

    tables    also quantize token tables to int8 or int4, for small files; a tied output matrix is then the same tensor
    """
    if precision not in PRECISIONS:
        raise UsageError(f"There is no precision '{precision[:60]}'; choose {', '.join(PRECISIONS)}.")
    if any(isinstance(module, Adapted) for module in model.modules()):
        raise UsageError("A model with adapters cannot be quantized. Merge them first: lora.merged_copy(model).")
    if any(isinstance(module, QuantizedLinear | QuantizedEmbedding) for module in model.modules()):
        raise UsageError("This model is already quantized. Convert the model that was loaded instead.")
    if precision == "float32" or (precision == "bf16" and model.device.type == "cuda"):
        return cast(model, torch.float32 if precision == "float32" else torch.bfloat16)
    _check_supported(model, precision)
    copy = cast(model, torch.float32)
    for path, module in list(copy.named_modules()):
        if isinstance(module, nn.Linear):
            replace_module(copy, path, QuantizedLinear(module.weight, module.bias, precision))  # type: ignore[arg-type]
        elif isinstance(module, Logits):
            stack = copy.decoder if hasattr(copy, "decoder") else copy.encoder
            weight = stack.embedding.table if module.weight is None else module.weight  # type: ignore[union-attr]
            replace_module(copy, path, QuantizedLogits(weight, module.bias, precision))  # type: ignore[arg-type]
    if precision == "bf16":
        _convert_tables(copy, "bf16")
    elif tables and copy.config.width % GROUP == 0:
        _convert_tables(copy, precision)  # type: ignore[arg-type]
    return _convert_rest_to_bf16(copy).eval() if copy.device.type == "cuda" else copy.eval()


def cast(model: Model, dtype: torch.dtype) -> Model:
    """Return a copy of the model with all floats in `dtype`; tensors that already have it are shared with the model."""
    return _copy_sharing_tensors(model).to(dtype).eval()


def is_bf16(model: Model) -> bool:
    """Return True if the matrices of a model are bf16, from `cast` or from `to_precision`."""
    return model.dtype == torch.bfloat16 or quantized_kinds(model) == {"bf16"}


def _convert_tables(model: Model, kind: Kind) -> None:
    """Quantize token tables; a table shared by two stacks or with the output matrix stays one tensor."""
    converted: dict[nn.Module, QuantizedEmbedding] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is Embedding and path.endswith("embedding"):
            if module not in converted:
                converted[module] = QuantizedEmbedding(quantize(module.table, kind), factor=module.factor)
            replace_module(model, path, converted[module])
    stack = model.decoder if hasattr(model, "decoder") else model.encoder
    for module in model.modules():
        if isinstance(module, QuantizedLogits) and model.config.tie_output:
            table: QuantizedEmbedding = stack.embedding  # type: ignore[assignment, union-attr]
            for name, tensor in table.stored_weight._asdict().items():
                setattr(module, name, tensor)


def _convert_rest_to_bf16(model: Model) -> Model:
    """Convert everything except quantized weights and their scales to bf16, in place."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.bias = None if module.bias is None else module.bias.to(torch.bfloat16)
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def _copy_sharing_tensors(model: Model) -> Model:
    """Return a new model with the same tensors."""
    with torch.device("meta"):
        copy = CLASSES[model.config.kind](model.config)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    copy.load_state_dict(tensors, assign=True)
    for parameter in copy.parameters():
        parameter.requires_grad_(False)
    return copy


def _check_supported(model: Model, precision: str) -> None:
    config = model.config
    if config.experts and precision != "bf16":
        raise UsageError(f"{precision} is not supported for models with experts; choose float32 or bf16.")
    uneven = [size for size in (config.width, config.hidden) if size % GROUP]
    if precision == "int4" and uneven:
        raise UsageError(f"int4 needs widths that are multiples of {GROUP}, but one is {uneven[0]}. Choose int8.")
