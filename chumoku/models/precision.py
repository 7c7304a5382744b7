"""A model at another precision: the same formulas over smaller numbers.

    float32   4 bytes a weight      int8   1 byte,      a scale an output           (nn/quantised.py)
    bf16      2 bytes               int4   ½ + ⅛ byte,  a scale and a shift for 32

Whole numbers are for the matrices, where nearly all weights are; norms, biases and the embedding's table stay floats,
on a GPU of 16 bits.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from chumoku.errors import UsageError
from chumoku.models.build import CLASSES
from chumoku.models.model import Model
from chumoku.nn.adapted import Adapted
from chumoku.nn.embeddings import Logits
from chumoku.nn.quantised import GROUP, Quantised, QuantisedEmbedding, QuantisedLogits

Precision = Literal["float32", "bf16", "int8", "int4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def at_precision(model: Model, precision: str) -> Model:
    """The model at this precision, for answering only; the one given stays as it is, and what is equal is shared."""
    if precision not in PRECISIONS:
        raise UsageError(f"There is no precision '{precision[:60]}'; there are {', '.join(PRECISIONS)}.")
    if any(isinstance(module, Adapted) for module in model.modules()):
        raise UsageError("This model has adapters, which stay in 32 bits. Merge them first: lora.merged(model).")
    if any(isinstance(module, Quantised | QuantisedEmbedding) for module in model.modules()):
        raise UsageError("This model's weights are already whole numbers. Start from the one that was loaded.")
    copy = _shared(model)
    if precision in ("float32", "bf16"):
        return copy.to(torch.float32 if precision == "float32" else torch.bfloat16).eval()
    _check(model, precision)
    for path, module in list(copy.named_modules()):
        parent, name = copy.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        if isinstance(module, nn.Linear):
            setattr(parent, name, Quantised(module.weight, module.bias, precision))  # type: ignore[arg-type]
        elif isinstance(module, Logits):
            stack = copy.decoder if hasattr(copy, "decoder") else copy.encoder
            weight = stack.embedding.table if module.weight is None else module.weight  # type: ignore[union-attr]
            setattr(parent, name, QuantisedLogits(weight, module.bias, precision))  # type: ignore[arg-type]
    return _sixteen_bits(copy).eval() if copy.device.type == "cuda" else copy.eval()


def _sixteen_bits(model: Model) -> Model:
    """What is neither a scale nor a whole number, in bf16: memory and matrix units of a GPU are made for it."""
    for module in model.modules():
        if isinstance(module, Quantised):
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
    if config.experts:
        raise UsageError(f"{precision} is not there for models with experts; choose float32 or bf16.")
    odd = [size for size in (config.width, config.hidden) if size % GROUP]
    if precision == "int4" and odd:
        raise UsageError(
            f"int4 stores weights in groups of {GROUP}, which do not divide a width of {odd[0]} here. Choose int8."
        )
