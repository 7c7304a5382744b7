"""A served model is independent of its files: they may be truncated or replaced while the server runs."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import httpx
import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from serving import serve_in_process

import chumoku
from chumoku.decoding.engines.native import call
from chumoku.models.model import Model
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.formats.gguf_model import write_gguf_model
from chumoku.weights.in_memory import copy_into_memory

NEEDS_PROC_MAPS = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Only Linux lists a process's maps.")
# Weights need several memory pages: the last page of a truncated file can still be read.
SIZES = {"width": 96, "heads": 3, "feedforward_width": 64, "layers": 2, "context": 61}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Path of each model and of its file of weights."""
    folder = tmp_path_factory.mktemp("models")
    bundle = make_bundle(folder / "bundle", "decoder", chat_tokenizer(), **SIZES)
    translator = make_bundle(folder / "translator", "encoder-decoder", byte_tokenizer(), **SIZES)
    found = {
        name: (path, path / "model.safetensors") for name, path in (("bundle", bundle), ("translator", translator))
    }
    llama = {"position": "rotary", "norm": "rms", "feedforward": "swiglu", "bias": False, "tie_output": True}
    source = make_bundle(folder / "source", "decoder", chat_tokenizer(), **SIZES, **llama)
    opened = chumoku.load(source)
    for kind in ("q8_0", "f32"):
        file = folder / f"{kind}.gguf"
        write_gguf_model(file, opened.model, Tokenizers(opened.tokenizer, opened.tokenizer), kind=kind)
        found[kind] = file, file
    return found


def ask(url: str, name: str) -> str:
    body = {"model": name, "temperature": 0, "max_tokens": 7, "prompt": "the cat"}
    if name == "translator":
        body = {"model": name, "text": "the cat", "max_tokens": 7, "alignment": True}
    answer = httpx.post(f"{url}/v1/{'translate' if name == 'translator' else 'completions'}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    look = httpx.post(f"{url}/v1/look", json={"model": name, "text": "the cat", "new": 3}, timeout=60)
    assert look.status_code == 200, look.text
    result = answer.json()
    return str((result.get("choices") or result["translations"], look.json()))


def repack(model: Model) -> None:
    """Let the native engine pack the model's current tensors; it keeps references to the old ones."""
    if model in call._weights:
        call.weights(model)  # type: ignore[arg-type]


@pytest.mark.slow
@NEEDS_PROC_MAPS
def test_loaded_model_is_not_memory_mapped(models: dict[str, tuple[Path, Path]]) -> None:
    def is_mapped(weights: Path) -> bool:
        gc.collect()
        return str(weights) in Path("/proc/self/maps").read_text()

    for path, weights in models.values():
        mapped = chumoku.load(path)
        before = [one.clone() for one in mapped.model.state_dict().values()]
        assert is_mapped(weights), "otherwise this test would prove nothing"
        repack(mapped.model)
        copy_into_memory(mapped.model)
        repack(mapped.model)
        assert not is_mapped(weights), weights
        copied = chumoku.load(path, in_memory=True)
        assert not is_mapped(weights), weights
        for model in (mapped.model, copied.model):
            assert all(map(torch.equal, model.state_dict().values(), before))


@pytest.mark.slow
def test_served_model_is_independent_of_its_files(models: dict[str, tuple[Path, Path]]) -> None:
    with serve_in_process(*(str(path) for path, _ in models.values())) as (process, line):
        url = line.split()[-1]
        before = {name: ask(url, name) for name in models}
        for name, (_, weights) in models.items():
            os.truncate(weights, 0)
            assert ask(url, name) == before[name], name
            weights.write_bytes(b"\xff" * 100_000)  # replaced in place
            assert ask(url, name) == before[name], name
        assert process.poll() is None
