"""A model at another precision: the same formulas over smaller numbers (nn/quantized.py).

    float32   4 bytes a weight      int8   1 byte,      a scale an output
    bf16      2 bytes               int4   ½ + ⅛ byte,  a scale and a shift for 32

Matrices, where nearly all weights are, become smaller (with bf16 the token table too); experts and what flows between
matrices stay float32. On a GPU everything that is not a quantized weight is bf16, which its matrix units are made for.
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
from chumoku.nn.quantized import GROUP, Bf16, QuantisedEmbedding, QuantisedLogits, Quantized

Precision = Literal["float32", "bf16", "int8", "int4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def at_precision(model: Model, precision: str) -> Model:
    """The model at this precision, for answering only; the one given stays as it is, and what is equal is shared."""
    if precision not in PRECISIONS:
        raise UsageError(f"There is no precision '{precision[:60]}'; there are {', '.join(PRECISIONS)}.")
    if any(isinstance(module, Adapted) for module in model.modules()):
        raise UsageError("This model has adapters, which stay in 32 bits. Merge them first: lora.merged_copy(model).")
    if any(isinstance(module, Quantized | QuantisedEmbedding) for module in model.modules()):
        raise UsageError("This model's weights are already quantized. Start from the one that was loaded.")
    if precision == "float32" or (precision == "bf16" and model.device.type == "cuda"):
        return cast(model, torch.float32 if precision == "float32" else torch.bfloat16)
    _check(model, precision)
    copy = cast(model, torch.float32)
    for path, module in list(copy.named_modules()):
        if isinstance(module, nn.Linear):
            _replace(copy, path, Quantized(module.weight, module.bias, precision))  # type: ignore[arg-type]
        elif isinstance(module, Logits):
            stack = copy.decoder if hasattr(copy, "decoder") else copy.encoder
            weight = stack.embedding.table if module.weight is None else module.weight  # type: ignore[union-attr]
            _replace(copy, path, QuantisedLogits(weight, module.bias, precision))  # type: ignore[arg-type]
    if precision == "bf16":
        _bf16_tables(copy)
    return _sixteen_bits(copy).eval() if copy.device.type == "cuda" else copy.eval()


def cast(model: Model, dtype: torch.dtype) -> Model:
    """Another model all of whose floats have this type; the one given stays as it is, and what is equal is shared."""
    return _shared(model).to(dtype).eval()


def stored_as_bf16(model: Model) -> bool:
    """Whether its matrices are bf16, as a cast model's or as `at_precision` stores them."""
    kinds = {module.kind for module in model.modules() if isinstance(module, Quantized)}
    return model.dtype == torch.bfloat16 or kinds == {"bf16"}


def _replace(model: Model, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _bf16_tables(model: Model) -> None:
    """Token tables in bf16; one that is shared, by two stacks or with the output matrix, stays one tensor."""
    known: dict[nn.Module, QuantisedEmbedding] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is Embedding and path.endswith("embedding"):
            if module not in known:
                known[module] = QuantisedEmbedding(Bf16(module.table.detach().bfloat16()), factor=module.factor)
            _replace(model, path, known[module])
    stack = model.decoder if hasattr(model, "decoder") else model.encoder
    for module in model.modules():
        if isinstance(module, QuantisedLogits) and model.config.tie_output:
            module.weight = stack.embedding.stored[0]  # type: ignore[union-attr, index]


def _sixteen_bits(model: Model) -> Model:
    """What is neither a scale nor a whole number, in bf16: memory and matrix units of a GPU are made for it."""
    for module in model.modules():
        if isinstance(module, Quantized):
            module.bias = None if module.bias is None else module.bias.to(torch.bfloat16)
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def _shared(model: Model) -> Model:
    """Another model of the same tensors."""
    with torch.device("meta"):
        copy = CLASSES[model.config.kind](model.config)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    copy.load_state_dict(tensors, assign=True)
    for parameter in copy.parameters():
        parameter.requires_grad_(False)
    return copy


def _check(model: Model, precision: str) -> None:
    config = model.config
    if config.experts and precision != "bf16":
        raise UsageError(f"{precision} does not exist for models with experts; choose float32 or bf16.")
    odd = [size for size in (config.width, config.hidden) if size % GROUP]
    if precision == "int4" and odd:
        raise UsageError(
            f"int4 stores weights in groups of {GROUP}, which do not divide a width of {odd[0]} here. Choose int8."
        )
