"""Certificates accept equal models, refuse different ones, and say when nothing was checked."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer

import chumoku
from chumoku.errors import DamagedError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.models.presets import preset
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.certificate import (
    LIMITS,
    MAX_PROBE_TOKENS,
    Certificate,
    Comparison,
    certify,
    compare,
    make_probes,
    summarize,
)
from chumoku.weights.certificate_peers import Peer, our_answer
from chumoku.weights.convert import KINDS
from chumoku.weights.formats.ctranslate2 import write_ctranslate2

TOKENIZER = byte_tokenizer()
SMALL: dict[str, Any] = {"width": 12, "heads": 3, "layers": 2, "context": 61, "feedforward_width": 17}


def random_model(**changes: Any) -> Model:
    """A random model in which every weight affects the output."""
    return build_random(ModelConfig(**{**SMALL, "vocabulary": TOKENIZER.size + 3, **changes}))


def build_random(config: ModelConfig) -> Model:
    model, random = build(config, seed=3), torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=random) * 2 / config.width**0.5
    return model


def corrupt_weight(path: Path, row: torch.Tensor, number: float) -> None:
    """Replace the first number of a row in the file."""
    data, known = path.read_bytes(), row.detach().numpy().tobytes()
    assert data.count(known) == 1
    path.write_bytes(data.replace(known, torch.tensor([number]).numpy().tobytes() + known[4:]))


def export_ctranslate2(folder: Path, model: Model, kind: str = "float32") -> Path:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    write_ctranslate2(folder, model, Tokenizers(TOKENIZER, TOKENIZER), kind=kind)
    return folder


def export_and_certify(folder: Path, model: Model, kind: str = "float32") -> Certificate:
    return certify(model, "ctranslate2", folder, source="some/model", kind=kind)


@pytest.mark.parametrize(("kind", "compared"), [("decoder", "logits"), ("encoder-decoder", "log-probabilities")])
def test_the_same_model_is_certified(kind: str, compared: str, tmp_path: Path) -> None:
    model = random_model(kind=kind)
    certificate = export_and_certify(export_ctranslate2(tmp_path, model), model)
    found = certificate.found
    assert certificate.checked
    assert found is not None
    assert found.compared == compared
    assert 0 < found.apart <= found.difference <= 3e-5
    assert 10 * found.apart < found.limit < LIMITS["float32"] * found.scale
    assert found.agreeing == (found.positions if compared == "logits" else None)
    assert "Checked with ctranslate2" in certificate.sentence
    assert certificate.versions.keys() == {"chumoku", "torch", "ctranslate2"}
    for name, entry in certificate.files.items():
        data = (tmp_path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert certificate.files.keys() == {path.name for path in tmp_path.iterdir()}
    certificate.save(tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text()) == certificate.as_dict()
    assert export_and_certify(tmp_path, model) == certificate, "the same again, and its own file is none of the files"


@pytest.mark.parametrize("number", [0.3, -40.0, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_one_wrong_number_is_caught(kind: str, number: float, tmp_path: Path) -> None:
    model = random_model(kind=kind)
    folder = export_ctranslate2(tmp_path, model)
    corrupt_weight(folder / "model.bin", model.decoder.blocks[1].feedforward.down.weight[4], number)  # type: ignore[union-attr, index, operator]
    with pytest.raises(DamagedError, match="above the limit, so the output was deleted"):
        export_and_certify(folder, model)


def test_nan_is_the_largest_difference() -> None:
    model = random_model()
    answers = iter(make_probes(model))

    def answer(probe: Any) -> torch.Tensor:
        right = our_answer(model, probe, peer)
        return right * math.nan if next(answers).name == "the last token" else right

    peer = Peer("nobody", "0", "logits", answer)
    found = compare(model, peer, "float32")
    assert math.isnan(found.difference)
    assert found.place == "the last token, position 0"
    assert not found.within_limit


def test_different_output_shape_is_refused() -> None:
    model, other = random_model(), random_model(vocabulary=TOKENIZER.size + 5)
    peer = Peer("nobody", "0", "logits", lambda probe: our_answer(other, probe, peer))
    with pytest.raises(DamagedError, match="it is a different model"):
        compare(model, peer, "float32")


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_rounding_stays_within_the_limit(kind: str, tmp_path: Path) -> None:
    model = random_model(width=96, heads=6)
    folder = export_ctranslate2(tmp_path, model, kind)
    found = export_and_certify(folder, model, kind).found
    assert found is not None
    assert LIMITS["float32"] * found.scale < found.apart <= found.limit / 3
    with pytest.raises(DamagedError, match="float32 allows"):
        export_and_certify(folder, model, "float32")


def test_sentence_compares_difference_with_limit() -> None:
    """The largest difference may be above the limit, because the limit applies to the root mean square."""
    found = Comparison("logits", 0.39, "the last token, position 0", 21.0, 0.031, 0.21, 7, 11, [])
    output = summarize(found, "somebody 1.0", "bf16")
    assert found.within_limit
    assert "logits differ by 0.031 (root mean square); bf16 allows 0.21." in output
    assert output.index("0.031") < output.index("0.21") < output.index("0.39")
    assert "largest single difference, which has no limit, is 0.39 (the last token, position 0)" in output
    assert output.endswith("logits reach 21 in absolute value. The most likely token is the same at 7 of 11 positions.")


def test_every_number_type_has_a_limit() -> None:
    assert {kind for kinds in KINDS.values() for kind in kinds} == LIMITS.keys()


def test_missing_library_means_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    folder = export_ctranslate2(tmp_path, model)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    certificate = export_and_certify(folder, model)
    assert (certificate.checked, certificate.found) == (False, None)
    assert certificate.sentence.startswith("Not checked. ")
    assert "pip install ctranslate2" in certificate.sentence
    assert certificate.versions == {"chumoku": chumoku.__version__, "torch": str(torch.__version__)}
    assert certificate.files["model.bin"]["bytes"] > 0


def test_output_the_library_cannot_open_is_refused(tmp_path: Path) -> None:
    model = random_model()
    folder = export_ctranslate2(tmp_path, model)
    (folder / "model.bin").write_bytes(b"nothing")
    with pytest.raises(
        DamagedError, match="ctranslate2 could not use the converted model, so the output was deleted: "
    ):
        export_and_certify(folder, model)


@pytest.mark.parametrize("context", [2, 3, 61, 100_003])
def test_probes_fit_the_context(context: int) -> None:
    """First and last token, several lengths, and no position beyond the context."""
    config = ModelConfig(**{**SMALL, "vocabulary": 29, "kind": "encoder-decoder", "source_vocabulary": 31})
    request = make_probes(
        build(ModelConfig(**{**chumoku.config.settings_to_dict(config), "context": context}), device="meta")
    )  # type: ignore[attr-defined]
    reach = min(context, MAX_PROBE_TOKENS)
    assert max(len(probe.tokens) for probe in request) == max(len(probe.source) for probe in request) == reach - 1
    for side, size in ((0, 29), (1, 31)):
        tokens = [probe[1:][side] for probe in request]
        assert [0] in tokens
        assert [size - 1] in tokens
        assert {token for row in tokens for token in row} <= set(range(size))
        assert all(row for row in tokens)
    assert len({probe.name for probe in request}) == len(request)
    assert request == make_probes(
        build(ModelConfig(**{**chumoku.config.settings_to_dict(config), "context": context}), device="meta")
    )  # type: ignore[attr-defined]


# transformers


FAMILIES = {
    "gpt2": preset("gpt2", **SMALL, vocabulary=TOKENIZER.size + 3),
    "llama": preset("smollm2-135m", **{**SMALL, "kv_heads": 1}, vocabulary=TOKENIZER.size + 3),
    "bert": preset("bert-base", **SMALL, vocabulary=TOKENIZER.size + 3),
    "sentences": preset("minilm-l6", **SMALL, vocabulary=TOKENIZER.size + 3),
    "marian": preset(
        "transformer-base",
        **{**SMALL, "pairing": "half", "output_bias": True, "norm_epsilon": 1e-5, "encoder_layers": 3},
        vocabulary=TOKENIZER.size + 3,
    ),
}


def export_transformers(folder: Path, model: Model) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from chumoku.weights.formats.transformers_folder import write_folder

    write_folder(folder, model, Tokenizers(TOKENIZER, TOKENIZER))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    model = build_random(FAMILIES[name])
    folder = export_transformers(tmp_path, model)
    certificate = certify(model, "transformers", folder, source=name, kind="float32")
    assert certificate.found is not None
    assert certificate.found.compared == ("vectors" if name == "sentences" else "logits")
    assert certificate.found.difference <= 1e-4
    stack = model.encoder if hasattr(model, "encoder") else model.decoder
    corrupt_weight(folder / "model.safetensors", stack.blocks[1].attention_norm.gamma, 3.0)  # type: ignore[union-attr, index, operator]
    with pytest.raises(DamagedError, match=r"Checked with transformers .* so the output was deleted"):
        certify(model, "transformers", folder, source=name, kind="float32")


# llama.cpp


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    from chumoku.weights.formats.gguf_model import write_gguf_model

    tokenizer = chat_tokenizer()
    changes = {"width": 64, "heads": 4, "feedforward_width": 96, "context": 61, "layers": 2}
    if name == "llama":
        changes["kv_heads"] = 2
    model = build_random(preset({"gpt2": "gpt2", "llama": "smollm2-135m"}[name], **changes, vocabulary=tokenizer.size))
    for kind in KINDS["gguf"]:
        path = tmp_path / f"{kind}.gguf"
        write_gguf_model(path, model, Tokenizers(tokenizer, tokenizer), kind=kind)
        certificate = certify(model, "gguf", path, source=name, kind=kind)
        assert certificate.found is not None
        assert certificate.files.keys() == {path.name}
    corrupt_weight(tmp_path / "f32.gguf", model.decoder.blocks[1].attention_norm.gamma, 3.0)  # type: ignore[union-attr, index, operator]
    with pytest.raises(DamagedError, match=r"Checked with llama_cpp .* so the output was deleted"):
        certify(model, "gguf", tmp_path / "f32.gguf", source=name, kind="f32")
