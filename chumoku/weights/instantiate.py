"""A model out of another's tensors: shapes first, without memory; then each tensor takes its place.

Whole numbers that our own products can use (GGUF's Q4_0 and Q4_1) stay whole numbers; a file of mixed floats becomes
float32, one of bf16 stays bf16.
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
from chumoku.nn.quantized import Quantized, QuantizedEmbedding, QuantizedLogits, StoredWeight
from chumoku.weights.bundle import tensors_of
from chumoku.weights.families.table import Numbers, Row, Source, check, present, take

FEWER = 100  # a table has rows for biases and norms that a model may do without, but not so many


def made(
    config: ModelConfig,
    rows: Sequence[Row],
    source: Source,
    *,
    dropped: Mapping[str, str],
    device: torch.device | str = "cpu",
    whole: bool = True,
) -> Model:
    """The model that `config` describes with the source's numbers; names and shapes are checked before any is read."""
    if len(rows) > FEWER * len(source.shapes) + FEWER:
        raise UsageError(
            f"{source.path} has {len(source.shapes):,} tensors, and its config asks for many more. Is it whole?"
        )
    model = build(config, device="meta")
    like = tensors_of(model)
    rows = present(rows, like)
    check(rows, like, source, dropped)
    check_memory(config, bytes_each=2 if whole else 1, device=torch.device(device))
    fill(model, take(rows, like, source, whole=whole), device)
    return model.eval()


def fill(model: Model, tensors: Mapping[str, Numbers], device: torch.device | str) -> None:
    """Put tensors in their places; where one is of whole numbers, its module becomes a quantized one."""
    floats = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    common = {tensor.dtype for tensor in floats.values()}
    dtype = torch.bfloat16 if common == {torch.bfloat16} and len(floats) == len(tensors) else torch.float32
    floats = {name: tensor.to(device, dtype) for name, tensor in floats.items()}
    modules = dict(model.named_modules())
    for name, stored in tensors.items():
        if not isinstance(stored, Tensor):
            path = name.rpartition(".")[0]
            install(modules, path, type(stored)(*(tensor.to(device) for tensor in stored)), floats)
    model.load_state_dict(floats, strict=False, assign=True)  # names are checked; strict wants a shared table twice
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def install(modules: Mapping[str, nn.Module], path: str, stored: StoredWeight, floats: dict[str, Tensor]) -> None:
    """A quantized module in the place of the one at `path`; its bias, if any, is no float of the model any more."""
    parent, _, last = path.rpartition(".")
    module, model = modules[path], modules[""]
    if isinstance(module, Embedding):
        setattr(modules[parent], last, QuantizedEmbedding(stored, factor=module.factor))
        if isinstance(model, Model) and isinstance(model.head, Logits) and model.config.tie_output:
            model.head = QuantizedLogits.of(stored, floats.pop("head.bias", None))
    else:
        kind = Quantized if isinstance(module, nn.Linear) else QuantizedLogits
        setattr(modules[parent], last, kind.of(stored, floats.pop(f"{path}.bias", None)))
