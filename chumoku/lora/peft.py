"""Adapters in the files of the PEFT library, both ways.

    adapter_config.json          r, lora_alpha, use_dora, use_rslora, target_modules …
    adapter_model.safetensors    base_model.model.{module}.lora_A.weight [r, in]     .lora_B.weight [out, r]
                                 .lora_magnitude_vector [out], for DoRA
    README.md                    a card

Modules bear the transformers library's names where a family's rows give them, else ours. Files that are read are
untrusted: every key that changes the result is known or refused by its name, and every tensor's name, type and shape
is checked against the model before any is read.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from chumoku.errors import DamagedError, UsageError
from chumoku.lora.adapter_config import CONFIG, WEIGHTS, AdapterConfig, read_adapter_config
from chumoku.lora.adapters import Matrix, adaptable_matrices, add_adapters, base_layer, get_adapters, new_low_rank
from chumoku.lora.layout import AdapterTensors, MatrixMap, Part, RowLike, map_matrices, to_ours, to_theirs
from chumoku.models.model import Model
from chumoku.nn.lora import LowRank
from chumoku.safe_files import check_header

CARD, PREFIX, PARTS_KEY = "README.md", "base_model.model.", "chumoku.parts"
TENSOR_SUFFIXES = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
SUFFIX_KINDS = {end.removesuffix(".weight"): kind for kind, end in TENSOR_SUFFIXES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
LARGEST_PARTS = 1 << 20
TASKS = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}


def save(
    model: Model,
    folder: Path | str,
    *,
    base: str,
    name: str | None = None,
    rows: Sequence[RowLike] | None = None,
) -> None:
    """Write an adapter (the active one, if none is named) as PEFT does; `base` is what it says it belongs to."""
    folder, adapters = Path(folder), get_adapters(model, name)
    known, theirs = adaptable_matrices(model), {}
    for place in map_matrices(model, rows).values():
        if any(path in adapters for path in place.ours):
            theirs[place] = to_theirs(place, known, adapters)
    lost = set(adapters).difference(*(place.ours for place in theirs))
    if lost:
        raise UsageError(f"{min(lost)} has no counterpart in the other library's model. Save without its names.")
    tensors = {
        f"{PREFIX}{place.theirs}.{end}": tensor.detach().cpu().contiguous()
        for place, thin in theirs.items()
        for kind, end in TENSOR_SUFFIXES.items()
        if (tensor := getattr(thin, kind)) is not None
    }
    parts = {place.theirs: thin.parts for place, thin in theirs.items() if thin.parts}
    marks = {"format": "pt"} | ({PARTS_KEY: json.dumps(parts)} if parts else {})
    folder.mkdir(parents=True, exist_ok=True)
    # The config comes last: without it nothing takes the folder for an adapter.
    _write(folder / WEIGHTS, to_bytes(tensors, metadata=marks))
    _write(folder / CARD, _card(base, tensors).encode())
    values = _make_config(model, theirs, next(iter(adapters.values())), base)
    _write(folder / CONFIG, json.dumps(values, indent=2, sort_keys=True).encode())


def load(
    model: Model, folder: Path | str, *, name: str = "default", rows: Sequence[RowLike] | None = None
) -> AdapterConfig:
    """Attach the adapter that a folder holds, and make it the active one."""
    folder = Path(folder)
    described, known, table = read_adapter_config(folder), adaptable_matrices(model), map_matrices(model, rows)
    adapters = {}
    for place, thin in _read_tensors(folder / WEIGHTS, described, table, known):
        for path, one in to_ours(place, known, thin).items():
            adapters[path] = _make_low_rank(known[path], one, described)
    add_adapters(model, adapters, name=name)
    return described


def _make_low_rank(module: Matrix, thin: AdapterTensors, described: AdapterConfig) -> LowRank:
    low = new_low_rank(
        base_layer(module),
        len(thin.a),
        alpha=thin.alpha,
        stabilised=described.stabilised,
        dropout=described.dropout,
        magnitude=described.dora,
    )
    with torch.no_grad():
        low.a.copy_(thin.a)
        low.b.copy_(thin.b)
        if low.magnitude is not None and thin.magnitude is not None:
            low.magnitude.copy_(thin.magnitude)
    return low


class FileEntry(NamedTuple):
    """One of their matrices in a file: by which name, what it is here, and the keys of its tensors."""

    module: str
    place: MatrixMap
    keys: dict[str, str]


def _read_tensors(
    path: Path, described: AdapterConfig, table: Mapping[str, MatrixMap], known: Mapping[str, Matrix]
) -> list[tuple[MatrixMap, AdapterTensors]]:
    """Each of their matrices and what the file holds for it; all are checked before the first is read."""
    check_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as stored:
            found = _match_tensors(path, stored.keys(), table)
            for one in found:
                _check(path, one, described, known, {kind: stored.get_slice(key) for kind, key in one.keys.items()})
            parts = _parts(path, (stored.metadata() or {}).get(PARTS_KEY), found, described)
            read = []
            for one in found:
                tensors: dict[str, Tensor] = {kind: stored.get_tensor(key) for kind, key in one.keys.items()}
                alpha = described.alpha_of(one.module)
                read.append(
                    (
                        one.place,
                        AdapterTensors(tensors["a"], tensors["b"], tensors.get("magnitude"), alpha, parts[one.module]),
                    )
                )
            return read
    except SafetensorError as error:
        raise DamagedError(f"{path} does not read as safetensors: {str(error)[:200]}.") from error
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error


def _match_tensors(path: Path, names: Iterable[str], table: Mapping[str, MatrixMap]) -> list[FileEntry]:
    """The file's matrices in this model. Theirs may lack or have one part in front: a task's model has its own."""
    shorter = {theirs.partition(".")[2]: place for theirs, place in table.items()}
    if len(shorter) < len(table):
        shorter = {}  # two matrices are called so
    found: dict[str, FileEntry] = {}
    for name in names:
        module, _, end = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if end not in SUFFIX_KINDS or not name.startswith(PREFIX):
            raise UsageError(f"{path} has the tensor {name[:200]}, which is no part of a LoRA adapter of matrices.")
        place = table.get(module) or shorter.get(module) or table.get(module.partition(".")[2])
        if place is None:
            near = difflib.get_close_matches(module[:200], table, n=1)
            hint = f" Did its model have {near[0]}?" if near else ""
            raise UsageError(f"{path} adapts {module[:200]}, and this model has no such matrix.{hint}")
        one = found.setdefault(place.theirs, FileEntry(module, place, {}))
        if one.module != module or SUFFIX_KINDS[end] in one.keys:
            raise DamagedError(f"{path} adapts {place.theirs} twice.")
        one.keys[SUFFIX_KINDS[end]] = name
    if not found:
        raise DamagedError(f"{path} holds no tensors.")
    return list(found.values())


def _check(
    path: Path, found: FileEntry, described: AdapterConfig, known: Mapping[str, Matrix], slices: Mapping[str, Any]
) -> None:
    module, ours = found.module, found.place.ours
    inputs, outputs = known[ours[0]].in_features, sum(known[one].out_features for one in ours)
    rank = described.rank_of(module)
    wanted = {"a": [rank, inputs], "b": [outputs, rank]} | ({"magnitude": [outputs]} if described.dora else {})
    if set(found.keys) != set(wanted):
        raise DamagedError(f"{path} has {', '.join(sorted(found.keys))} for {module} and needs {', '.join(wanted)}.")
    for kind, shape in wanted.items():
        one = slices[kind]
        if list(one.get_shape()) != shape:
            raise UsageError(f"{path}: {found.keys[kind]} is {one.get_shape()}, and this model needs {shape}.")
        if one.get_dtype() not in FLOATS:
            raise UsageError(f"{path}: {found.keys[kind]} holds {one.get_dtype()}; {', '.join(FLOATS)} are taken.")


def _parts(
    path: Path, marked: str | None, found: Sequence[FileEntry], described: AdapterConfig
) -> dict[str, tuple[Part, ...]]:
    """How joined matrices are taken apart, where the file says so: it was then written here."""
    parts: dict[str, tuple[Part, ...]] = {one.module: () for one in found}
    if marked is None:
        return parts
    try:
        if len(marked) > LARGEST_PARTS:
            raise ValueError("too long")
        table = json.loads(marked)
        for one in found:
            if one.place.theirs in table:
                own = tuple(Part(*numbers) for numbers in table[one.place.theirs])
                _check_parts(own, one, described)
                parts[one.module] = own
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedError(f"{path} says wrongly how its matrices were joined: {str(error)[:200]}.") from error
    return parts


def _check_parts(parts: Sequence[Part], found: FileEntry, described: AdapterConfig) -> None:
    rank, alpha = described.rank_of(found.module), described.alpha_of(found.module)
    if not parts or len({part.number for part in parts}) != len(parts):
        raise ValueError("a matrix is there twice, or none is")
    for part in parts:
        whole = all(type(number) is int for number in part[:3]) and type(part.alpha) is float
        if not whole or not 0 <= part.number < len(found.place.ours):
            raise ValueError("there is no such matrix")
        if part.rank < 1 or part.first < 0 or part.first + part.rank > rank:
            raise ValueError(f"rows {part.first} to {part.first + part.rank} of {rank}")
        ratio = part.rank / rank
        if not math.isclose(part.alpha, alpha * (math.sqrt(ratio) if described.stabilised else ratio), rel_tol=1e-9):
            raise ValueError("another scale than the whole has")


def _make_config(model: Model, theirs: Mapping[MatrixMap, AdapterTensors], like: LowRank, base: str) -> dict[str, Any]:
    ranks = {place.theirs: len(thin.a) for place, thin in theirs.items()}
    alphas = {place.theirs: _number(thin.alpha) for place, thin in theirs.items()}
    # The most common are the adapter's own; the rest are named.
    rank, alpha = (max(table.values(), key=list(table.values()).count) for table in (ranks, alphas))
    return {
        "peft_type": "LORA",
        "task_type": TASKS.get(model.config.kind),
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": like.dropout,
        "rank_pattern": {module: one for module, one in ranks.items() if one != rank},
        "alpha_pattern": {module: one for module, one in alphas.items() if one != alpha},
        "target_modules": sorted(ranks),
        "fan_in_fan_out": any(place.transposed for place in theirs),
        "use_dora": like.magnitude is not None,
        "use_rslora": like.stabilised,
        "bias": "none",
        "init_lora_weights": True,
        "modules_to_save": None,
    }


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _card(base: str, tensors: Mapping[str, Tensor]) -> str:
    numbers = sum(tensor.numel() for tensor in tensors.values())
    lines = [
        "---",
        f"base_model: {json.dumps(base)}",
        "library_name: peft",
        "tags:",
        "- lora",
        "---",
        "",
        "# An adapter",
        "",
        f"{numbers:,} numbers beside the matrices of {base}. Written by chumoku; PEFT reads it too.",
        "",
    ]
    return "\n".join(lines)


def _write(path: Path, data: bytes) -> None:
    """The file as a whole, or not at all."""
    working = path.with_name(f"{path.name}.writing")
    working.write_bytes(data)
    working.replace(path)
