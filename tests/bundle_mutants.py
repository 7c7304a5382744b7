"""Damaged bundles and checkpoints with correct checksums.

weights, config, tokenizer, manifest        of a bundle, with float or int8 weights
optimizer, average, weights, state          of a checkpoint, opened like --resume does
files                                       a file becomes a pipe, a device, a link, a folder or a terabyte of zeros
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bombs as tokenizer_bombs
import torch
from bundles import byte_tokenizer, make_bundle

from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.precision import to_precision
from chumoku.save_model import save
from chumoku.training.average import Average
from chumoku.training.checkpoint_files import (
    Tensors,
    check_tensors,
    load_weights,
    read_state,
    read_tensors,
    write_files,
)
from chumoku.training.optimizer import Optimizer
from chumoku.training.outputs import ModelResult
from chumoku.training.settings import OptimizerSettings
from chumoku.training.state import State
from chumoku.weights.bundle import Tokenizers, verify_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.checksums import MANIFEST
from chumoku.weights.open_model import load

SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U8": 1, "BOOL": 1}
SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1}
CONFIG = ModelConfig(vocabulary=263, width=12, heads=3, layers=2, context=31, position="learned")
WAYS = ("pipe", "device", "random", "terminal", "outside", "loop", "folder", "gone", "sparse", "more", "empty")


def bundle(name: str) -> Callable[[Path], Path]:
    return lambda place: make_bundle(place / "model", "decoder") / name


def quantized_bundle(place: Path) -> Path:
    opened = load(make_bundle(place / "floats", "decoder", width=96))
    small = to_precision(opened.model, "int8", tables=True)
    return save(place / "model", small, opened.tokenizer) / "model.safetensors"


def rewrite_checksums(folder: Path) -> None:
    """Like `write_checksums`, without fsync."""
    files = [path for path in folder.iterdir() if path.name != MANIFEST]
    write_manifest(
        folder,
        {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in files
        },
    )


def write_manifest(folder: Path, entries: dict[str, Any]) -> None:
    (folder / MANIFEST).write_bytes(json.dumps({"files": entries}, sort_keys=True, indent=1).encode())


def open_bundle(file: Path) -> None:
    if file.name != MANIFEST:
        rewrite_checksums(file.parent)
    opened = load(file.parent)
    opened.tokenizer.encode("a word 12")
    with torch.no_grad():
        opened.model(torch.tensor([[1, 2, 3]]))


# Checkpoints


@functools.cache  # in the process that forks; each fork changes its own
def parts() -> tuple[ModelResult, Optimizer, Average]:
    tokenizer = byte_tokenizer()
    model = build(CONFIG, seed=3)
    result = ModelResult(model, Tokenizers(tokenizer, tokenizer))
    optimizer = Optimizer(model, OptimizerSettings(learning_rate=0.1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.01)
    return result, optimizer, Average(model, 0.5)


def checkpoint(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        folder = place / "step-00000003"
        folder.mkdir()
        result, optimizer, average = parts()
        tensors = Tensors(tensors_of(result.model), optimizer.state(), average.tensors)
        write_files(folder, State(step=3, best=1.5, origin={"model": {"width": 12}}), tensors, result)
        return folder / name

    return make


def open_checkpoint(file: Path) -> None:
    """Resume from the checkpoint and take one step."""
    folder = file.parent
    rewrite_checksums(folder)
    verify_bundle(folder)
    read_state(folder)
    result, optimizer, average = parts()
    tensors = read_tensors(folder)
    check_tensors(folder, tensors, Tensors(result.tensors(), optimizer.empty_state(), average.tensors))
    load_weights(result, tensors.model)
    optimizer.load(tensors.optimizer)
    average.load(tensors.average)
    optimizer.step(0.01)
    average.update()


# Types and shapes


def change_types(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with one to three tensors of another type or shape; most are still valid safetensors."""
    size = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        entry = header[name]
        begin, end = entry["data_offsets"]
        match rng.randrange(5):
            case 0 | 1:  # the same bytes, called something else
                entry["dtype"] = rng.choice(list(SIZES))
                entry["shape"] = _shape((end - begin) // SIZES[entry["dtype"]], rng)
            case 2:
                entry["shape"] = _shape((end - begin) // SIZES.get(entry["dtype"], 4), rng)
            case 3:  # two tensors change their places
                other = rng.choice(names)
                header[name], header[other] = header[other], header[name]
            case 4:
                new = rng.choice([f"{name}.x", "", "x" * 999, name.upper(), "\ud800", "a/b", "model/x", "x:exp_avg"])
                header[new] = header.pop(name)
                names[names.index(name)] = new
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def _shape(count: int, rng: random.Random) -> list[int]:
    divisor = rng.choice([one for one in range(1, 65) if count % one == 0] or [1])
    return rng.choice([[count], [divisor, count // divisor], [count // divisor, divisor], [1] * 70 + [count], []])


# Files that are not regular files


def files(place: Path) -> Path:
    make_bundle(place / "healthy", "decoder")
    (place / "plan.json").write_text(json.dumps({"name": "README.md", "way": "nothing"}))
    return place / "plan.json"


def plan_replacement(data: bytes, rng: random.Random) -> bytes:
    names = ("manifest.json", "config.json", "model.safetensors", "tokenizer.json", "README.md", "notes.txt")
    plan = {"name": rng.choice(names), "way": rng.choice(WAYS), "told": rng.random() < 0.5}
    return json.dumps({**plan, "bytes": rng.choice([0, 1, 1 << 40, -1, True, 1e300, "3", None])}).encode()


def open_with_replacement(file: Path) -> None:
    """Open a copy of the intact bundle with one file replaced, and sometimes the manifest changed to match."""
    plan = json.loads(file.read_bytes())
    folder = file.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(file.parent / "healthy", folder)
    path = folder / plan["name"]
    if plan["way"] != "nothing":
        path.unlink(missing_ok=True)
    targets = {"device": "/dev/zero", "random": "/dev/urandom", "terminal": "/dev/tty", "loop": path, "outside": file}
    match plan["way"]:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "sparse":
            with path.open("wb") as stream:
                stream.truncate(1 << 40)
        case "more" | "empty":
            path.write_bytes(b"{}" if plan["way"] == "more" else b"")
        case way if way in targets:
            path.symlink_to(targets[way])
    if plan.get("told") and plan["name"] != MANIFEST:
        entries = json.loads((folder / MANIFEST).read_bytes())["files"]
        entries.setdefault(plan["name"], {"sha256": "0" * 64})["bytes"] = plan["bytes"]
        write_manifest(folder, entries)
    load(folder)


# Small files that need enormous work


def bombs(place: Path) -> Path:
    make_bundle(place / "model", "decoder")
    return place / "model" / "tokenizer.json"


@functools.cache
def known_bombs() -> list[bytes]:
    return [content for _, content in tokenizer_bombs.bombs()]


def make_bomb(data: bytes, rng: random.Random) -> bytes:
    """A tokenizer from bombs.py, or deeply nested or long JSON."""
    depth = rng.choice([10**3, 10**5, 10**6])
    deep = [b"[" * depth, b'{"a":' * depth, b"9" * depth, b'"' + b"a" * depth + b'"']
    return rng.choice([*deep, *known_bombs()])
