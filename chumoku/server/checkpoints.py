"""Models of a run's checkpoints, opened while the run may be replacing or removing them.

    identity    which folder and manifest lie at a path: inodes and times

A checkpoint is read, and its identity compared with what it was before. If it has changed, the answer could be of two
checkpoints, so it is read again. Only regular files are opened, since reading a pipe or a device may never end. The
weights are copied, so what happens to the files later does not matter.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO

from chumoku.errors import UsageError
from chumoku.safe_files import is_outside_link
from chumoku.weights import bundle
from chumoku.weights.in_memory import copy_into_memory

log = logging.getLogger("chumoku.server")
STEP = re.compile(r"step-([0-9]{8,12})(\.replaced)?")
MOST_HELD = 3  # models
MOST_FILES, LARGEST = 64, 1 << 36  # of one checkpoint; bytes of all its files
PATIENCE, PAUSE = 5.0, 0.02  # seconds in which a checkpoint that is being replaced is read again
Identity = tuple[int, ...]


class UnknownRun(UsageError):
    """No run, or no checkpoint of a run, has this name."""


class Unreadable(UsageError):
    """The checkpoint is there, and its files are not what they should be."""


class Checkpoints:
    """Opens checkpoints, and keeps the last few."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Path, Identity], bundle.Bundle] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, run: Path, step: int) -> bundle.Bundle:
        """The model that a run was at a step."""
        end = time.monotonic() + PATIENCE
        while True:
            steps = checkpoints(run)
            if step not in steps:
                raise UnknownRun(f"The run {run.name} has no checkpoint of step {step}. It has {listed(steps)}.")
            path = steps[step]
            before = identity(path)
            if before is not None:
                found = self._known(path, before) or read(path, before)
                if found is not None and identity(path) == before:
                    return self._hold(path, before, found)
            if time.monotonic() > end:
                raise UnknownRun(f"The checkpoint {path.name} is not there any more. Ask for the list again.")
            time.sleep(PAUSE)

    def _known(self, path: Path, which: Identity) -> bundle.Bundle | None:
        with self._lock:
            return self._held.get((path, which))

    def _hold(self, path: Path, which: Identity, found: bundle.Bundle) -> bundle.Bundle:
        with self._lock:
            self._held[path, which] = found
            self._held.move_to_end((path, which))
            while len(self._held) > MOST_HELD:
                self._held.popitem(last=False)
        return found


def read(path: Path, before: Identity) -> bundle.Bundle | None:
    """The model of a folder; None where the folder changed meanwhile."""
    try:
        check_regular(path)
        found = bundle.load(path)
        copy_into_memory(found.model)
    except Exception as error:  # whatever is wrong with it, and wherever it lies
        if identity(path) != before:
            return None
        log.warning("%s cannot be read", path, exc_info=error)
        if isinstance(error, Unreadable):
            raise
        raise UsageError(
            f"This checkpoint cannot be read: the files of {path.name} are not those that were saved."
        ) from error
    return found


def checkpoints(run: Path) -> dict[int, Path]:
    """Checkpoints by their step; of one that is just being replaced, what it was before."""
    folder = run / "checkpoints"
    if not folder.is_dir() or is_outside_link(folder):
        return {}
    found = {}
    for path in sorted(folder.iterdir(), reverse=True):  # step-….replaced comes before step-…, which counts
        match = STEP.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found[int(match[1])] = path
    return found


def identity(path: Path) -> Identity | None:
    """Which checkpoint lies at a path; None where there is none."""
    try:
        folder, manifest = path.lstat(), (path / "manifest.json").lstat()
    except OSError:
        return None
    return (folder.st_ino, folder.st_mtime_ns, manifest.st_ino, manifest.st_mtime_ns, manifest.st_size)


def check_regular(folder: Path) -> None:
    """Refuse a folder in which anything but regular files lies, or too many, or too large ones."""
    size = 0
    with os.scandir(folder) as entries:
        for number, entry in enumerate(itertools.islice(entries, MOST_FILES + 1)):
            info = entry.stat(follow_symlinks=False)
            size += info.st_size
            if not stat.S_ISREG(info.st_mode):
                raise Unreadable(f"This checkpoint cannot be read: {entry.name[:80]} is not a regular file.")
            if number == MOST_FILES or size > LARGEST:
                raise Unreadable(
                    f"This checkpoint cannot be read: it has more than {MOST_FILES} files or {LARGEST:,} bytes."
                )


def open_regular(path: Path) -> BinaryIO:
    """A file for reading. A pipe or a device is an OSError; opening it does not wait for anybody to write."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path.name} is not a regular file.")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def listed(names: object) -> str:
    """A few names in a line."""
    some = [str(name)[:80] for name in sorted(names)]  # type: ignore[call-overload]
    return ", ".join([*some[:10], *(["…"] if len(some) > 10 else [])]) or "none"
