"""Folders that are written atomically, with a manifest of the files' SHA-256 sums.

    write   name.writing/ … files → fsync → manifest → fsync → rename to name/ → fsync of the parent
    read    the manifest, then each file's size and sum; a file that differs is refused by name

After a crash or power loss, a folder is either complete or absent. The manifest must have exactly the bytes we write,
so a flipped bit in it is detected too. Folders are untrusted: before a file is opened, it must be a regular file inside
the folder, have the size given in the manifest, and be no larger than the limit for its kind.
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
from chumoku.safe_files import is_outside_link

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 1 << 24
LARGEST_FILE = 1 << 28  # bytes of a file other than safetensors
LARGEST_WEIGHTS = 1 << 40  # bytes of a safetensors file when no config gives a limit
IGNORED = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})  # created by macOS and Windows
APPLE_DOUBLE = "._"  # macOS creates ._NAME next to NAME on file systems without extended attributes
TEMPORARY_SUFFIXES = ("writing", "replaced", "removed")


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into; on success it replaces `folder`, with checksums, and on error it is deleted."""
    folder = folder.absolute()
    recover_interrupted_write(folder)
    working, previous = sibling(folder, "writing"), sibling(folder, "replaced")
    try:
        working.mkdir(parents=True)
        yield working
        write_checksums(working)
        if folder.exists():
            folder.replace(previous)
        working.replace(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def write_checksums(folder: Path) -> None:
    """Flush every file to disk, then write the manifest with their checksums."""
    files = {}
    for name in sorted(list_files(folder)):
        sync(folder / name)
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
    (folder / MANIFEST).write_bytes(_manifest_bytes(files))
    sync(folder / MANIFEST)
    sync(folder)


def verify_checksums(folder: Path, *, largest: Callable[[], int] = lambda: LARGEST_WEIGHTS) -> None:
    """Refuse a folder whose files differ from its manifest, naming the first difference.

    largest  returns the size limit of a safetensors file in bytes; called after the small files are verified
    """
    expected = read_manifest(folder)
    present = list_files(folder)
    if present != set(expected):
        odd = min(present ^ set(expected))
        if odd in expected:
            raise DamagedError(f"{folder / odd} is missing.")
        raise DamagedError(f"{folder / odd} is not listed in the manifest.")
    for name, (size, _) in expected.items():
        found = check_regular_file(folder / name)
        if found != size:
            raise DamagedError(f"{folder / name} has {found:,} bytes, but {size:,} were saved.")
    for name, (size, digest) in sorted(expected.items(), key=lambda item: item[1][0]):
        limit = LARGEST_FILE if size <= LARGEST_FILE or not name.endswith(".safetensors") else largest()
        if size > limit:
            raise DamagedError(f"{folder / name} has {size:,} bytes; at most {limit:,} are allowed for such a file.")
        if _sha256(folder / name) != digest:
            raise DamagedError(f"{folder / name} is damaged: its checksum differs from the saved one.")


def read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """The size and SHA-256 sum of each file listed in the manifest."""
    path = folder / MANIFEST
    try:
        if check_regular_file(path) > LARGEST_MANIFEST:
            raise DamagedError(f"{path} is too large to be a manifest.")
        data = path.read_bytes()
        files = json.loads(data)["files"]
        intact = data == _manifest_bytes(files)
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items() if not is_ignored(name)}
        typed = all(type(size) is int and type(digest) is str for size, digest in expected.values())
    except FileNotFoundError as error:
        raise DamagedError(f"{folder} has no {MANIFEST}: it was never finished, or is not chumoku's.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it is not a valid manifest.") from error
    if not typed:
        raise DamagedError(f"{path} is damaged: it is not a valid manifest.")
    if not intact:
        raise DamagedError(f"{path} is damaged: its formatting was changed.")
    return expected


def list_files(folder: Path) -> set[str]:
    """The names of a folder's files, except the manifest and files that operating systems create."""
    return {name for name in os.listdir(folder) if name != MANIFEST and not is_ignored(name)}


def is_ignored(name: str) -> bool:
    return name in IGNORED or name.startswith(APPLE_DOUBLE)


def check_regular_file(path: Path) -> int:
    """A file's size. Refuses pipes, devices, folders, and links that point outside the file's folder."""
    if is_outside_link(path):
        raise DamagedError(f"{path} is a link to a file outside its folder. Replace it with the file itself.")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{path} is not a regular file. Replace it with the file itself.")
    return found.st_size


def recover_interrupted_write(folder: Path) -> None:
    """Restore the previous folder after an interrupted write, and delete unfinished ones.

    Only the process that writes the folder may call this: a reader would delete a running writer's files.
    """
    previous = sibling(folder, "replaced")
    if previous.exists() and not folder.exists():
        previous.replace(folder)
    for suffix in TEMPORARY_SUFFIXES:
        shutil.rmtree(sibling(folder, suffix), ignore_errors=True)


def delete_folder(folder: Path) -> None:
    """Rename a folder and delete it, so that no partly deleted folder keeps its name."""
    renamed = sibling(folder, "removed")
    folder.replace(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sibling(folder: Path, suffix: str) -> Path:
    """NAME.suffix next to NAME."""
    return folder.with_name(f"{folder.name}.{suffix}")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _manifest_bytes(files: object) -> bytes:
    return json.dumps({"files": files}, sort_keys=True, indent=1).encode()
