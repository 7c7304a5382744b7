"""Read and write adapters in the PEFT library's format.

    adapter_config.json          r, lora_alpha, use_dora, use_rslora, target_modules …
    adapter_model.safetensors    base_model.model.{module}.lora_A.weight [r, in]     .lora_B.weight [out, r]
                                 .lora_magnitude_vector [out], for DoRA
    README.md                    model card

Modules have the transformers library's names if a family's rows are given, else ours. Files are untrusted: unknown keys
that may change the result are refused, and every tensor's name, type and shape is checked before any is read.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from chumoku.errors import DamagedError, UsageError, did_you_mean
from chumoku.lora.adapter_config import CONFIG, WEIGHTS, AdapterConfig, read_adapter_config
from chumoku.lora.adapters import Matrix, adaptable_matrices, add_adapters, base_layer, get_adapters, new_low_rank
from chumoku.lora.layout import AdapterTensors, MatrixMap, Part, RowLike, map_matrices, to_ours, to_theirs
from chumoku.models.model import Model
from chumoku.nn.lora import LowRank
from chumoku.safe_files import check_safetensors_header

CARD, PREFIX, PARTS_KEY = "README.md", "base_model.model.", "chumoku.parts"
TENSOR_SUFFIXES = {"a": "lora_A.weight", "b": "lora_B.weight", "magnitude": "lora_magnitude_vector"}
SUFFIX_KINDS = {end.removesuffix(".weight"): kind for kind, end in TENSOR_SUFFIXES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
LARGEST_PARTS = 1 << 20
TASKS = {"decoder": "CAUSAL_LM", "encoder-decoder": "SEQ_2_SEQ_LM"}


def save(
    model: Model, folder: Path | str, *, base: str, name: str | None = None, rows: Sequence[RowLike] | None = None
) -> None:
    """Write an adapter to a folder in PEFT's format.

    base  name or path of the base model, recorded in the adapter's config
    name  of the adapter; by default the active one
    rows  the family's table, to write the transformers library's names; None writes ours
    """
    folder, adapters = Path(folder), get_adapters(model, name)
    known, theirs = adaptable_matrices(model), {}
    for mapping in map_matrices(model, rows).values():
        if any(path in adapters for path in mapping.ours):
            theirs[mapping] = to_theirs(mapping, known, adapters)
    unmapped = set(adapters).difference(*(mapping.ours for mapping in theirs))
    if unmapped:
        raise UsageError(f"{min(unmapped)} does not exist in the transformers library. Save with rows=None.")
    tensors = {
        f"{PREFIX}{mapping.theirs}.{end}": tensor.detach().cpu().contiguous()
        for mapping, adapter in theirs.items()
        for kind, end in TENSOR_SUFFIXES.items()
        if (tensor := getattr(adapter, kind)) is not None
    }
    parts = {mapping.theirs: adapter.parts for mapping, adapter in theirs.items() if adapter.parts}
    metadata = {"format": "pt"} | ({PARTS_KEY: json.dumps(parts)} if parts else {})
    folder.mkdir(parents=True, exist_ok=True)
    # The config is written last: a folder without it is not an adapter.
    _write(folder / WEIGHTS, to_bytes(tensors, metadata=metadata))
    _write(folder / CARD, _card(base, tensors).encode())
    values = _make_config(model, theirs, next(iter(adapters.values())), base)
    _write(folder / CONFIG, json.dumps(values, indent=2, sort_keys=True).encode())


def load(
    model: Model,
    folder: Path | str,
    *,
    name: str = "default",
    rows: Sequence[RowLike] | None = None,
    other_rows: Sequence[Sequence[RowLike]] = (),
) -> AdapterConfig:
    """Attach the adapter in a folder under this name, make it active, and return its config.

    rows        the family's table, if the file has the transformers library's names
    other_rows  the tables of other families with the same model, if the file has their names
    """
    config = read_adapter_config(folder)
    adapters = read_adapter(model, folder, config, rows=rows, other_rows=other_rows)
    add_adapters(model, adapters, name=name)
    return config


def read_adapter(
    model: Model,
    folder: Path | str,
    config: AdapterConfig,
    *,
    rows: Sequence[RowLike] | None = None,
    other_rows: Sequence[Sequence[RowLike]] = (),
) -> dict[str, LowRank]:
    """The matrices of the adapter in a folder by address, checked against the model, which is not changed."""
    known = adaptable_matrices(model)
    # Our names too: the adapter may have been saved before its model's family was supported.
    tables = [{**map_matrices(model, None), **map_matrices(model, some)} for some in (rows, *other_rows)]
    adapters = {}
    for mapping, adapter in _read_tensors(Path(folder) / WEIGHTS, config, tables, known):
        for path, part in to_ours(mapping, known, adapter).items():
            adapters[path] = _make_low_rank(known[path], part, config)
    return adapters


def _make_low_rank(module: Matrix, adapter: AdapterTensors, config: AdapterConfig) -> LowRank:
    low = new_low_rank(
        base_layer(module),
        len(adapter.a),
        alpha=adapter.alpha,
        stabilized=config.stabilized,
        dropout=config.dropout,
        magnitude=config.dora,
    )
    with torch.no_grad():
        low.a.copy_(adapter.a)
        low.b.copy_(adapter.b)
        if low.magnitude is not None and adapter.magnitude is not None:
            low.magnitude.copy_(adapter.magnitude)
    return low


class FileEntry(NamedTuple):
    """An adapted matrix in a file: its name there, our matrices for it, and the keys of its tensors."""

    module: str
    mapping: MatrixMap
    keys: dict[str, str]


def _read_tensors(
    path: Path, config: AdapterConfig, tables: Sequence[Mapping[str, MatrixMap]], known: Mapping[str, Matrix]
) -> list[tuple[MatrixMap, AdapterTensors]]:
    """The file's adapted matrices and their tensors; all are checked before any is read."""
    check_safetensors_header(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as stored:
            found = _match_first_table(path, list(stored.keys()), tables)
            for entry in found:
                _check(path, entry, config, known, {kind: stored.get_slice(key) for kind, key in entry.keys.items()})
            parts = _parts(path, (stored.metadata() or {}).get(PARTS_KEY), found, config)
            result = []
            for entry in found:
                tensors: dict[str, Tensor] = {kind: stored.get_tensor(key) for kind, key in entry.keys.items()}
                a, b, magnitude = tensors["a"], tensors["b"], tensors.get("magnitude")
                alpha = config.alpha_of(entry.module)
                result.append((entry.mapping, AdapterTensors(a, b, magnitude, alpha, parts[entry.module])))
            return result
    except SafetensorError as error:
        raise DamagedError(f"{path} is not a valid safetensors file: {str(error)[:200]}.") from error
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error


def _match_first_table(path: Path, names: Sequence[str], tables: Sequence[Mapping[str, MatrixMap]]) -> list[FileEntry]:
    """The file's matrices by the first table that has all of them; if none has, the error of the first table."""
    for table in tables:
        with contextlib.suppress(UsageError):
            return _match_tensors(path, names, table)
    return _match_tensors(path, names, tables[0])


def _match_tensors(path: Path, names: Iterable[str], table: Mapping[str, MatrixMap]) -> list[FileEntry]:
    """Find the file's matrices in this model. Their names may lack the first part or have an extra one."""
    shorter = {theirs.partition(".")[2]: mapping for theirs, mapping in table.items()}
    if len(shorter) < len(table):
        shorter = {}  # ambiguous
    found: dict[str, FileEntry] = {}
    for name in names:
        module, _, end = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if end not in SUFFIX_KINDS or not name.startswith(PREFIX):
            raise UsageError(f"{path} has the tensor {name[:200]}, which is not part of a LoRA adapter.")
        mapping = table.get(module) or shorter.get(module) or table.get(module.partition(".")[2])
        if mapping is None:
            hint = did_you_mean(module, table, "Is this an adapter of another model?")
            raise UsageError(f"{path} adapts {module[:200]}, but this model has no such matrix. {hint}")
        entry = found.setdefault(mapping.theirs, FileEntry(module, mapping, {}))
        if entry.module != module or SUFFIX_KINDS[end] in entry.keys:
            raise DamagedError(f"{path} adapts {mapping.theirs} twice.")
        entry.keys[SUFFIX_KINDS[end]] = name
    if not found:
        raise DamagedError(f"{path} has no tensors.")
    return list(found.values())


def _check(
    path: Path, found: FileEntry, config: AdapterConfig, known: Mapping[str, Matrix], slices: Mapping[str, Any]
) -> None:
    module, ours = found.module, found.mapping.ours
    inputs, outputs = known[ours[0]].in_features, sum(known[address].out_features for address in ours)
    rank = config.rank_of(module)
    expected = {"a": [rank, inputs], "b": [outputs, rank]} | ({"magnitude": [outputs]} if config.dora else {})
    if set(found.keys) != set(expected):
        raise DamagedError(f"{path} has {', '.join(sorted(found.keys))} for {module}; it needs {', '.join(expected)}.")
    for kind, shape in expected.items():
        tensor = slices[kind]
        if list(tensor.get_shape()) != shape:
            raise UsageError(f"{path}: {found.keys[kind]} has shape {tensor.get_shape()}; this model needs {shape}.")
        if tensor.get_dtype() not in FLOATS:
            raise UsageError(f"{path}: {found.keys[kind]} has type {tensor.get_dtype()}; it must be a float type.")


def _parts(
    path: Path, recorded: str | None, found: Sequence[FileEntry], config: AdapterConfig
) -> dict[str, tuple[Part, ...]]:
    """How to split joined matrices, if the file says so, which only files written by us do."""
    parts: dict[str, tuple[Part, ...]] = {entry.module: () for entry in found}
    if recorded is None:
        return parts
    try:
        if len(recorded) > LARGEST_PARTS:
            raise ValueError("too long")
        table = json.loads(recorded)
        for entry in found:
            if entry.mapping.theirs in table:
                own = tuple(Part(*numbers) for numbers in table[entry.mapping.theirs])
                _check_parts(own, entry, config)
                parts[entry.module] = own
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedError(f"{path} describes its joined matrices wrongly: {str(error)[:200]}.") from error
    return parts


def _check_parts(parts: Sequence[Part], found: FileEntry, config: AdapterConfig) -> None:
    rank, alpha = config.rank_of(found.module), config.alpha_of(found.module)
    if not parts or len({part.number for part in parts}) != len(parts):
        raise ValueError("the list of matrices is empty or has a matrix twice")
    for part in parts:
        typed = all(type(number) is int for number in part[:3]) and type(part.alpha) is float
        if not typed or not 0 <= part.number < len(found.mapping.ours):
            raise ValueError("a matrix does not exist")
        if part.rank < 1 or part.first < 0 or part.first + part.rank > rank:
            raise ValueError(f"rows {part.first} to {part.first + part.rank} of {rank}")
        ratio = part.rank / rank
        if not math.isclose(part.alpha, alpha * (math.sqrt(ratio) if config.stabilized else ratio), rel_tol=1e-9):
            raise ValueError("a part has another scale than the joined matrix")


def _make_config(model: Model, theirs: Mapping[MatrixMap, AdapterTensors], like: LowRank, base: str) -> dict[str, Any]:
    ranks = {mapping.theirs: len(adapter.a) for mapping, adapter in theirs.items()}
    alphas = {mapping.theirs: _number(adapter.alpha) for mapping, adapter in theirs.items()}
    # The most common rank and alpha become the defaults; the patterns list the exceptions.
    rank, alpha = (max(table.values(), key=list(table.values()).count) for table in (ranks, alphas))
    return {
        "peft_type": "LORA",
        "task_type": TASKS.get(model.config.kind),
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": like.dropout,
        "rank_pattern": {module: value for module, value in ranks.items() if value != rank},
        "alpha_pattern": {module: value for module, value in alphas.items() if value != alpha},
        "target_modules": sorted(ranks),
        "fan_in_fan_out": any(mapping.transposed for mapping in theirs),
        "use_dora": like.magnitude is not None,
        "use_rslora": like.stabilized,
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
        f"{numbers:,} LoRA parameters for {base}. Written by chumoku in PEFT's format.",
        "",
    ]
    return "\n".join(lines)


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically."""
    working = path.with_name(f"{path.name}.writing")
    working.write_bytes(data)
    working.replace(path)
