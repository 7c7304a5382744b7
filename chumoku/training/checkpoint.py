"""Checkpoints: everything a run is at a step, in a sealed folder.

    step-00001000/   a bundle (config, model, tokenizer, card), or an adapter and its tensors
                     optimizer.safetensors · average.safetensors · state.json · manifest.json

Order of data and all randomness are functions of (seed, step), so the step stands for both. A checkpoint is whole or
it is not there; a damaged one is set aside as .bad and the one before is used; an old one goes only after the new one
has been read back. Sharded, each process writes its own part instead of the bundle and the two other tensor files.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chumoku.errors import DamagedError, RoomError
from chumoku.training.distributed import World, laid_out_as, part, whole
from chumoku.training.recipe import Recipe
from chumoku.training.result import Result
from chumoku.training.state import State
from chumoku.weights.bundle import WEIGHTS, store
from chumoku.weights.sealed import ENDS, beside, heal, remove, sealed, verify

STATE = "state.json"
OPTIMISER = "optimizer.safetensors"
AVERAGE = "average.safetensors"
LARGEST_STATE = 1 << 20


@dataclass(frozen=True)
class Tensors:
    """The tensors of a run, by name; divided among processes or not."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    average: Mapping[str, Tensor]

    def named(self) -> dict[str, Tensor]:
        groups = (("model", self.model), ("optimizer", self.optimizer), ("average", self.average))
        return {f"{group}/{name}": tensor for group, tensors in groups for name, tensor in tensors.items()}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self, folder: Path, *, keep: int, here: World, say: Callable[[str], None], sharded: bool = False
    ) -> None:
        self.folder, self.keep, self.here, self.say, self.sharded = folder, keep, here, say, sharded

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first."""
        names = (path.name for path in self.folder.glob("step-*")) if self.folder.is_dir() else ()
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{8,12}", name))

    @property
    def described(self) -> str:
        steps = self.steps()
        return f"the last good state is {self.path(steps[-1])}" if steps else "nothing had been saved before"

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def heal(self) -> None:
        """Clear away what interrupted writings left."""
        for left in [path for end in ENDS for path in self.folder.glob(f"step-*.{end}")]:
            heal(left.with_suffix(""))

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; damaged ones are set aside."""
        return next((path for step in reversed(self.steps()) if self.is_whole(path := self.path(step))), None)

    def is_whole(self, path: Path) -> bool:
        """Whether a checkpoint is what was saved; if not, it is set aside."""
        try:
            verify(path)
        except DamagedError as error:
            aside = _free_name(path)
            path.replace(aside)
            self.say(f"A checkpoint is damaged and was set aside as {aside}. {error}")
            return False
        return True

    def save(self, state: State, tensors: Tensors, result: Result) -> Path:
        """Write a checkpoint, read it back, and only then let the oldest go. A full disk raises RoomError."""
        path = self.path(state.step)
        gathered = None if self.sharded else _gathered(tensors, self.here)
        with contextlib.ExitStack() as stack:
            working = beside(path, "writing")

            def begin() -> None:
                if self.here.main:
                    stack.enter_context(sealed(path))

            def fill() -> None:
                if gathered is None:
                    _write_part(working, tensors, self.here)
                if self.here.main:
                    _write_rest(working, state, gathered, result)

            def finish() -> None:
                stack.close()
                if self.here.main:
                    self._rotate(path)

            for work in (begin, fill, finish):
                problem = _attempt(work)
                if self.here.sum(float(problem is not None))[0]:  # all go on, or all give up
                    raise _no_room(path, tensors.named().values(), problem)
        return path

    def _rotate(self, path: Path) -> None:
        verify(path)
        for step in self.steps()[: -self.keep]:
            remove(self.path(step))


def export(result: Result, folder: Path, here: World) -> None:
    """What was learnt, as it is now; everyone takes part, the first process writes."""
    weights = {name: whole(tensor.detach()) for name, tensor in result.tensors().items()}

    def write() -> None:
        if here.main:
            with sealed(folder) as working:
                result.write(working, weights)

    problem = _attempt(write)
    if here.sum(float(problem is not None))[0]:
        raise _no_room(folder, weights.values(), problem)


def _attempt(work: Callable[[], None]) -> OSError | DamagedError | None:
    try:
        work()
    except (OSError, DamagedError) as error:
        return error
    return None


def _gathered(tensors: Tensors, here: World) -> Tensors:
    """Whole tensors in main memory on the first process; every process must take part."""
    groups = []
    for group in (tensors.model, tensors.optimizer, tensors.average):
        made = {}
        for name, tensor in group.items():
            together = whole(tensor.detach())
            if here.main:
                made[name] = together.cpu()
        groups.append(made)
    return Tensors(*groups)


