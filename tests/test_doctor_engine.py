"""The doctor examines the model as it runs: the stored file, the actual modules, the decoding engine."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import make_bundle

from chumoku.decoding.engines import open_engine as opening
from chumoku.decoding.engines.native import build as native_build
from chumoku.decoding.engines.native import call
from chumoku.doctor import cache, examine, modules
from chumoku.doctor.open_subject import open_subject, subject_from_model
from chumoku.doctor.subject import Subject
from chumoku.errors import UsageError
from chumoku.nn.quantized import QuantizedLinear
from chumoku.weights.convert import convert

LLAMA = {"pairing": "half", "feedforward": "swiglu", "norm": "rms", "bias": False, "width": 64, "heads": 2}
needs_library = pytest.mark.skipif(native_build.library() is None, reason=native_build.why_not() or "")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_bundle(folder / "model", "decoder", **LLAMA)
    convert(folder / "model", folder / "model.gguf", to="gguf", kind="q8_0")
    return folder


def subject(files: Path, name: str = "model.gguf", **options: Any) -> Subject:
    return subject_from_model(str(files / name), files, lambda sentence: None, **options)


def kinds(one: Subject) -> set[str]:
    return {part.kind for part in one.require_model().modules() if isinstance(part, QuantizedLinear)}


def test_doctor_opens_models_like_other_commands(files: Path) -> None:
    assert kinds(subject(files)) == {"int8"}
    assert kinds(subject(files, "model")) == set()
    for precision in ("bf16", "int8", "int4"):
        assert kinds(subject(files, "model", precision=precision)) == {precision}
    with pytest.raises(UsageError, match="Leave --precision out"), open_subject("demo", precision="int8"):
        pass


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", [None, "bf16", "int8", "int4"])
def test_healthy_quantized_models_have_no_findings(files: Path, precision: str | None) -> None:
    report = examine(subject(files, "model.gguf" if precision is None else "model", precision=precision))
    assert report.findings == []
    assert {"engine", "cache", "mates", "padding", "modules", "fused"} <= set(report.passed)
    assert "quantized matrices cannot be trained" in report.skipped["overfit"]


@needs_library
def test_wrong_engine_for_a_quantized_file_is_found(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has another scale in one matrix than the file."""
    one, usual = subject(files), call.Weights
    assert not list(cache.run_engine(one))

    def wrong(model: Any) -> Any:
        other = copy.deepcopy(model)
        other.decoder.blocks[1].feedforward.down.scale.mul_(1.25)
        return usual(other)

    monkeypatch.setattr(call, "Weights", wrong)
    call._weights.clear()
    (finding,) = cache.run_engine(one)
    assert finding.what.startswith("NativeEngine, which decodes this model here, differs by ")
    call._weights.clear()


def test_a_changed_module_is_found(files: Path) -> None:
    one = subject(files)
    assert not list(modules.run(one))
    one.require_model().decoder.blocks[0].register_forward_hook(lambda module, given, out: 2 * out)
    (finding,) = modules.run(one)
    assert finding.what == "The model does not match its config: decoder.blocks.0 has a forward hook."
    assert not finding.broken, "it may be meant"
    with (
        pytest.warns(UserWarning, match="has a forward hook")
        if native_build.library()
        else pytest.MonkeyPatch.context()
    ):
        assert not list(cache.run_engine(one)), "the model itself decodes then"


@needs_library
def test_examining_a_changed_module_gives_a_finding_and_no_warning(files: Path) -> None:
    one = subject(files)
    one.require_model().decoder.blocks[0].register_forward_hook(lambda module, given, out: 2 * out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = examine(one, checks=[modules.CHECK, cache.ENGINE])
    assert [finding.check for finding in report.findings] == ["modules"]
    assert report.passed == ["engine"]


@needs_library
def test_an_engine_that_ignores_a_hook_is_found(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = subject(files, "model")
    one.require_model().decoder.blocks[0].register_forward_hook(lambda module, given, out: torch.flip(out, [-1]))
    monkeypatch.setattr(opening, "modification", lambda model: None)
    assert [finding.check for finding in cache.run_engine(one)] == ["engine"]
