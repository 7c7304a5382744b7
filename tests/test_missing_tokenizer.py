"""A model without a tokenizer opens, takes token ids, and says what it cannot do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, make_bundle
from commands import command

import chumoku
from chumoku import Pipeline
from chumoku.errors import NoTokenizerWarning, UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.formats.transformers_folder import write_folder

LLAMA: dict[str, Any] = {"norm": "rms", "feedforward": "swiglu", "bias": False, "width": 12, "heads": 3, "layers": 2}
BERT: dict[str, Any] = {"position": "learned", "placement": "post", "embedding_norm": True, "segments": 2}
IDS = torch.tensor([[5, 7, 11]])
EXPECTED = r"has no tokenizer\. Expected tokenizer\.json, .*vocab\.txt.* Put one there, pass tokenizer=… .*token ids"


def folder_without_tokenizer(folder: Path, **changes: Any) -> Path:
    """A folder of transformers that has only a config and weights."""
    tokenizer = byte_tokenizer()
    config = ModelConfig(**{"context": 61, "vocabulary": tokenizer.size, **changes})
    folder.mkdir()
    write_folder(folder, chumoku.build(config, seed=3), Tokenizers(tokenizer, tokenizer))
    for file in folder.iterdir():
        if file.name.startswith("tokenizer") or file.name == "special_tokens_map.json":
            file.unlink()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("folders")
    encoder = {**BERT, "width": 12, "heads": 3, "layers": 2, "head": "vector"}
    marian = {
        "position": "sinusoidal",
        "placement": "post",
        "feedforward": "silu",
        "width": 12,
        "heads": 3,
        "layers": 2,
    }
    return {
        "decoder": folder_without_tokenizer(place / "decoder", kind="decoder", **LLAMA),
        "encoder": folder_without_tokenizer(place / "encoder", kind="encoder", **encoder),
        "encoder-decoder": folder_without_tokenizer(place / "translator", kind="encoder-decoder", **marian),
    }


def load_without_tokenizer(folder: Path) -> Pipeline:
    with pytest.warns(NoTokenizerWarning, match=EXPECTED) as caught:
        pipeline = chumoku.load(folder)
    assert caught[0].filename == __file__, "the warning names the line that called load"
    return pipeline


def test_the_model_takes_token_ids(folders: dict[str, Path]) -> None:
    pipeline = load_without_tokenizer(folders["decoder"])
    assert repr(pipeline).endswith("device=cpu, no tokenizer)")
    assert pipeline.to("cpu").model(IDS).logits.shape == (1, 3, pipeline.config.vocabulary)
    with chumoku.record(pipeline.model, "decoder.blocks.1.attention.weights") as tape:
        pipeline.model(IDS)
    assert tape["decoder.blocks.1.attention.weights"].shape == (1, 3, 3, 3)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("decoder", "generate"),
        ("decoder", "stream"),
        ("decoder", "chat"),
        ("encoder", "embed"),
        ("encoder-decoder", "translate"),
    ],
)
def test_methods_that_take_a_text_say_what_is_missing(folders: dict[str, Path], kind: str, method: str) -> None:
    pipeline = load_without_tokenizer(folders[kind])
    with pytest.raises(UsageError, match=EXPECTED):
        "".join(getattr(pipeline, method)("a text"))
    for use in (lambda: pipeline.tokenizer.encode("a"), lambda: pipeline.source_tokenizer.roles):
        with pytest.raises(UsageError, match=EXPECTED):
            use()


@pytest.mark.parametrize("given", ["tokenizer", "file", "folder"])
def test_a_given_tokenizer_is_used(folders: dict[str, Path], given: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    file = tokenizer.save(tmp_path / "tokenizer.json")
    opened = chumoku.load(
        folders["decoder"], tokenizer={"tokenizer": tokenizer, "file": file, "folder": tmp_path}[given]
    )
    assert opened.tokenizer.encode("añ") == tokenizer.encode("añ")
    assert opened.source_tokenizer is opened.tokenizer
    assert isinstance(opened.generate("one", max_new_tokens=3), str)


def test_a_given_tokenizer_replaces_the_models_own(tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "model", "decoder", byte_tokenizer(("en", "ja")))
    assert not chumoku.load(folder, tokenizer=byte_tokenizer()).tokenizer.roles.languages
    with pytest.raises(UsageError, match=r"The tokenizer has .* tokens and the model's vocabulary"):
        chumoku.load(folder, tokenizer=byte_tokenizer(("de", "en", "es", "fr", "ja", "ko", "zh")))


def test_a_pipeline_without_a_tokenizer_is_saved_and_opened_again(tmp_path: Path) -> None:
    model = chumoku.build(ModelConfig(vocabulary=263, width=12, heads=3, layers=2), seed=3)
    pipeline = Pipeline(model, None)
    with pytest.raises(UsageError, match=r"has no tokenizer. Give it one, as in Pipeline\(model, tokenizer\)"):
        pipeline.generate("a text")
    assert copy.deepcopy(pipeline).tokenizer.message == pipeline.tokenizer.message  # type: ignore[attr-defined]
    saved = pipeline.save(tmp_path / "model")
    assert not (saved / "tokenizer.json").exists()
    assert "(no tokenizer)" in (saved / "README.md").read_text()
    with pytest.warns(NoTokenizerWarning, match="was saved without a tokenizer. Pass tokenizer="):
        opened = chumoku.load(saved)
    assert torch.equal(opened.model(IDS).logits, model.eval()(IDS).logits)
    assert chumoku.load(saved, tokenizer=byte_tokenizer()).has_tokenizer


def test_a_damaged_tokenizer_is_still_an_error(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in folders["decoder"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="is not a readable tokenizer"):
        chumoku.load(folder)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("decoder", ("generate", "{}", "a text")),
        ("decoder", ("chat", "{}")),
        ("decoder", ("look", "{}", "a text", "--out", "{out}")),
        ("decoder", ("evaluate", "{}", "{text}")),
        ("decoder", ("serve", "{}", "--port", "0")),
        ("decoder", ("convert", "{}", "{out}", "--to", "transformers")),
        ("decoder", ("convert", "{}", "{out}.gguf", "--to", "gguf")),
        ("encoder", ("embed", "{}", "a text")),
        ("encoder-decoder", ("translate", "{}", "a text")),
    ],
    ids=lambda words: words if isinstance(words, str) else words[0],
)
def test_commands_say_what_is_missing(
    kind: str,
    words: tuple[str, ...],
    folders: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    text = tmp_path / "text.txt"
    text.write_text("some text\n")
    given = [word.format(folders[kind], out=tmp_path / "out", text=text) for word in words]
    ended = command(*given, capfd=capfd, monkeypatch=monkeypatch)
    assert ended.code == 2
    assert "has no tokenizer. Expected tokenizer.json" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_commands_that_need_no_tokenizer_work(
    folders: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(folders["decoder"])
    for words in (
        ("count", place),
        ("doctor", place, "--quick"),
        ("convert", place, str(tmp_path / "out"), "--to", "chumoku"),
    ):
        ended = command(*words, capfd=capfd, monkeypatch=monkeypatch)
        assert ended.code == 0, ended
    with pytest.warns(NoTokenizerWarning):
        assert not chumoku.load(tmp_path / "out").has_tokenizer
