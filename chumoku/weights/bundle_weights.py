"""The tensors of a bundle: floats of one type, or quantized matrices with floats for the rest.

PATH.weight  or  PATH.table            float [N, K]
PATH.q, PATH.scale                     int8  [N, K/32, 32], float16 [N, K/32]           nn.quantized.Int8
PATH.packed, PATH.scale, PATH.low      uint8 [N, K/32, 16], float16 [N, K/32] twice     nn.quantized.Int4
PATH.blocks                            uint8 [N, K/b, bytes]                            nn.gguf_blocks.Blocks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.gguf_blocks import TYPES_BY_BYTES, Blocks
from chumoku.nn.quantized import GROUP, Int4, Int8, StoredWeight
from chumoku.weights.assign import output_stack
from chumoku.weights.formats.safetensors_source import FLOATS, MAX_TENSORS, read_headers


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; a shared tensor appears once."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    first = {id(tensor): name for name, tensor in reversed(named.items())}
    return {name: tensor for name, tensor in named.items() if first[id(tensor)] == name}


class Matrix(NamedTuple):
    """A matrix that may be quantized."""

    name: str  # of the float tensor
    shape: tuple[int, int]
    module: nn.Module

    def find(self, found: Mapping[str, tuple[tuple[int, ...], str]]) -> Quantized | None:
        """The kind in which a file has this matrix, and its tensors; None for floats."""
        path, (outputs, inputs) = self.name.rpartition(".")[0], self.shape
        groups, full = -(-inputs // GROUP), inputs % GROUP == 0
        scales = ((outputs, groups), "F16")
        # Only int8 matrices (no tables) may have a last group that is not full.
        if f"{path}.q" in found and (full or not isinstance(self.module, Embedding)):
            return Quantized(Int8, {f"{path}.q": ((outputs, groups, GROUP), "I8"), f"{path}.scale": scales})
        if f"{path}.packed" in found and full:
            packed = ((outputs, groups, GROUP // 2), "U8")
            return Quantized(Int4, {f"{path}.packed": packed, f"{path}.scale": scales, f"{path}.low": scales})
        blocks, _ = found.get(f"{path}.blocks", ((), ""))
        stored = TYPES_BY_BYTES.get(blocks[-1]) if blocks else None
        if stored is not None and inputs % stored.block_values == 0:
            shape = (outputs, inputs // stored.block_values, stored.block_bytes)
            return Quantized(Blocks, {f"{path}.blocks": (shape, "U8")})
        return None


class Quantized(NamedTuple):
    """The kind of a quantized matrix, and its tensors in a file, each with shape and type."""

    kind: type[Int8 | Int4 | Blocks]
    tensors: dict[str, tuple[tuple[int, ...], str]]


def matrices_of(model: Model) -> Iterator[Matrix]:
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield Matrix(f"{path}.weight", (module.out_features, module.in_features), module)
        elif isinstance(module, Logits):
            yield Matrix(f"{path}.weight", (model.config.vocabulary, model.config.width), module)
        elif type(module) is Embedding:
            yield Matrix(f"{path}.table", (module.table.shape[0], module.table.shape[1]), module)


def read_weights(path: Path, model: Model, device: torch.device | str = "cpu") -> dict[str, Tensor | StoredWeight]:
    """Read the weights of a model; names and shapes must be exactly its own, and all floats have the same type."""
    like = {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items()}
    found = read_headers(path, max_tensors=max(MAX_TENSORS, 3 * len(like)))
    quantized: dict[str, Quantized] = {}
    expected: dict[str, tuple[tuple[int, ...], str | None]] = {name: (shape, None) for name, shape in like.items()}
    table = model.get_submodule(f"{output_stack(model)}.embedding")
    replaced = set()  # modules whose matrix is quantized
    for matrix in matrices_of(model):
        stored = matrix.find(found)
        tied = isinstance(matrix.module, Logits) and model.config.tie_output
        if stored is None or (tied and table in replaced):  # the table is also the output matrix
            continue
        replaced.add(matrix.module)
        expected.pop(matrix.name, None)
        expected |= stored.tensors
        quantized[matrix.name] = stored
    if found.keys() != expected.keys():
        odd = min(found.keys() ^ expected.keys())
        if odd in found:
            raise UsageError(f"{path} has an unexpected tensor {odd[:200]}: it belongs to another model.")
        raise UsageError(f"{path} lacks the tensor {odd[:200]}: it belongs to another model.")
    floats = [dtype for name, (_, dtype) in found.items() if expected[name][1] is None]
    usual = Counter(floats).most_common(1)[0][0] if floats else "F32"
    for name, (shape, dtype) in found.items():
        needed, exactly = expected[name]
        if shape != needed:
            raise UsageError(f"{path}: {name} has shape {list(shape)}; the model needs {list(needed)}.")
        if exactly is not None and dtype != exactly:
            raise UsageError(f"{path}: {name} has type {dtype}; a quantized matrix needs {exactly}.")
        if exactly is None and dtype not in FLOATS:
            raise UsageError(f"{path}: {name} has type {dtype}; weights must be floats ({', '.join(FLOATS)}).")
        if exactly is None and dtype != usual:
            raise UsageError(f"{path}: {name} has type {dtype} and other tensors {usual}; all must have the same type.")
    with safe_open(path, framework="pt", device=str(device)) as opened:
        single = {name: opened.get_tensor(name) for name in like if name in found}
        matrices = {
            name: kind(*(opened.get_tensor(part) for part in parts)) for name, (kind, parts) in quantized.items()
        }
    return {**single, **matrices}
