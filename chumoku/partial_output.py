"""Incomplete output: files are first written to a folder NAME.incomplete, which only one process may use at a time.

    NAME.incomplete/chumoku.lock    locked while its process runs; a non-empty folder without this file is not touched
    NAME.incomplete/…               the files being written

A killed process leaves the folder behind. The next process that writes to NAME can lock it and removes the files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chumoku.errors import BusyError, UsageError

LOCK = "chumoku.lock"


@contextmanager
def incomplete_folder(out: Path, *, activity: str = "is writing there") -> Iterator[Path]:
    """Create and lock the folder `out`.incomplete; remove it at the end. It may have files of a killed process.

    activity: what the process that already uses the folder is doing, for the error message.
    """
    folder = out.with_name(f"{out.name}.incomplete")
    ours = folder.is_dir() and not folder.is_symlink() and ((folder / LOCK).is_file() or not any(folder.iterdir()))
    if os.path.lexists(folder) and not ours:
        raise UsageError(
            f"{folder} is needed for incomplete files, but something else is there. Move it away, or write to another "
            "name."
        )
    handle = _lock(folder, activity)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove all files in a locked folder except its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _lock(folder: Path, activity: str) -> int:
    """Lock the folder and return the open lock file; the system unlocks it when this process ends."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # another process just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(folder / LOCK)):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except BlockingIOError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "another"
            os.close(handle)
            raise BusyError(
                f"{folder} is in use: process {owner} {activity}. Wait for it, stop it, or write to another name."
            ) from error
        except FileNotFoundError:
            pass
        os.close(handle)
