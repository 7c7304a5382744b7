"""Opening a model, whoever wrote it.

    a folder      ours (sealed) · of transformers or sentence-transformers
    a file        .gguf · llama2.c's .bin · a .safetensors with its config.json beside it
    hf:owner/name at the hub, or what is kept of it

What a file is, is seen by what is in it. Pickled files are never opened: reading one can run any program.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from chumoku.errors import ChumokuError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.safe_files import read_json
from chumoku.weights import bundle
from chumoku.weights.bundle import CONFIG, Bundle
from chumoku.weights.checksums import MANIFEST
from chumoku.weights.formats.gguf_model import inspect_gguf, llama2c_config, read_gguf, read_llama2c_model
from chumoku.weights.formats.hub import HUB, download
from chumoku.weights.formats.llama2c import looks_like_llama2c, open_llama2c
from chumoku.weights.formats.transformers_folder import inspect_folder, read_folder

GGUF, ZIP, PICKLE_START = b"GGUF", b"PK\x03\x04", re.compile(rb"\x80[\x02-\x05][^\0]")
ADAPTER_CONFIG = "adapter_config.json"
PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle")
Kind = Literal["bundle", "transformers", "gguf", "llama2.c"]
ACCEPTED = "a model's folder, a .gguf file, llama2.c's .bin, or hf:owner/name"


def load(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dequantize: bool = True,
    on_model_loaded: Callable[[Model], None] = lambda model: None,
) -> Bundle:
    """Open a model. Whole numbers that our products can use stay so unless it is to be `dequantize`, that is of floats.

    `on_model_loaded` may begin with a GGUF file's model while its tokenizer, which takes as long, is being made.
    """
    place, kind = identify_model(path)
    match kind:
        case "bundle":
            return bundle.load(place, device=device)
        case "transformers":
            return read_folder(place, device=device)
        case "gguf":
            return read_gguf(place, device=device, dequantize=dequantize, on_model_loaded=on_model_loaded)
        case "llama2.c":
            return read_llama2c_model(place, device=device)


def read_model_config(path: Path | str) -> ModelConfig:
    """What kind of model it is, without its weights."""
    place, kind = identify_model(path)
    match kind:
        case "bundle":
            return bundle.read_config(place / CONFIG)
        case "transformers":
            return inspect_folder(place).config
        case "gguf":
            return inspect_gguf(place).config
        case "llama2.c":
            return llama2c_config(open_llama2c(place))


def local_path(path: Path | str) -> Path:
    """Where a model lies on this machine."""
    return download(path) if isinstance(path, str) and path.startswith(HUB) else Path(path)


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; what cannot even be a name is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def identify_model(path: Path | str) -> tuple[Path, Kind]:
    """Where a model lies on this machine, and who wrote it."""
    place = local_path(path)
    if not exists(place):
        raise UsageError(f"There is no {str(place)[:200]}. Name {ACCEPTED}.")
    if place.is_file():
        return _identify_file(place)
    return place, _identify_folder(place)


def _identify_folder(folder: Path) -> Kind:
    if (folder / ADAPTER_CONFIG).is_file():
        raise UsageError(
            f"{folder} is an adapter, and a whole model is needed here. Make it one: chumoku convert {folder} NEW "
            "--to chumoku."
        )
    if is_bundle(folder):
        return "bundle"
    if (folder / CONFIG).is_file():
        return "transformers"
    inner = next((folder / name for name in ("last", "best") if (folder / name).is_dir()), None)
    files = sorted(folder.glob("*.gguf"))
    near = inner or next(iter(files), None)
    hint = f"Name {ACCEPTED}." if near is None else f"Did you mean {near}?"
    raise UsageError(f"{folder} is no model: it holds no {CONFIG}. {hint}")


def is_bundle(folder: Path) -> bool:
    """Whether a folder is one of ours: our word is in its config; or it is sealed, and its config no longer reads."""
    try:
        return read_json(folder / CONFIG, largest=1 << 20).get("format") == "chumoku"
    except ChumokuError:
        return (folder / MANIFEST).is_file()


def _identify_file(file: Path) -> tuple[Path, Kind]:
    with file.open("rb") as stream:
        first = stream.read(8)
    if first.startswith(GGUF):
        return file, "gguf"
    if file.suffix == ".safetensors":
        return file.parent, _identify_folder(file.parent)
    if first.startswith(ZIP) or file.suffix in PICKLE_SUFFIXES or PICKLE_START.match(first):
        raise UsageError(
            f"{file} is a pickled file, which is not opened: reading one can run any program. Convert it once, where "
            "you trust it: read it in PyTorch with weights_only=True, and write it with safetensors.torch.save_file."
        )
    if looks_like_llama2c(file):
        return file, "llama2.c"
    raise UsageError(f"{file} is no model that is known here. Name {ACCEPTED}.")
