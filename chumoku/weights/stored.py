"""Tensors in safetensors files, one or several: their names and shapes first, their numbers when asked for.

Files are untrusted. The library checks that a header's offsets lie in the file, one behind the other, and fit shapes
and types; before that, the header must be small, and every name in an index must be a file of this very folder.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chumoku.errors import DamagedError, UsageError

LARGEST_HEADER = 1 << 24
LARGEST_JSON = 1 << 24
MOST_FILES = 1 << 10
MOST_DIMENSIONS = 8
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
NAME = re.compile(r"[\w.+-]{1,200}")


class Stored:
    """The tensors of safetensors files."""

    def __init__(self, files: list[Path], *, prefix: str = "", device: torch.device | str = "cpu") -> None:
        self.path: Path = files[0] if len(files) == 1 else files[0].parent
        self.files, self.device, self._prefix = files, str(device), ""
        self._homes: dict[str, Path] = {}
        self._types: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            for name, (shape, kind) in headers(file).items():
                if name in shapes:
                    raise DamagedError(f"{file} has the tensor {name[:100]}, which another of the files has too.")
                shapes[name], self._types[name], self._homes[name] = shape, kind, file
        # A body saved without a head has no prefix before its names.
        if prefix and not any(name.startswith(prefix) for name in shapes):
            self._prefix = prefix
        self.shapes: Mapping[str, tuple[int, ...]] = {self._prefix + name: shape for name, shape in shapes.items()}

    def read(self, name: str, *, whole: bool = True) -> Tensor:
        """A tensor of floats."""
        plain = name.removeprefix(self._prefix)
        if self._types[plain] not in FLOATS:
            raise UsageError(f"{self._homes[plain]}: {plain} is of type {self._types[plain]}, and weights are floats.")
        try:
            with safe_open(self._homes[plain], framework="pt", device=self.device) as stored:
                tensor: Tensor = stored.get_tensor(plain)
                return tensor
        except SafetensorError as error:
            raise unreadable(self._homes[plain], error) from error

    @property
    def dtypes(self) -> set[torch.dtype]:
        return {FLOATS[kind] for kind in self._types.values() if kind in FLOATS}


def headers(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every tensor of a file."""
    check_header(path)
    try:
        with safe_open(path, framework="pt") as stored:
            slices = {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118 - not a mapping
            found = {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}
    except SafetensorError as error:
        raise unreadable(path, error) from error
    deep = next((name for name, (shape, _) in found.items() if len(shape) > MOST_DIMENSIONS), None)
    if deep is not None:
        raise DamagedError(f"{path}: {deep[:100]} has more than {MOST_DIMENSIONS} dimensions.")
    return found


def check_header(path: Path) -> None:
    """A header is a length and so many bytes of JSON; the length is looked at before the library is asked."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            first = stream.read(8)
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}.") from error
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else None
    if length is None or length > size - 8:
        raise DamagedError(f"{path} does not read as safetensors: it ends within its header. Is the download whole?")
    if length > LARGEST_HEADER:
        raise DamagedError(f"{path} has a header of {length:,} bytes; {LARGEST_HEADER:,} are the most that is read.")


def unreadable(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} does not read as safetensors: {str(error)[:200]}.")


def inside(folder: Path, name: Any) -> Path:
    """A file of this folder by its plain name; names and links that lead elsewhere are refused."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in (".", ".."):
        raise UsageError(f"{folder} names the file {str(name)[:80]!r}, which is no plain name of a file in it.")
    path = folder / name
    if not path.resolve().is_relative_to(_root(folder)):
        raise UsageError(f"{path} is a link that leads out of its folder. Put the file itself there.")
    return path


def check_links(folder: Path) -> None:
    """Refuse a folder from which a link leads out, whoever would follow it."""
    for path in folder.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(_root(folder)):
            raise UsageError(f"{path} is a link that leads out of its folder. Put the file itself there.")


def _root(folder: Path) -> Path:
    """Where a folder's files may lie: in it, or, in the hub's cache, beside it."""
    folder = folder.resolve()
    for part in (folder, folder.parent):  # a model's folder there, or one within it
        if part.parent.name == "snapshots" and (part.parent.parent / "blobs").is_dir():
            return part.parent.parent
    return folder


def read_json(path: Path, *, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """A table of values; bounded, and nothing but JSON."""
    values = read_any_json(path, largest=largest)
    if not isinstance(values, dict):
        raise DamagedError(f"{path} holds no table of values.")
    return values


def read_any_json(path: Path, *, largest: int = LARGEST_JSON) -> Any:
    try:
        size = path.stat().st_size
        if size > largest:
            raise UsageError(f"{path} has {size:,} bytes, and {largest:,} are the most that is read.")
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} does not read as JSON: {str(error)[:200]}.") from error
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}.") from error
