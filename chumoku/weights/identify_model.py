"""Find a model and recognize its format, without importing torch, so that a wrong path is reported at once.

A file's format is recognized by its content. Pickle files are never opened, because unpickling can run any code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from chumoku.errors import ChumokuError, UsageError
from chumoku.pretrained import NAMES, find_shipped
from chumoku.safe_files import read_json
from chumoku.weights.checksums import MANIFEST
from chumoku.weights.formats.hub import HUB, download

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
RECIPE_FILE = "recipe.json"  # in a run's folder: the recipe it was trained with
IN_RUN = ("last", "best")  # in a run's folder: its models, the one to use first
GGUF, ZIP, PICKLE_START = b"GGUF", b"PK\x03\x04", re.compile(rb"\x80[\x02-\x05][^\0]")
PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle")
Kind = Literal["bundle", "transformers", "gguf", "llama2.c"]
ACCEPTED = (
    "a model folder, a .gguf file, a llama2.c .bin file, hf:owner/name, or the name of a model that ships with "
    f"chumoku: {', '.join(NAMES)}"
)


def local_path(path: Path | str) -> Path:
    """The model's path on this machine: that of a shipped model for its name; a model at the Hub is downloaded first.

    A file or folder that exists wins over the name of a shipped model.
    """
    if isinstance(path, str) and path.startswith(HUB):
        return download(path)
    return find_shipped(path) or Path(path)


def exists(path: Path) -> bool:
    """Whether the file or folder exists; False for a path that is not a valid file name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def identify_model(path: Path | str) -> tuple[Path, Kind]:
    """The model's path on this machine, and its format."""
    location = local_path(path)
    if not exists(location):
        raise UsageError(f"{str(location)[:200]} does not exist. Give {ACCEPTED}.")
    if location.is_file():
        return _identify_file(location)
    return location, _identify_folder(location)


def _identify_folder(folder: Path) -> Kind:
    if (folder / ADAPTER_CONFIG).is_file():
        raise UsageError(
            f"{folder} is an adapter, but a full model is needed here. Merge it into its base model first: "
            f"chumoku convert {folder} NEW --to chumoku."
        )
    if is_bundle(folder):
        return "bundle"
    if (folder / CONFIG).is_file():
        return "transformers"
    check_run_has_model(folder)
    inner = next((folder / name for name in IN_RUN if (folder / name).is_dir()), None)
    files = sorted(folder.glob("*.gguf"))
    guess = inner or next(iter(files), None)
    hint = f"Give {ACCEPTED}." if guess is None else f"Did you mean {guess}?"
    raise UsageError(f"{folder} is not a model: it has no {CONFIG}. {hint}")


def check_run_has_model(run: Path) -> None:
    """Raise an error if the folder is a training run that has no model yet; name its newest checkpoint."""
    if not exists(run / RECIPE_FILE) or any(exists(run / name) for name in IN_RUN):
        return
    checkpoints = (path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdecimal())
    newest = max(checkpoints, default=None)
    way_out = "" if newest is None else f" Or give its newest checkpoint, {newest}."
    raise UsageError(
        f"{run} is a training run that has no model yet: it has no last/ and no best/. Continue it with "
        f"chumoku train {run} --resume.{way_out}"
    )


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a chumoku bundle: its config says so, or is unreadable but the folder has a manifest."""
    try:
        return read_json(folder / CONFIG, max_bytes=1 << 20).get("format") == "chumoku"
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
            f"{file} is a pickle file, which is never opened because it can run any code. If you trust it, convert it "
            "once: load it in PyTorch with weights_only=True, and save it with safetensors.torch.save_file."
        )
    from chumoku.weights.formats.llama2c import looks_like_llama2c  # imports torch

    if looks_like_llama2c(file):
        return file, "llama2.c"
    raise UsageError(f"{file} is not a model in a supported format. Give {ACCEPTED}.")
