"""Checkpoints: the complete state of a run at a step, in a folder with checksums.

    step-00001000/   a bundle (config, model, tokenizer, card), or an adapter and its tensors
                     optimizer.safetensors · average.safetensors · state.json · manifest.json

Data order and all random numbers are functions of (seed, step), so only the step is stored. A checkpoint is written
completely or not at all. A damaged one is renamed to .bad and the one before is used. An old one is deleted only after
the new one has been verified. With train.sharded, each process writes its own part instead of the tensor files.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from chumoku.errors import DamagedError, StorageError
from chumoku.training.checkpoint_files import Tensors, write_files, write_part
from chumoku.training.distributed import World, gather
from chumoku.training.outputs import Result
from chumoku.training.recipe import Recipe
from chumoku.training.state import State
from chumoku.weights.bundle import verify_bundle
from chumoku.weights.checksums import (
    TEMPORARY_SUFFIXES,
    atomic_folder,
    delete_folder,
    recover_interrupted_write,
    sibling,
)


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self, folder: Path, *, keep: int, world: World, notify: Callable[[str], None], sharded: bool = False
    ) -> None:
        self.folder, self.keep, self.world, self.notify, self.sharded = folder, keep, world, notify, sharded

    def steps(self) -> list[int]:
        """The steps of the stored checkpoints, oldest first."""
        names = (path.name for path in self.folder.glob("step-*")) if self.folder.is_dir() else ()
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{8,12}", name))

    @property
    def last_good(self) -> str:
        steps = self.steps()
        return f"the last good checkpoint is {self.path(steps[-1])}" if steps else "there is no earlier checkpoint"

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def heal(self) -> None:
        """Clean up after interrupted writes."""
        for left in [path for end in TEMPORARY_SUFFIXES for path in self.folder.glob(f"step-*.{end}")]:
            recover_interrupted_write(left.with_suffix(""))

    def newest(self) -> Path | None:
        """The newest intact checkpoint; damaged ones are renamed to .bad."""
        return next((path for step in reversed(self.steps()) if self.check_or_set_aside(path := self.path(step))), None)

    def check_or_set_aside(self, path: Path) -> bool:
        """Whether a checkpoint matches its checksums; if not, it is renamed to .bad."""
        try:
            verify_bundle(path)
        except DamagedError as error:
            aside = _unused_name(path)
            path.replace(aside)
            self.notify(f"A checkpoint is damaged and was renamed to {aside}. {error}")
            return False
        return True

    def save(self, state: State, tensors: Tensors, result: Result) -> Path:
        """Write and verify a checkpoint, then delete the oldest. A full disk raises StorageError."""
        path = self.path(state.step)
        gathered = None if self.sharded else _gather(tensors, self.world)
        with contextlib.ExitStack() as stack:
            working = sibling(path, "writing")

            def begin() -> None:
                if self.world.main:
                    stack.enter_context(atomic_folder(path))

            def fill() -> None:
                if gathered is None:
                    write_part(working, tensors, self.world)
                if self.world.main:
                    write_files(working, state, gathered, result)

            def finish() -> None:
                stack.close()
                if self.world.main:
                    self._rotate(path)

            for work in (begin, fill, finish):
                problem = _attempt(work)
                if self.world.sum(float(problem is not None))[0]:  # either all processes continue or all raise
                    raise _disk_error(path, tensors.flatten().values(), problem)
        return path

    def _rotate(self, path: Path) -> None:
        verify_bundle(path)
        for step in self.steps()[: -self.keep]:
            delete_folder(self.path(step))


def export(result: Result, folder: Path, world: World) -> None:
    """Write the current result to a folder. Every process must call this; the main process writes."""
    weights = {name: gather(tensor.detach()) for name, tensor in result.tensors().items()}

    def write() -> None:
        if world.main:
            with atomic_folder(folder) as working:
                result.write(working, weights)

    problem = _attempt(write)
    if world.sum(float(problem is not None))[0]:
        raise _disk_error(folder, weights.values(), problem)


def _attempt(work: Callable[[], None]) -> OSError | DamagedError | None:
    try:
        work()
    except (OSError, DamagedError) as error:
        return error
    return None


def _gather(tensors: Tensors, world: World) -> Tensors:
    """Full tensors on the CPU of the main process; every process must call this."""
    groups = []
    for group in (tensors.model, tensors.optimizer, tensors.average):
        gathered = {}
        for name, tensor in group.items():
            full = gather(tensor.detach())
            if world.main:
                gathered[name] = full.cpu()
        groups.append(gathered)
    return Tensors(*groups)


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The values that differ between two nested mappings, as in `model.width: 64 then, 128 now`."""
    found = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += find_differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {_show(old)} then, {_show(new)} now")
    return found


def disk_needed(parameters: int, recipe: Recipe) -> int:
    """The most bytes a run stores: its checkpoints plus one being written, and the bundles best/ and last/."""
    moments = {"adamw": 2, "sgd": 1, "muon": 2}[recipe.optimizer.kind]
    keep = max(recipe.train.keep_checkpoints, recipe.train.average_checkpoints)
    return 4 * parameters * ((keep + 1) * (1 + moments + bool(recipe.train.ema)) + 2)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise StorageError if the disk cannot hold the run's checkpoints; checked before the first step."""
    stored = [*(folder / "checkpoints").glob("step-*"), folder / "best", folder / "last"]
    used = sum(file.stat().st_size for place in stored for file in place.glob("*"))
    free = shutil.disk_usage(folder).free
    if used + free < needed:
        raise StorageError(
            f"{folder} needs {needed:,} bytes for checkpoints and {free:,} are free. Free some disk space, lower "
            "train.keep_checkpoints, or choose another train.out."
        )


def _disk_error(path: Path, tensors: Iterable[Tensor], problem: Exception | None) -> StorageError:
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free = shutil.disk_usage(path.parent).free
    why = "another process could not write" if problem is None else getattr(problem, "strerror", None) or str(problem)
    return StorageError(f"{path} could not be saved: {why}. It needs about {needed:,} bytes and {free:,} are free.")


def _unused_name(path: Path) -> Path:
    aside = path.with_name(path.name + ".bad")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{path.name}.bad{number}")
        number += 1
    return aside


def _show(value: Any) -> str:
    return "not given" if value is None else f"{value}"[:80]
