"""A bundle's files must be regular files in the folder with plausible sizes and types; others are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import make_bundle
from safetensors.torch import load_file, save_file

import chumoku
from chumoku.errors import ChumokuError, DamagedError
from chumoku.weights.checksums import MANIFEST, verify_checksums, write_checksums
from chumoku.weights.open_model import load, read_model_config

FILES = ("manifest.json", "config.json", "model.safetensors", "tokenizer.json", "README.md")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle") / "model", "decoder")


@pytest.fixture
def bundle(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "model"))


@pytest.fixture(autouse=True)
def five_second_limit() -> Iterator[None]:
    """A test that hangs fails after five seconds."""

    def late(*_: object) -> None:
        raise TimeoutError("this took too long")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def rewrite_manifest(folder: Path, name: str, **entry: Any) -> None:
    files = json.loads((folder / MANIFEST).read_bytes())["files"]
    files[name] |= entry
    (folder / MANIFEST).write_bytes(json.dumps({"files": files}, sort_keys=True, indent=1).encode())


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def outside(path: Path) -> None:
    """A link to the same content in another folder."""
    kept = path.parent.parent / f"elsewhere-{path.name}"
    kept.write_bytes((path.parent / f"{path.name}.was").read_bytes())
    path.symlink_to(kept)


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("put", [pipe, device, folder, outside, loop])
@pytest.mark.parametrize("name", FILES)
def test_special_files_and_outside_links_are_refused(name: str, put: Any, bundle: Path) -> None:
    (bundle / name).rename(bundle / f"{name}.was")
    put(bundle / name)
    (bundle / f"{name}.was").unlink()
    if name != MANIFEST and put in (pipe, device):  # what they say of their own size
        rewrite_manifest(bundle, name, bytes=0)
    for opening in (load, read_model_config) if name == "config.json" else (load,):
        with pytest.raises(ChumokuError, match=rf"{name}|not a model"):
            opening(bundle)
    with pytest.raises(DamagedError, match=name):
        verify_checksums(bundle)


def weights_in(folder: Path) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in load(folder).model.state_dict().items()}


def test_a_link_within_the_folder_is_followed(bundle: Path) -> None:
    """Other programs create such folders."""
    before = weights_in(bundle)
    target = bundle / "._model.safetensors"
    (bundle / "model.safetensors").rename(target)
    (bundle / "model.safetensors").symlink_to(target.name)
    assert weights_in(bundle) == before


def test_links_into_the_hub_cache_are_followed(bundle: Path, tmp_path: Path) -> None:
    before, cache = weights_in(bundle), tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "abc").mkdir(parents=True)
    for file in bundle.iterdir():
        file.rename(cache / "blobs" / file.name)
        (cache / "snapshots" / "abc" / file.name).symlink_to(f"../../blobs/{file.name}")
    assert weights_in(cache / "snapshots" / "abc") == before


@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "tokenizer.json", "config.json"])
def test_a_huge_file_is_refused_before_it_is_read(name: str, bundle: Path) -> None:
    """A sparse file of one terabyte, with the matching size in the manifest."""
    size = 1 << 40
    with (bundle / name).open("r+b") as stream:
        stream.truncate(size)
    rewrite_manifest(bundle, name, bytes=size)
    with pytest.raises(ChumokuError, match=rf"{name} has 1,099,511,627,776 bytes|not a model"):
        load(bundle)


@pytest.mark.parametrize("entry", [{"bytes": float("inf")}, {"bytes": True}, {"bytes": "3"}, {"sha256": 3}, None])
def test_manifest_with_wrong_types_is_refused(entry: Any, bundle: Path) -> None:
    rewrite_manifest(bundle, "README.md", **({"bytes": None} if entry is None else entry))
    with pytest.raises(DamagedError, match="is not a valid manifest"):
        load(bundle)


@pytest.mark.parametrize("name", [".DS_Store", "._model.safetensors", "Thumbs.db", "desktop.ini"])
def test_files_of_operating_systems_are_ignored(name: str, bundle: Path) -> None:
    (bundle / name).write_bytes(b"\0\0\0\1Bud1")
    load(bundle)
    write_checksums(bundle)
    assert name not in (bundle / MANIFEST).read_text()
    (bundle / name).unlink()
    load(bundle)


def test_unlisted_file_is_refused(bundle: Path) -> None:
    (bundle / "notes.txt").write_text("mine")
    with pytest.raises(DamagedError, match=r"notes\.txt is not listed in the manifest"):
        load(bundle)


KINDS = ["F64", "F16", "BF16", "I64", "I32", "U8", "BOOL"]
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}


def change_type(file: Path, name: str, kind: str) -> None:
    """Change a tensor's type in the header, and its shape if the element size differs."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    entry = header[name]
    entry["shape"][-1] = entry["shape"][-1] * SIZES[entry["dtype"]] // SIZES[kind]
    entry["dtype"] = kind
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_of_wrong_type_is_refused(kind: str, bundle: Path) -> None:
    weights = load_file(bundle / "model.safetensors")
    name = "decoder.blocks.1.attention.query.weight"
    dtype = {"F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
    dtype |= {"I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
    save_file({**weights, name: weights[name].to(dtype[kind])}, bundle / "model.safetensors")
    write_checksums(bundle)
    with pytest.raises(ChumokuError, match=rf"{name} has type {kind}"):
        load(bundle)
    save_file(weights, bundle / "model.safetensors")
    change_type(bundle / "model.safetensors", name, kind)
    write_checksums(bundle)
    with pytest.raises(ChumokuError, match=f"{name} has "):
        load(bundle)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_single_float_type_load(dtype: torch.dtype, bundle: Path) -> None:
    weights = load_file(bundle / "model.safetensors")
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, bundle / "model.safetensors")
    write_checksums(bundle)
    assert load(bundle).model.dtype == dtype
    assert isinstance(chumoku.load(bundle).generate("a", max_new_tokens=2, temperature=0), str)