def _write_rest(folder: Path, state: State, tensors: Tensors | None, result: Result) -> None:
    if tensors is not None:
        result.write(folder, tensors.model)
        if not (folder / WEIGHTS).exists():  # an adapter's own files are in another library's words
            store(tensors.model, folder / WEIGHTS)
        store(tensors.optimizer, folder / OPTIMISER)
        if tensors.average:
            store(tensors.average, folder / AVERAGE)
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1, ensure_ascii=False), encoding="utf-8")


def _write_part(folder: Path, tensors: Tensors, here: World) -> None:
    mine = {}
    for name, tensor in tensors.named().items():
        divided = part(tensor.detach())
        if divided is not None:
            mine[name] = divided
        elif here.main:
            mine[name] = tensor
    store(mine, folder / f"part-{here.rank:05}-of-{here.size:05}.safetensors")


def read_state(path: Path) -> State:
    """The numbers of a checkpoint, each of its kind."""
    try:
        if (path / STATE).stat().st_size > LARGEST_STATE:
            raise DamagedError(f"{path / STATE} is larger than any state is.")
        state = State(**json.loads((path / STATE).read_text(encoding="utf-8")))
        best = 0.0 if state.best is None else state.best
        whole_numbers = (state.step, state.tokens, state.judged, state.waited, state.bad, state.scale_good)
        fits = all(type(value) is int and value >= 0 for value in whole_numbers) and isinstance(state.origin, dict)
        if not fits or not all(isinstance(value, (int, float)) for value in (state.seconds, state.scale, best)):
            raise ValueError("a number is not of its kind")
    except (ValueError, TypeError, RecursionError, OSError) as error:
        raise DamagedError(f"{path / STATE} does not read as the state of a run: {str(error)[:200]}.") from error
    return state


def read_tensors(path: Path) -> Tensors:
    """All tensors of a verified checkpoint, whole, whoever wrote it."""
    try:
        if (path / WEIGHTS).exists():
            return Tensors(*(_file(path / name) for name in (WEIGHTS, OPTIMISER, AVERAGE)))
        pieces = [_file(file) for file in sorted(path.glob("part-*.safetensors"))]
    except SafetensorError as error:
        raise DamagedError(f"{path} does not read as safetensors: {error}.") from error
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}}
    for key, first in pieces[0].items():
        group, _, name = key.partition("/")
        rows = [piece[key] for piece in pieces if key in piece]
        groups[group][name] = torch.cat(rows) if len(rows) > 1 else first
    return Tensors(**groups)


def _file(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    with safe_open(path, framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a mapping


def restore(result: Result, values: Mapping[str, Tensor]) -> None:
    """Put whole tensors into what is trained, divided as it is."""
    with torch.no_grad():
        for name, tensor in result.tensors().items():
            tensor.copy_(laid_out_as(tensor.detach(), values[name]))


def mean(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        weights = read_tensors(path).model
        for name, tensor in weights.items():
            total[name] = tensor.double() + total[name] if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(weights[name].dtype) for name, tensor in total.items()}


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What a run was made of and is now made of, where they differ: `model.width: 64 then, 128 now`."""
    found = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}: {_shown(old)} then, {_shown(new)} now")
    return found


def bytes_kept(numbers: int, recipe: Recipe) -> int:
    """What a run of so many numbers keeps at its most: checkpoints, one more than is kept, and two bundles."""
    moments = {"adamw": 2, "sgd": 1, "muon": 2}[recipe.optimizer.kind]
    keep = max(recipe.train.keep, recipe.train.average)
    return 4 * numbers * ((keep + 1) * (1 + moments + bool(recipe.train.ema)) + 2)


def check_room(folder: Path, needed: int) -> None:
    """Refuse, before the first step, a disk that cannot hold what the run will keep."""
    kept = [*(folder / "checkpoints").glob("step-*"), folder / "best", folder / "last"]
    there = sum(file.stat().st_size for place in kept for file in place.glob("*"))
    free = shutil.disk_usage(folder).free
    if there + free < needed:
        raise RoomError(
            f"{folder} will need {needed:,} bytes for checkpoints and {free:,} are free. Free some, lower train.keep, "
            "or choose another train.out."
        )


def _no_room(path: Path, tensors: Iterable[Tensor], problem: Exception | None) -> RoomError:
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    free = shutil.disk_usage(path.parent).free
    why = "another process could not write" if problem is None else getattr(problem, "strerror", None) or str(problem)
    return RoomError(f"{path} could not be saved: {why}. It needs about {needed:,} bytes and {free:,} are free.")


def _free_name(path: Path) -> Path:
    aside = path.with_name(path.name + ".bad")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{path.name}.bad{number}")
        number += 1
    return aside


def _shown(value: Any) -> str:
    return "not given" if value is None else f"{value}"[:80]
