"""The encoder for MTEB has its interface and gives the vectors of the pipeline; mteb itself is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from bundles import make_bundle

import chumoku
from chumoku.errors import MissingExtraError, UsageError
from chumoku.harness.mteb_encoder import MtebEncoder

TEXTS = ["A cat.", "The long road to the sea", "雨"]
BATCHES = [{"text": TEXTS[:2], "id": ["a", "b"]}, {"text": TEXTS[2:], "id": ["c"]}]
PROMPTS = {"query": "query: ", "document": "passage: "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("mteb") / "finder", "encoder", head="vector", prompts=PROMPTS)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> MtebEncoder:
    return MtebEncoder(folder)


def test_vectors_of_all_batches_with_prompts(encoder: MtebEncoder) -> None:
    given: dict[str, Any] = {"task_metadata": None, "hf_split": "test", "hf_subset": "en", "batch_size": 3}
    plain = encoder.encode(BATCHES, **given)
    assert isinstance(plain, np.ndarray)
    assert plain.shape == (3, 12)
    for prompt, before in PROMPTS.items():
        found = encoder.encode(BATCHES, prompt_type=prompt, **given)
        assert np.allclose(found, encoder.pipeline.embed([before + text for text in TEXTS]), atol=1e-6)
        assert not np.allclose(found, plain, atol=1e-3)


def test_similarity_is_the_cosine(encoder: MtebEncoder) -> None:
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randn(size, 7, generator=generator) for size in (5, 3))
    expected = torch.nn.functional.cosine_similarity(first[:, None], second[None], dim=-1)
    assert torch.allclose(encoder.similarity(first.numpy(), second.numpy()), expected, atol=1e-6)
    pairs = encoder.similarity_pairwise(first[:3].numpy(), second)
    assert torch.allclose(pairs, expected[:3].diagonal(), atol=1e-6)


def test_results_are_stored_by_name_and_weights(encoder: MtebEncoder, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[mteb\]'"):
        _ = encoder.mteb_model_meta
    module = ModuleType("mteb.models.model_meta")
    module.ModelMeta = type("ModelMeta", (), {"create_empty": staticmethod(dict)})
    for name in ("mteb", "mteb.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mteb.models.model_meta", module)
    meta = encoder.mteb_model_meta
    assert meta["name"] == "chumoku/finder"
    assert MtebEncoder(chumoku.load(folder), name="finder").mteb_model_meta == meta
    changed = chumoku.load(folder, in_memory=True)
    with torch.no_grad():
        next(changed.model.parameters()).mul_(1.01)
    assert MtebEncoder(changed, name="finder").mteb_model_meta["revision"] != meta["revision"]


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MTEB needs an encoder"):
        MtebEncoder(make_bundle(tmp_path / "decoder", "decoder"))
