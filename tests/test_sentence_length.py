"""max_seq_length: texts are truncated like sentence-transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer, make_bundle
from commands import Ask
from foreign import bert, randomize, save_model

import chumoku
from chumoku.decoding.embed import encode
from chumoku.errors import UsageError
from chumoku.text.tokenizer import with_prefix_and_suffix
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.convert import convert
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import read_model_config


def sentences(folder: Path, limit: Any) -> Path:
    """A sentence-transformers folder with max_seq_length = `limit`."""
    save_model(randomize(bert(transformers.BertModel, add_pooling_layer=False).base_model), folder)
    tokenizer = with_prefix_and_suffix(byte_tokenizer(), ["<s>"], ["</s>"])
    tokenizer.save(folder / "tokenizer.json")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"idx": 0, "path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit, "do_lower_case": False}))
    return folder


def test_texts_are_cut_as_sentence_transformers_does(tmp_path: Path) -> None:
    """<s>, the first tokens of the text, </s>: 11 tokens in total."""
    pipeline = chumoku.load(sentences(tmp_path / "model", 11))
    assert pipeline.config.max_seq_length == 11
    with pytest.warns(UserWarning, match=r"2 of 3 texts were cut: this model reads the first 11 tokens of a text\."):
        vectors = pipeline.embed(["abcdefghijkl", "abcdefghi" * 99, "abcdefghi"])
    assert torch.equal(vectors[0], vectors[2])
    assert torch.equal(vectors[1], vectors[2])
    row = encode(pipeline.model, ["abcdefghijkl"], pipeline.tokenizer)[0]
    assert len(row) == 11
    assert (row[0], row[-1]) == (pipeline.tokenizer.prefix_and_suffix[0][0], pipeline.tokenizer.prefix_and_suffix[1][0])
    (tmp_path / "again").mkdir()
    write_folder(tmp_path / "again", pipeline.model, Tokenizers(pipeline.tokenizer, pipeline.tokenizer))
    again = chumoku.load(tmp_path / "again")
    assert again.config == pipeline.config
    assert json.loads((tmp_path / "again" / "sentence_bert_config.json").read_text())["max_seq_length"] == 11
    converted = tmp_path / "bundle"
    convert(tmp_path / "model", converted, to="chumoku")
    assert chumoku.load(converted).config == pipeline.config


@pytest.mark.parametrize(("limit", "read"), [(None, None), (10**6, 67), (3, 3)])
def test_limit_is_at_most_the_context(limit: int | None, read: int | None, tmp_path: Path) -> None:
    config = read_model_config(sentences(tmp_path, limit))
    assert config.context == 67
    assert config.max_seq_length == read
    (tmp_path / "sentence_bert_config.json").unlink()
    assert read_model_config(tmp_path).max_seq_length is None


@pytest.mark.parametrize("limit", ["256", 0, -1, 2.5, True, [3]])
def test_invalid_limit_is_refused(limit: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_seq_length"):
        read_model_config(sentences(tmp_path, limit))


def test_other_model_kinds_have_no_limit(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="max_seq_length is for encoders and models with labels, not for kind = 'decoder'"
    ):
        make_bundle(tmp_path / "decoder", "decoder", max_seq_length=7)
    with pytest.raises(UsageError, match="67 tokens are more than context = 61"):
        make_bundle(tmp_path / "encoder", "encoder", max_seq_length=67)


def test_embed_command_reports_cut_texts(tmp_path: Path, ask: Ask) -> None:
    folder = str(make_bundle(tmp_path / "encoder", "encoder", max_seq_length=5))
    ended = ask("embed", folder, "a text", "ab")
    assert ended.code == 0, ended.err
    assert ended.err == "1 of 2 texts were cut: this model reads the first 5 tokens of a text.\n"
    assert ask("embed", folder, "ab", "cd").err == ""
