"""llama2.c's model files: seven integers, then all weights in float32.

    i32   dim, hidden, layers, heads, kv_heads, vocabulary (negative: the output matrix is not tied), length
    f32   token_embedding [V, D]   rms_att [L, D]   wq [L, D, D]   wk, wv [L, G·K, D]   wo [L, D, D]   rms_ffn [L, D]
          w1 (gate) [L, F, D]   w2 (down) [L, D, F]   w3 (up) [L, F, D]   rms_final [D]
          tables of cos and sin [length, K/2] each, which we skip      wcls [V, D], if not tied
    rest  some packages append the tokenizer

The format has no magic number: a file is recognized if its seven integers are plausible and its size follows from them.
Little-endian; queries and keys are stored for rotary positions of pairing "interleaved".
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import DamagedError, UsageError

HEADER = struct.Struct("<7i")
NEWER_MAGIC = b"24ka"  # magic number of later versions
LARGEST_TOKENIZER = 1 << 24
LIMITS = {"dim": 1 << 16, "hidden": 1 << 20, "layers": 1 << 10, "heads": 1 << 10, "kv_heads": 1 << 10}
LIMITS |= {"vocabulary": 1 << 24, "length": 1 << 24}


class TensorInfo(NamedTuple):
    shape: tuple[int, ...]
    offset: int


class Llama2c:
    """An open llama2.c file: `header` has the seven integers and `tied`, `read` returns a tensor by name."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        found = _read_header(data[: HEADER.size])
        if isinstance(found, str):
            raise UsageError(f"{path} is not a llama2.c file: {found}.")
        self.header: dict[str, int | bool] = {**found}
        self._tensors, end = _layout(found)
        if end > len(data):
            raise DamagedError(f"{path} has {len(data):,} bytes, but its weights need {end:,}. Is it complete?")
        if len(data) - end > LARGEST_TOKENIZER:
            raise DamagedError(f"{path} has {len(data) - end:,} bytes after its weights, too many for a tokenizer.")
        self.shapes = {name: info.shape for name, info in self._tensors.items()}
        self.tokenizer_bytes = data[end:]
        self._bytes = torch.frombuffer(data, dtype=torch.uint8)

    def read(self, name: str, *, dequantize: bool = True) -> Tensor:
        """A float32 tensor, memory-mapped; writing into it does not change the file."""
        if name not in self._tensors:
            raise UsageError(f"{self.path} has no tensor {name[:60]!r}.")
        shape, offset = self._tensors[name]
        return self._bytes[offset : offset + 4 * math.prod(shape)].view(torch.float32).view(shape)


def open_llama2c(path: Path | str) -> Llama2c:
    """Memory-map a file and check its header against its size."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a llama2.c file: it is empty.") from error
    return Llama2c(path, data)


def looks_like_llama2c(path: Path | str) -> bool:
    """Whether the file starts with seven plausible integers and has the size that follows from them."""
    try:
        with Path(path).open("rb") as stream:
            found = _read_header(stream.read(HEADER.size))
            size = stream.seek(0, 2)
    except OSError:
        return False
    return not isinstance(found, str) and 0 <= size - _layout(found)[1] <= LARGEST_TOKENIZER


def _read_header(head: bytes) -> dict[str, int] | str:
    """The seven integers and `tied`, or a sentence about what is wrong with them."""
    if len(head) < HEADER.size:
        return "it is shorter than the header"
    if head.startswith(NEWER_MAGIC):
        return "it has a later version of the format; export it with --version 0"
    values: dict[str, int] = dict(zip(LIMITS, HEADER.unpack(head), strict=True))
    tied = values["vocabulary"] > 0
    values["vocabulary"] = abs(values["vocabulary"])
    odd = next((name for name, value in values.items() if not 1 <= value <= LIMITS[name]), None)
    if odd is not None:
        return f"its header has {odd} = {values[odd]:,}"
    dim, heads, kv_heads = values["dim"], values["heads"], values["kv_heads"]
    if dim % heads or heads % kv_heads or dim // heads % 2:
        return f"its numbers do not fit together (dim {dim}, heads {heads}, kv_heads {kv_heads})"
    return {**values, "tied": tied}


def _layout(values: dict[str, int]) -> tuple[dict[str, TensorInfo], int]:
    """Shape and offset of every tensor, and the offset where the last one ends."""
    dim, hidden, vocabulary = values["dim"], values["hidden"], values["vocabulary"]
    keys = dim // values["heads"] * values["kv_heads"]
    layer = {
        "attention_norm": (dim,),
        **{"attention.wq": (dim, dim), "attention.wk": (keys, dim)},
        **{"attention.wv": (keys, dim), "attention.wo": (dim, dim)},
        "feedforward_norm": (dim,),
        **{"feedforward.w1": (hidden, dim), "feedforward.w2": (dim, hidden), "feedforward.w3": (hidden, dim)},
    }
    tensors: dict[str, TensorInfo] = {}
    offset = HEADER.size

    def add(name: str, shape: tuple[int, ...]) -> None:
        nonlocal offset
        tensors[name] = TensorInfo(shape, offset)
        offset += 4 * math.prod(shape)

    add("token_embedding", (vocabulary, dim))
    for name, shape in layer.items():
        for number in range(values["layers"]):
            add(f"layers.{number}.{name}", shape)
    add("norm", (dim,))
    offset += 4 * values["length"] * (dim // values["heads"])
    if not values["tied"]:
        add("output", (vocabulary, dim))
    return tensors, offset
