"""Open a GGUF file: its fields, and its tensors on request.

The file is memory-mapped. Float tensors, and quantized matrices that stay quantized, are views of the mapping; others
are dequantized in chunks. Opening therefore reads only the header. The mapping is private: writing
into a tensor never changes the file.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.nn.gguf_blocks import BLOCK_KINDS, TYPES_BY_NAME, Blocks, dequantize_blocks
from chumoku.nn.quantized import GROUP, Int4, Int8
from chumoku.weights.formats.gguf.header import TensorInfo, read_header

__all__ = ["Gguf", "TensorInfo", "open_gguf"]
LARGEST_Q4_0 = 65504 / 8  # largest d for which −8 d fits into float16


class Gguf:
    """An open GGUF file: `fields` and `tensors` by name; `read` returns a tensor."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.fields: dict[str, Any]
        self.tensors: dict[str, TensorInfo]
        self.fields, self.tensors = read_header(data, path)
        self.shapes = {name: info.shape for name, info in self.tensors.items()}
        self._bytes = torch.frombuffer(data, dtype=torch.uint8)

    @overload
    def read(self, name: str, *, dequantize: Literal[True] = True) -> Tensor: ...
    @overload
    def read(self, name: str, *, dequantize: bool) -> Tensor | Int4 | Int8 | Blocks: ...
    def read(self, name: str, *, dequantize: bool = True) -> Tensor | Int4 | Int8 | Blocks:
        """Read a tensor: float32 if it was quantized, else the stored float type.

        With dequantize=False, Q4_0 and Q4_1 matrices are returned as Int4, Q8_0 as Int8 and others as Blocks, without
        loss.
        """
        if name not in self.tensors:
            raise UsageError(f"{self.path} has no tensor {name[:60]!r}.")
        info = self.tensors[name]
        data = self._bytes[info.offset : info.offset + info.bytes]
        stored = None if dequantize else as_quantized(data, info.type, info.shape)
        return dequantize_blocks(data, info.type, info.shape) if stored is None else stored


def open_gguf(path: Path | str) -> Gguf:
    """Memory-map a GGUF file and read its header."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a GGUF file: it is empty.") from error
    return Gguf(path, data)


def as_quantized(data: Tensor, name: str, shape: tuple[int, ...]) -> Int4 | Int8 | Blocks | None:
    """The matrix of a GGUF type as one of our quantized types, without copying or rounding; None for other types."""
    if len(shape) != 2 or TYPES_BY_NAME[name].dtype is not None:
        return None
    if name.lower() in BLOCK_KINDS:
        return Blocks(data.view(shape[0], -1, TYPES_BY_NAME[name].block_bytes))
    blocks = data.view(shape[0], shape[1] // GROUP, -1)
    # A block has an even number of bytes, so it can be viewed as float16.
    scale = blocks.view(torch.float16)[..., 0]
    if name == "Q8_0":
        return Int8(blocks[..., 2:].view(torch.int8), scale)
    if name == "Q4_1":
        return Int4(blocks[..., 4:], scale, blocks.view(torch.float16)[..., 1])
    if float(scale.abs().max()) > LARGEST_Q4_0:
        return None
    return Int4(blocks[..., 2:], scale, scale * -8)
