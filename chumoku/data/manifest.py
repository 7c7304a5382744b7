"""A prepared folder: data files, and a manifest written last that says what they were made of.

When nothing it was made of has changed, preparing again does nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chumoku.errors import CorpusError

NAME = "manifest.json"
VERSION = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CorpusError(f"{folder} holds no prepared corpus: {NAME} is missing. Prepare it first.") from error
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path} cannot be read: {error}. Prepare the corpus again.") from error
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION or "made_of" not in manifest:
        raise CorpusError(f"{path} is not a manifest of this version ({VERSION}). Prepare the corpus again.")
    return manifest


def unchanged(folder: Path, made_of: dict[str, Any]) -> bool:
    """Whether the folder was already made of exactly this."""
    try:
        return bool(read_manifest(folder)["made_of"] == json.loads(json.dumps(made_of)))
    except CorpusError:
        return False


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A working folder beside `folder` that takes its place when the work is done, and vanishes when it fails."""
    working = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(working, ignore_errors=True)
    try:
        working.mkdir(parents=True)
        yield working
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    if folder.exists():
        if not (folder / NAME).exists() and any(folder.iterdir()):
            shutil.rmtree(working)
            raise CorpusError(f"{folder} exists and is no prepared corpus. Choose another folder; nothing was touched.")
        shutil.rmtree(folder)
    working.replace(folder)


def write_manifest(folder: Path, made_of: dict[str, Any], **rest: Any) -> None:
    text = json.dumps({"version": VERSION, "made_of": made_of, **rest}, ensure_ascii=False, indent=1)
    (folder / NAME).write_text(text, encoding="utf-8")
