"""Opens checkpoints of a training run while the run may be replacing or deleting them.

    identity    inodes and times of the folder and its manifest

The identity is compared before and after reading. If it changed, the files could come from two checkpoints, so they are
read again. Only regular files are opened, because reading a pipe or a device may block forever. The weights are copied
into memory, so later changes to the files have no effect.
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
MAX_CACHED = 3  # models
MAX_FILES, MAX_BYTES = 64, 1 << 36  # of one checkpoint, all files together
RETRY_SECONDS, RETRY_PAUSE = 5.0, 0.02  # while a checkpoint is being replaced
Identity = tuple[int, ...]


class UnknownRun(UsageError):
    """There is no run, or no checkpoint of the run, with this name."""


class UnreadableCheckpoint(UsageError):
    """The checkpoint exists, but its files are not valid."""


class Checkpoints:
    """Opens checkpoints and caches the last few."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[Path, Identity], bundle.Bundle] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, run: Path, step: int) -> bundle.Bundle:
        """The model of a run at a step."""
        end = time.monotonic() + RETRY_SECONDS
        while True:
            steps = list_checkpoints(run)
            if step not in steps:
                raise UnknownRun(f"The run {run.name} has no checkpoint of step {step}. It has {list_names(steps)}.")
            path = steps[step]
            before = identity(path)
            if before is not None:
                loaded = self._cached(path, before) or read_checkpoint(path, before)
                if loaded is not None and identity(path) == before:
                    return self._store(path, before, loaded)
            if time.monotonic() > end:
                raise UnknownRun(f"The checkpoint {path.name} no longer exists. Reload the list of runs.")
            time.sleep(RETRY_PAUSE)

    def _cached(self, path: Path, which: Identity) -> bundle.Bundle | None:
        with self._lock:
            return self._cache.get((path, which))

    def _store(self, path: Path, which: Identity, loaded: bundle.Bundle) -> bundle.Bundle:
        with self._lock:
            self._cache[path, which] = loaded
            self._cache.move_to_end((path, which))
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return loaded


def read_checkpoint(path: Path, before: Identity) -> bundle.Bundle | None:
    """The model in a folder, or None if the folder changed while it was read."""
    try:
        check_regular(path)
        loaded = bundle.load(path)
        copy_into_memory(loaded.model)
    except Exception as error:  # damaged files can raise anything
        if identity(path) != before:
            return None
        log.warning("%s cannot be read", path, exc_info=error)
        if isinstance(error, UnreadableCheckpoint):
            raise
        raise UsageError(
            f"This checkpoint cannot be read: the files of {path.name} are damaged or incomplete."
        ) from error
    return loaded


def list_checkpoints(run: Path) -> dict[int, Path]:
    """Step → folder. For a checkpoint that is being replaced, the folder of its old version."""
    folder = run / "checkpoints"
    if not folder.is_dir() or is_outside_link(folder):
        return {}
    folders = {}
    for path in sorted(folder.iterdir(), reverse=True):  # step-… comes after step-….replaced and overrides it
        match = STEP.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            folders[int(match[1])] = path
    return folders


def identity(path: Path) -> Identity | None:
    """Identity of the checkpoint at a path, or None if the path does not exist."""
    try:
        folder, manifest = path.lstat(), (path / "manifest.json").lstat()
    except OSError:
        return None
    return (folder.st_ino, folder.st_mtime_ns, manifest.st_ino, manifest.st_mtime_ns, manifest.st_size)


def check_regular(folder: Path) -> None:
    """Raise an error if the folder contains anything but regular files, or too many, or too large ones."""
    size = 0
    with os.scandir(folder) as entries:
        for number, entry in enumerate(itertools.islice(entries, MAX_FILES + 1)):
            info = entry.stat(follow_symlinks=False)
            size += info.st_size
            if not stat.S_ISREG(info.st_mode):
                raise UnreadableCheckpoint(f"This checkpoint cannot be read: {entry.name[:80]} is not a regular file.")
            if number == MAX_FILES or size > MAX_BYTES:
                raise UnreadableCheckpoint(
                    f"This checkpoint cannot be read: it has more than {MAX_FILES} files or {MAX_BYTES:,} bytes."
                )


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for a pipe or a device, without waiting for its writer."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path.name} is not a regular file.")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def list_names(names: object) -> str:
    """The first ten names, joined by commas."""
    shown = [str(name)[:80] for name in sorted(names)]  # type: ignore[call-overload]
    return ", ".join([*shown[:10], *(["…"] if len(shown) > 10 else [])]) or "none"
