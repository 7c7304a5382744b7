"""Dequantize a model to float32 on the CPU, for exporting and for comparing in certificates.

int8, int4, GGUF blocks → w = s q (+ m)      bf16, fp16 → float32      float32 tensors are shared, not copied

In a tied model, quantization may round the output matrix but not the embedding table. Then the two differ, and the
dequantized model is not tied.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chumoku.config import settings_to_dict
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits
from chumoku.weights.assign import output_stack


def dequantize_model(model: Model) -> Model:
    """A float32 model with the same weights, on the CPU; the given model is not changed."""
    tensors = {name: _to_float(tensor) for name, tensor in model.state_dict().items()}
    tied = model.config.tie_output
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantizedEmbedding):
            for name in module.stored_weight._fields:
                del tensors[f"{path}.{name}"]
            tensors[f"{path}.table"] = _to_float(module.stored_weight.dequantize())
        elif isinstance(module, QuantizedLinear):
            for name in module.stored_weight._fields:
                del tensors[f"{path}.{name}"]
            weight = _to_float(module.float_weight())
            if isinstance(module, QuantizedLogits) and tied:
                tied = torch.equal(weight, tensors[f"{output_stack(model)}.embedding.table"])
            if not (isinstance(module, QuantizedLogits) and tied):
                tensors[f"{path}.weight"] = weight
    result = build(ModelConfig(**{**settings_to_dict(model.config), "tie_output": tied}), device="meta")
    result.load_state_dict(tensors, assign=True)
    for parameter in result.parameters():
        parameter.requires_grad_(False)
    return result


def _to_float(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().float() if tensor.is_floating_point() else tensor.detach().cpu()
