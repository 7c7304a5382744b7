"""Tensors of one or more safetensors files: names and shapes are read first, data on request.

Files are untrusted. The library checks that the offsets in a header are inside the file, contiguous, and fit shapes and
types. Before that, we limit the header's size and its number of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chumoku.errors import DamagedError, UsageError
from chumoku.safe_files import check_safetensors_header

MAX_FILES = 1 << 10
MAX_TENSORS = 1 << 14
MAX_DIMENSIONS = 8
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class SafetensorsSource:
    """The tensors of safetensors files; `prefix` is added to all names if none has it, as in models without a head."""

    def __init__(self, files: list[Path], *, prefix: str = "", device: torch.device | str = "cpu") -> None:
        self.path: Path = files[0] if len(files) == 1 else files[0].parent
        self.files, self.device, self._prefix = files, str(device), ""
        self._files: dict[str, Path] = {}
        self._opened: dict[Path, Any] = {}  # so that each header is parsed only once
        self._types: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            for name, (shape, kind) in read_headers(file).items():
                if name in shapes:
                    raise DamagedError(f"{file} has the tensor {name[:100]}, which is also in another file.")
                shapes[name], self._types[name], self._files[name] = shape, kind, file
        if prefix and not any(name.startswith(prefix) for name in shapes):
            self._prefix = prefix
        self.shapes: Mapping[str, tuple[int, ...]] = {self._prefix + name: shape for name, shape in shapes.items()}

    def read(self, name: str, *, dequantize: bool = True) -> Tensor:
        """Read a float tensor."""
        key = name.removeprefix(self._prefix)
        file = self._files[key]
        if self._types[key] not in FLOATS:
            raise UsageError(f"{file}: {key} has type {self._types[key]}; weights must be floats.")
        try:
            if file not in self._opened:
                self._opened[file] = safe_open(file, framework="pt", device=self.device)
            tensor: Tensor = self._opened[file].get_tensor(key)
        except SafetensorError as error:
            raise unreadable_error(file, error) from error
        return tensor


def read_headers(path: Path, *, max_tensors: int = MAX_TENSORS) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and type of every tensor in a file; more than `max_tensors` are refused."""
    check_safetensors_header(path)
    try:
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            if len(names) > max_tensors:
                raise DamagedError(f"{path} has {len(names):,} tensors; at most {max_tensors:,} are allowed.")
            slices = {name: stored.get_slice(name) for name in names}
            found = {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}
    except SafetensorError as error:
        raise unreadable_error(path, error) from error
    deep = next((name for name, (shape, _) in found.items() if len(shape) > MAX_DIMENSIONS), None)
    if deep is not None:
        raise DamagedError(f"{path}: {deep[:100]} has more than {MAX_DIMENSIONS} dimensions.")
    return found


def unreadable_error(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} is not a valid safetensors file: {str(error)[:200]}.")
