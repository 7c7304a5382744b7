"""Build a model from another library's tensors: first on the meta device, then tensor by tensor.

Quantized matrices that we can compute with (GGUF's Q4_0, Q4_1 and Q8_0) may stay quantized. Floats become float32,
unless all of them are bf16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.build import build, check_memory
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits, StoredWeight
from chumoku.weights.bundle import tensors_of
from chumoku.weights.families.table import MaybeQuantized, Row, Source, check_tensors, import_tensors, select_rows

MAX_ROWS_PER_TENSOR = 100  # a table also has rows for optional biases and norms, but never this many


def build_from_source(
    config: ModelConfig,
    rows: Sequence[Row],
    source: Source,
    *,
    ignored: Mapping[str, str],
    device: torch.device | str = "cpu",
    dequantize: bool = True,
) -> Model:
    """Build the model that `config` describes, with the source's weights; `rows` maps our tensor names to theirs.

    ignored     patterns of the source's tensor names that may be skipped, with the reason
    dequantize  convert quantized matrices to floats
    """
    if len(rows) > MAX_ROWS_PER_TENSOR * len(source.shapes) + MAX_ROWS_PER_TENSOR:
        raise UsageError(
            f"{source.path} has only {len(source.shapes):,} tensors; its config needs many more. Is the file complete?"
        )
    model = build(config, device="meta")
    like = tensors_of(model)
    rows = select_rows(rows, like)
    check_tensors(rows, like, source, ignored)
    check_memory(config, bytes_each=2 if dequantize else 1, device=torch.device(device))
    assign_tensors(model, import_tensors(rows, like, source, dequantize=dequantize), device)
    return model.eval()


def assign_tensors(model: Model, tensors: Mapping[str, MaybeQuantized], device: torch.device | str) -> None:
    """Assign tensors to the model's parameters; a module whose tensor is quantized is replaced by a quantized one."""
    floats = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    dtypes = {tensor.dtype for tensor in floats.values()}
    dtype = torch.bfloat16 if dtypes == {torch.bfloat16} and len(floats) == len(tensors) else torch.float32
    floats = {name: tensor.to(device, dtype) for name, tensor in floats.items()}
    modules = dict(model.named_modules())
    for name, stored in tensors.items():
        if not isinstance(stored, Tensor):
            path = name.rpartition(".")[0]
            install_quantized(modules, path, type(stored)(*(tensor.to(device) for tensor in stored)), floats)
    model.load_state_dict(floats, strict=False, assign=True)  # strict would need shared tables twice
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def install_quantized(
    modules: Mapping[str, nn.Module], path: str, stored: StoredWeight, floats: dict[str, Tensor]
) -> None:
    """Replace the module at `path` by a quantized one; its bias moves from `floats` into that module."""
    parent, _, name = path.rpartition(".")
    module, model = modules[path], modules[""]
    if isinstance(module, Embedding):
        setattr(modules[parent], name, QuantizedEmbedding(stored, factor=module.factor))
        if isinstance(model, Model) and isinstance(model.head, Logits) and model.config.tie_output:
            model.head = QuantizedLogits.of(stored, floats.pop("head.bias", None))
    else:
        kind = QuantizedLinear if isinstance(module, nn.Linear) else QuantizedLogits
        setattr(modules[parent], name, kind.of(stored, floats.pop(f"{path}.bias", None)))
