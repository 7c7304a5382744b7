"""Tensors in safetensors files, one or several: their names and shapes first, their numbers when asked for.

Files are untrusted. The library checks that a header's offsets lie in the file, one behind the other, and fit shapes
and types; before that, the header must be small, and it may name so many tensors at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chumoku.errors import DamagedError, UsageError
from chumoku.safe_files import check_header

MOST_FILES = 1 << 10
MOST_TENSORS = 1 << 14
MOST_DIMENSIONS = 8
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class SafetensorsSource:
    """The tensors of safetensors files."""

    def __init__(self, files: list[Path], *, prefix: str = "", device: torch.device | str = "cpu") -> None:
        self.path: Path = files[0] if len(files) == 1 else files[0].parent
        self.files, self.device, self._prefix = files, str(device), ""
        self._homes: dict[str, Path] = {}
        self._opened: dict[Path, Any] = {}  # a file's header is read once, however many tensors are
        self._types: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            for name, (shape, kind) in read_headers(file).items():
                if name in shapes:
                    raise DamagedError(f"{file} has the tensor {name[:100]}, which another of the files has too.")
                shapes[name], self._types[name], self._homes[name] = shape, kind, file
        # A body saved without a head has no prefix before its names.
        if prefix and not any(name.startswith(prefix) for name in shapes):
            self._prefix = prefix
        self.shapes: Mapping[str, tuple[int, ...]] = {self._prefix + name: shape for name, shape in shapes.items()}

    def read(self, name: str, *, dequantize: bool = True) -> Tensor:
        """A tensor of floats."""
        plain = name.removeprefix(self._prefix)
        if self._types[plain] not in FLOATS:
            raise UsageError(f"{self._homes[plain]}: {plain} is of type {self._types[plain]}, and weights are floats.")
        home = self._homes[plain]
        try:
            if home not in self._opened:
                self._opened[home] = safe_open(home, framework="pt", device=self.device)
            tensor: Tensor = self._opened[home].get_tensor(plain)
        except SafetensorError as error:
            raise unreadable_error(home, error) from error
        return tensor


def read_headers(path: Path, *, most: int = MOST_TENSORS) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every tensor of a file that has `most` tensors or fewer."""
    check_header(path)
    try:
        with safe_open(path, framework="pt") as stored:
            names = list(stored.keys())
            if len(names) > most:
                raise DamagedError(f"{path} has {len(names):,} tensors; {most:,} are the most that is read.")
            slices = {name: stored.get_slice(name) for name in names}
            found = {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}
    except SafetensorError as error:
        raise unreadable_error(path, error) from error
    deep = next((name for name, (shape, _) in found.items() if len(shape) > MOST_DIMENSIONS), None)
    if deep is not None:
        raise DamagedError(f"{path}: {deep[:100]} has more than {MOST_DIMENSIONS} dimensions.")
    return found


def unreadable_error(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} does not read as safetensors: {str(error)[:200]}.")
