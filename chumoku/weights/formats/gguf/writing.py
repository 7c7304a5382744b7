"""Write GGUF files with the `gguf` library.

    f32, f16, q8_0     the type of matrices; vectors and the tables of positions and segments are always f32, as
                       llama.cpp expects
    q8_0               a matrix whose rows are not a multiple of 32 is written as f16

The file is written under a temporary name and then renamed, so it is either complete or absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from chumoku.errors import MissingExtraError, UsageError
from chumoku.nn.quantized import GROUP
from chumoku.weights.checksums import sync

Kind = Literal["f32", "f16", "q8_0"]
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}  # of general.file_type
ALWAYS_F32 = ("position_embd.weight", "token_types.weight")
LARGEST = {"f32": 3.4028234e38, "f16": 65504.0, "q8_0": 65504.0 * 127}
RESERVED = ("general.architecture", "general.alignment", "general.file_type", "general.quantization_version")


def write_gguf(
    path: Path | str, *, architecture: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: Kind
) -> None:
    """Write a GGUF file with these fields and tensors, named like in llama.cpp; `kind` is the matrices' number type."""
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("Writing GGUF needs the gguf library: pip install 'chumoku[gguf]'.") from error
    if kind not in get_args(Kind):
        raise UsageError(f"GGUF cannot be written as '{str(kind)[:60]}'. Choose one of {', '.join(get_args(Kind))}.")
    path = Path(path)
    working = path.with_name(f"{path.name}.writing")
    writer = gguf.GGUFWriter(working, architecture)
    try:
        for name, value in fields.items():
            if name not in RESERVED:
                _add_field(writer, name, value)
        writer.add_file_type(FILE_TYPES[kind])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for name, tensor in tensors.items():
            writer.add_tensor(name, *_encode(name, tensor, kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        sync(working)
        os.replace(working, path)
    finally:
        writer.close()
        working.unlink(missing_ok=True)


def _add_field(writer: Any, name: str, value: Any) -> None:
    """Add a field with the type that llama.cpp expects: uint32 for integers, float32 for floats."""
    from gguf import GGUFValueType as Value

    if isinstance(value, list | tuple):
        if value:  # an empty list has no type in GGUF
            writer.add_array(name, list(value))
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        kind = Value.UINT32 if 0 <= value < 1 << 32 else Value.INT64
        writer.add_key_value(name, value, kind)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_key_value(name, value, Value.STRING)
    else:
        raise UsageError(f"The field {name} is a {type(value).__name__}, which GGUF cannot store.")


def _encode(name: str, tensor: Tensor, kind: str) -> tuple[Any, ...]:
    """Arguments for the library's add_tensor: the array, and for quantized blocks its shape and type."""
    import gguf

    if tensor.ndim < 2 or name in ALWAYS_F32:
        kind = "f32"
    elif kind == "q8_0" and tensor.shape[-1] % GROUP:
        kind = "f16"
    numbers = tensor.detach().to("cpu", torch.float32).contiguous()
    low, high = numbers.aminmax()
    if not max(-float(low), float(high)) <= LARGEST[kind]:  # also catches NaN
        raise UsageError(f"{name} has values outside the range of {kind}, or NaN. Choose f32 if they are correct.")
    array = numbers.numpy()
    if kind == "q8_0":
        blocks = gguf.GGMLQuantizationType.Q8_0
        return gguf.quants.quantize(array, blocks), None, blocks
    return (array.astype(np.float16 if kind == "f16" else np.float32),)
