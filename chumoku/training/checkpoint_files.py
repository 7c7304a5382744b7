"""Writes and reads the files of a checkpoint.

    bundle or adapter · model.safetensors    the trained tensors
    optimizer.safetensors                    name:exp_avg, name:exp_avg_sq, name:step …
    average.safetensors                      the moving average of the weights, if enabled
    state.json                               step, tokens, best loss …
    part-00000-of-00002.safetensors          sharded: one process's part of all three, instead of the files above

Files may come from untrusted sources: names, shapes and types of all tensors are checked before any is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chumoku.errors import DamagedError
from chumoku.safe_files import check_safetensors_header
from chumoku.training.distributed import World, distribute_like, local_part
from chumoku.training.outputs import Result
from chumoku.training.state import State
from chumoku.weights.bundle import WEIGHTS, save_tensors
from chumoku.weights.checksums import check_regular_file

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
AVERAGE = "average.safetensors"
LARGEST_STATE = 1 << 20
LARGEST_COUNT = 1 << 62  # of steps, tokens …


@dataclass(frozen=True)
class Tensors:
    """The tensors of a run by name, sharded or not."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    average: Mapping[str, Tensor]

    def flatten(self) -> dict[str, Tensor]:
        """All tensors by `group/name`."""
        groups = (("model", self.model), ("optimizer", self.optimizer), ("average", self.average))
        return {f"{group}/{name}": tensor for group, tensors in groups for name, tensor in tensors.items()}


def write_files(folder: Path, state: State, tensors: Tensors | None, result: Result) -> None:
    if tensors is not None:
        result.write(folder, tensors.model)
        if not (folder / WEIGHTS).exists():  # an adapter is written in PEFT's format
            save_tensors(tensors.model, folder / WEIGHTS)
        save_tensors(tensors.optimizer, folder / OPTIMIZER)
        if tensors.average:
            save_tensors(tensors.average, folder / AVERAGE)
    (folder / STATE).write_text(json.dumps(asdict(state), indent=1, ensure_ascii=False), encoding="utf-8")


def write_part(folder: Path, tensors: Tensors, world: World) -> None:
    mine = {}
    for name, tensor in tensors.flatten().items():
        divided = local_part(tensor.detach())
        if divided is not None:
            mine[name] = divided
        elif world.main:
            mine[name] = tensor
    save_tensors(mine, folder / f"part-{world.rank:05}-of-{world.size:05}.safetensors")


def read_state(path: Path) -> State:
    """The state of a checkpoint; DamagedError if a value has the wrong type or range."""
    try:
        if check_regular_file(path / STATE) > LARGEST_STATE:
            raise DamagedError(f"{path / STATE} is too large to be a state file.")
        state = State(**json.loads((path / STATE).read_text(encoding="utf-8")))
        counts = (state.step, state.tokens, state.judged, state.waited, state.bad, state.scale_good)
        numbers = (state.seconds, state.scale, 0.0 if state.best is None else state.best)
        if not all(type(value) is int and 0 <= value < LARGEST_COUNT for value in counts):
            raise ValueError("a count is not a whole number, or out of range")
        if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers) or state.scale <= 0:
            raise ValueError("a number is not finite, or out of range")
        if not isinstance(state.origin, dict):
            raise ValueError("origin is not a table")
    except (ValueError, TypeError, OverflowError, RecursionError, OSError) as error:
        raise DamagedError(f"{path / STATE} is not a valid state file: {str(error)[:200]}.") from error
    return state


def read_tensors(path: Path) -> Tensors:
    """All tensors of a verified checkpoint; sharded parts are joined."""
    if (path / WEIGHTS).exists():
        return Tensors(*(_read_file(path / name) for name in (WEIGHTS, OPTIMIZER, AVERAGE)))
    pieces = [_read_file(file) for file in sorted(path.glob("part-*.safetensors"))]
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}}
    for key in {key: None for piece in pieces for key in piece}:
        group, _, name = key.partition("/")
        if group not in groups:
            raise DamagedError(f"{path} has the tensor {key[:200]}, which is not part of a checkpoint.")
        groups[group][name] = _concatenate(path, key, [piece[key] for piece in pieces if key in piece])
    return Tensors(**groups)


def _concatenate(path: Path, key: str, rows: list[Tensor]) -> Tensor:
    if len(rows) == 1:
        return rows[0]
    if len({(row.dtype, row.ndim, row.shape[1:]) for row in rows}) > 1 or rows[0].ndim == 0:
        raise DamagedError(f"{path}: the parts of {key[:200]} have different shapes or types.")
    return torch.cat(rows)


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    check_regular_file(path)
    check_safetensors_header(path)
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as error:
        raise DamagedError(f"{path} is not a valid safetensors file: {str(error)[:200]}.") from error


def check_tensors(path: Path, found: Tensors, needed: Tensors) -> None:
    """Raise DamagedError if a checkpoint's tensors are not those of the run.

    A parameter that never had a gradient has no optimizer state; every other one must have all of it.
    """
    check_group(path, found.model, needed.model)
    check_group(path, found.average, needed.average)
    updated = {name.rpartition(":")[0] for name in found.optimizer}
    moments = {name: like for name, like in needed.optimizer.items() if name.rpartition(":")[0] in updated}
    check_group(path, found.optimizer, moments)


def check_group(path: Path, found: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> None:
    if found.keys() != needed.keys():
        odd = min(found.keys() ^ needed.keys())
        if odd in found:
            raise DamagedError(f"{path} has the tensor {odd[:200]}: it belongs to another run.")
        raise DamagedError(f"{path} lacks the tensor {odd[:200]}: it belongs to another run.")
    for name, like in needed.items():
        one = found[name]
        if (one.shape, one.dtype) != (like.shape, like.dtype):
            kinds = [f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}" for tensor in (one, like)]
            raise DamagedError(f"{path}: {name} is {kinds[0]}, but this run needs {kinds[1]}.")


def load_weights(result: Result, values: Mapping[str, Tensor]) -> None:
    """Copy full tensors into the trained tensors, sharded as those are."""
    with torch.no_grad():
        for name, tensor in result.tensors().items():
            tensor.copy_(distribute_like(tensor.detach(), values[name]))


def average_weights(paths: Sequence[Path], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean weights of several checkpoints, summed in float64; names and shapes must be those of `like`."""
    total = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in like.items()}
    for path in paths:
        weights = read_tensors(path).model
        check_group(path, weights, like)
        for name, tensor in weights.items():
            total[name] += tensor
    return {name: (tensor / len(paths)).to(like[name].dtype) for name, tensor in total.items()}
