"""Output that is not complete yet: one folder NAME.incomplete beside NAME, which only one process uses at a time.

    NAME.incomplete/chumoku.lock    held while its process lives; without it a folder that is not empty is not ours
    NAME.incomplete/…               what is being written

A process that was killed leaves the folder behind. The next one that writes to NAME finds the lock free and removes
what is there.
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
def incomplete_folder(out: Path, *, doing: str = "writes there") -> Iterator[Path]:
    """The folder beside `out`, locked; removed at the end, whatever happens. What a killed process left is in it.

    `doing` says in the error message what the process that already uses the folder does.
    """
    place = out.with_name(f"{out.name}.incomplete")
    ours = place.is_dir() and not place.is_symlink() and ((place / LOCK).is_file() or not any(place.iterdir()))
    if os.path.lexists(place) and not ours:
        raise UsageError(
            f"{place} is needed for files that are not complete yet, and something else is there. Move it away, or "
            "give another name to write to."
        )
    handle = _locked(place, doing)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def remove_leftovers(place: Path) -> None:
    """Empty a locked folder."""
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _locked(place: Path, doing: str) -> int:
    """An open lock in this folder that no other process holds. It is freed when our process ends, in any way."""
    while True:
        place.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # its owner removed the folder a moment ago
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(place / LOCK)):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except BlockingIOError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "another"
            os.close(handle)
            raise BusyError(
                f"{place} is in use: process {owner} {doing}. Wait for it, stop it, or give another name to write to."
            ) from error
        except FileNotFoundError:
            pass
        os.close(handle)
