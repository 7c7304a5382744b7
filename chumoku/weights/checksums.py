"""A sealed folder: files, and a manifest of their SHA-256 sums, written last.

    write   name.writing/ … files → fsync → manifest → fsync → rename to name/ → fsync of the parent
    read    the manifest, then every file against its sum; what does not match is refused by name

So a folder is either whole or not there, whenever the power goes. Only the manifest's own form of bytes is accepted,
so that a flip of any byte, in it too, is seen. Sealed folders may come from strangers: a file is opened only after it
is known to be a regular file inside the folder, of the size in the manifest, and not larger than such a file can be.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from chumoku.errors import DamagedError
from chumoku.safe_files import leads_out

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 24
LARGEST_FILE = 1 << 28  # bytes of a file that is not safetensors; tokenizers may be as large
LARGEST_WEIGHTS = 1 << 40  # bytes of a safetensors file, where no config says how many there can be
IGNORED = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})  # macOS and Windows put these into folders
APPLE_DOUBLE = "._"  # macOS puts ._NAME beside NAME on file systems that have no place for its attributes
TEMPORARY_SUFFIXES = ("writing", "replaced", "removed")  # of folders that are on their way


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A working folder that takes the place of `folder` when the work is done, and vanishes when it fails."""
    folder = folder.absolute()
    recover_interrupted_write(folder)
    working, aside = sibling(folder, "writing"), sibling(folder, "replaced")
    try:
        working.mkdir(parents=True)
        yield working
        write_checksums(working)
        if folder.exists():
            folder.replace(aside)
        working.replace(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_checksums(folder: Path) -> None:
    """Bring every file to the disk, then write what they sum to."""
    files = {}
    for name in sorted(list_files(folder)):
        sync(folder / name)
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
    (folder / MANIFEST).write_bytes(_manifest_bytes(files))
    sync(folder / MANIFEST)
    sync(folder)


def verify_checksums(folder: Path, *, largest: Callable[[], int] = lambda: LARGEST_WEIGHTS) -> None:
    """Refuse a folder that is not exactly what was sealed, naming what differs.

    `largest` says how many bytes a safetensors file can have; it is called when the small files have been verified.
    """
    expected = read_manifest(folder)
    present = list_files(folder)
    if present != set(expected):
        odd = min(present ^ set(expected))
        raise DamagedError(f"{folder / odd} is {'missing' if odd in expected else 'not part of what was saved'}.")
    for name, (size, _) in expected.items():
        found = check_regular_file(folder / name)
        if found != size:
            raise DamagedError(f"{folder / name} has {found:,} bytes, and {size:,} were saved.")
    for name, (size, digest) in sorted(expected.items(), key=lambda item: item[1][0]):
        most = LARGEST_FILE if size <= LARGEST_FILE or not name.endswith(".safetensors") else largest()
        if size > most:
            raise DamagedError(f"{folder / name} has {size:,} bytes; such a file has {most:,} at most.")
        if _sha256(folder / name) != digest:
            raise DamagedError(f"{folder / name} is damaged: its bytes are not those that were saved.")


def read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 sum of each file, as the manifest has them."""
    path = folder / MANIFEST
    try:
        if check_regular_file(path) > LARGEST_MANIFEST:
            raise DamagedError(f"{path} is larger than any manifest is.")
        data = path.read_bytes()
        files = json.loads(data)["files"]
        intact = data == _manifest_bytes(files)
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items() if not is_ignored(name)}
        typed = all(type(size) is int and type(digest) is str for size, digest in expected.values())
    except FileNotFoundError as error:
        raise DamagedError(f"{folder} has no {MANIFEST}: it was never finished, or is no folder of ours.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it does not read as a manifest.") from error
    if not typed:
        raise DamagedError(f"{path} is damaged: it does not read as a manifest.")
    if not intact:
        raise DamagedError(f"{path} is damaged: it is not written as manifests are.")
    return expected


def list_files(folder: Path) -> set[str]:
    """The names of a folder's files, without the manifest and without what operating systems put there."""
    return {name for name in os.listdir(folder) if name != MANIFEST and not is_ignored(name)}


def is_ignored(name: str) -> bool:
    return name in IGNORED or name.startswith(APPLE_DOUBLE)


def check_regular_file(path: Path) -> int:
    """The size of a regular file in its folder. Pipes, devices, folders and links that lead out are refused."""
    if leads_out(path):
        raise DamagedError(f"{path} is a link that leads out of its folder. Put the file itself there.")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{path} is not a regular file. Put the file itself there.")
    return found.st_size


def recover_interrupted_write(folder: Path) -> None:
    """Undo what an interrupted writing left: the former folder comes back, unfinished ones go.

    For whoever may write here alone: a reader would take a writer's folder away.
    """
    aside = sibling(folder, "replaced")
    if aside.exists() and not folder.exists():
        aside.replace(folder)
    for end in TEMPORARY_SUFFIXES:
        shutil.rmtree(sibling(folder, end), ignore_errors=True)


def delete_folder(folder: Path) -> None:
    """Delete a folder; interrupted, it no longer bears its name."""
    aside = sibling(folder, "removed")
    folder.replace(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sibling(folder: Path, end: str) -> Path:
    return folder.with_name(f"{folder.name}.{end}")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _manifest_bytes(files: object) -> bytes:
    return json.dumps({"files": files}, sort_keys=True, indent=1).encode()
