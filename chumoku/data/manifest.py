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
    """Whether the folder was already made of exactly this, and its files are all there, of their sizes."""
    try:
        manifest = read_manifest(folder)
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (CorpusError, KeyError, OSError):
        return False
    return bool(manifest["made_of"] == json.loads(json.dumps(made_of)) and sizes == manifest["files"])


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A working folder beside `folder` that takes its place when the work is done, and vanishes when it fails."""
    folder = folder.resolve()
    check_replaceable(folder)
    working, aside = (folder.with_name(f"{folder.name}.{os.getpid()}.{end}") for end in ("part", "old"))
    shutil.rmtree(working, ignore_errors=True)
    try:
        working.mkdir(parents=True)
        yield working
        if folder.exists():
            folder.replace(aside)
        working.replace(folder)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    """Refuse, before any work, a folder that holds anything we did not put there."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CorpusError(f"{folder} is a file, and a folder is to be made there. Choose another place.")
    present = {file.name for file in folder.iterdir()}
    try:
        ours = {NAME, *read_manifest(folder)["files"]} if present else set()
    except (CorpusError, KeyError):
        ours = set()
    if present - ours:
        raise CorpusError(
            f"{folder} exists and is no prepared corpus: it holds {min(present - ours)}. Choose another folder; "
            "nothing was touched."
        )


def write_manifest(folder: Path, made_of: dict[str, Any], **rest: Any) -> None:
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    values = {"version": VERSION, "made_of": made_of, "files": files, **rest}
    (folder / NAME).write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")
