"""A model as plain float32 on a processor: what exports write, and what certificates compare with.

int8, int4 → w = s q (+ m)      bf16, fp16 → float32      whatever is float32 already is shared, not copied

A quantized model's output matrix may be rounded where its embedding's table is not; then the two are no longer one,
and the plain model is untied.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chumoku.config import write
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.quantized import QuantisedEmbedding, QuantisedLogits, Quantized


def dequantize_model(model: Model) -> Model:
    """The same model of float32 weights; the one given stays as it is."""
    tensors = {name: _float(tensor) for name, tensor in model.state_dict().items()}
    tied = model.config.tie_output
    for path, module in model.named_modules():
        if isinstance(module, QuantisedEmbedding):
            for name in module.stored._fields:
                del tensors[f"{path}.{name}"]
            tensors[f"{path}.table"] = _float(module.stored.dequantized())
        elif isinstance(module, Quantized):
            for name in module.stored._fields:
                del tensors[f"{path}.{name}"]
            weight = _float(module.stored.dequantized())
            if isinstance(module, QuantisedLogits) and tied:
                tied = torch.equal(weight, tensors[f"{_last_stack(model)}.embedding.table"])
            if not (isinstance(module, QuantisedLogits) and tied):
                tensors[f"{path}.weight"] = weight
    made = build(ModelConfig(**{**write(model.config), "tie_output": tied}), device="meta")
    made.load_state_dict(tensors, assign=True)
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


def is_quantized(model: Model) -> bool:
    return any(isinstance(module, Quantized) for module in model.modules())


def _last_stack(model: Model) -> str:
    return "encoder" if model.config.kind == "encoder" else "decoder"


def _float(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().float() if tensor.is_floating_point() else tensor.detach().cpu()
