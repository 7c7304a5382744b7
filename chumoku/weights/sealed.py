"""A sealed folder: files, and a manifest of their SHA-256 sums, written last.

    write   name.writing/ … files → fsync → manifest → fsync → rename to name/ → fsync of the parent
    read    the manifest, then every file against its sum; what does not match is refused by name

So a folder is either whole or not there, whenever the power goes. Only the manifest's own form of bytes is accepted,
so that a flip of any byte, in it too, is seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from chumoku.errors import DamagedError

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 24
ENDS = ("writing", "replaced", "removed")  # of folders that are on their way


@contextlib.contextmanager
def sealed(folder: Path) -> Iterator[Path]:
    """A working folder that takes the place of `folder` when the work is done, and vanishes when it fails."""
    folder = folder.absolute()
    heal(folder)
    working, aside = beside(folder, "writing"), beside(folder, "replaced")
    try:
        working.mkdir(parents=True)
        yield working
        seal(working)
        if folder.exists():
            folder.replace(aside)
        working.replace(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def seal(folder: Path) -> None:
    """Bring every file to the disk, then write what they sum to."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST:
            sync(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sum(path)}
    (folder / MANIFEST).write_bytes(_form(files))
    sync(folder / MANIFEST)
    sync(folder)


def verify(folder: Path) -> None:
    """Refuse a folder that is not exactly what was sealed, naming what differs."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise DamagedError(f"{path} is larger than any manifest is.")
        data = path.read_bytes()
        files = json.loads(data)["files"]
        intact = data == _form(files)
        expected = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError as error:
        raise DamagedError(f"{folder} has no {MANIFEST}: it was never finished, or is no folder of ours.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it does not read as a manifest.") from error
    if not intact:
        raise DamagedError(f"{path} is damaged: it is not written as manifests are.")
    present = {file.name for file in folder.iterdir()} - {MANIFEST}
    if present != set(expected):
        odd = min(present ^ set(expected))
        raise DamagedError(f"{folder / odd} is {'missing' if odd in expected else 'not part of what was saved'}.")
    for name, (size, digest) in expected.items():
        found = (folder / name).stat().st_size
        if found != size:
            raise DamagedError(f"{folder / name} has {found:,} bytes, and {size:,} were saved.")
        if _sum(folder / name) != digest:
            raise DamagedError(f"{folder / name} is damaged: its bytes are not those that were saved.")


def heal(folder: Path) -> None:
    """Undo what an interrupted writing left: the former folder comes back, unfinished ones go.

    For whoever may write here alone: a reader would take a writer's folder away.
    """
    aside = beside(folder, "replaced")
    if aside.exists() and not folder.exists():
        aside.replace(folder)
    for end in ENDS:
        shutil.rmtree(beside(folder, end), ignore_errors=True)


def remove(folder: Path) -> None:
    """Delete a folder; interrupted, it no longer bears its name."""
    aside = beside(folder, "removed")
    folder.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(folder: Path, end: str) -> Path:
    return folder.with_name(f"{folder.name}.{end}")


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _form(files: object) -> bytes:
    return json.dumps({"files": files}, sort_keys=True, indent=1).encode()
