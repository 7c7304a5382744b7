"""Encoder-decoder families compared with transformers: import, export, cached decoding and certificates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer
from foreign import VOCABULARY, edit_config, equal_models, export, randomize, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import chumoku
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.decoding.beam import search
from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.models.model import Model
from chumoku.text.tokenizer import with_prefix_and_suffix, with_roles
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.convert import convert
from chumoku.weights.families import find_family
from chumoku.weights.families.table import select_rows
from chumoku.weights.open_model import load

CLOSE = 1e-5


def bart(kind: str = "Bart", **changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 30, "max_position_embeddings": 67}
    for side, depth in (("encoder", 3), ("decoder", 2)):
        sizes |= {f"{side}_layers": depth, f"{side}_attention_heads": 5, f"{side}_ffn_dim": 41}
    sizes |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)  # type: ignore[no-any-return]


def t5(kind: str = "T5", **changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 31, "num_heads": 5, "d_kv": 7, "d_ff": 41}
    sizes |= {"num_layers": 3, "num_decoder_layers": 2, "layer_norm_epsilon": 1e-2}
    sizes |= {"relative_attention_num_buckets": 13, "relative_attention_max_distance": 17}
    sizes |= {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)  # type: ignore[no-any-return]


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "bart": bart,
    "bart scaled": lambda: bart(scale_embedding=True, activation_function="relu"),
    "mbart": lambda: bart("MBart", scale_embedding=True),
    "m2m100": lambda: bart("M2M100"),
    "t5": t5,
    "t5 1.1": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": lambda: t5("MT5", feed_forward_proj="gated-silu"),
    "m2m100 unscaled": lambda: bart("M2M100", scale_embedding=False, activation_function="gelu"),
}


def randomize_all(theirs: nn.Module) -> nn.Module:
    """Randomize learned positions too."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in randomize(theirs).named_parameters():
        if "embed_positions" in name:
            parameter.data.normal_(0, 0.3, generator=generator)
    return theirs


def save_variant(name: str, folder: Path) -> nn.Module:
    theirs = randomize_all(VARIANTS[name]())
    save_model(theirs, folder)
    return theirs


@torch.no_grad()
def outputs_of_both(ours: Model, theirs: nn.Module) -> tuple[Tensor, Tensor]:
    """Logits for two sources and targets without padding tokens; the second source is shorter."""
    random = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, VOCABULARY, (2, length), generator=random) for length in (31, 29))
    real = torch.arange(31) < torch.tensor([[31], [17]])
    expected = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits
    return ours(source, target, source_mask=real).logits, expected


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_equal_transformers_in_both_directions(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path / "theirs")
    first = load(tmp_path / "theirs").model
    ours, expected = outputs_of_both(first, theirs)
    assert (ours - expected).abs().max() <= CLOSE
    folder = export(first, tmp_path / "ours")
    written = json.loads((folder / "config.json").read_text())["model_type"]
    assert written == {"mt5": "t5"}.get(name, theirs.config.model_type)
    ours, expected = outputs_of_both(first, transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval())
    assert (ours - expected).abs().max() <= CLOSE
    again = load(folder).model
    assert equal_models(again, first)


@pytest.mark.parametrize("name", VARIANTS)
def test_tables_and_tensors_correspond(name: str, tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    config = load(tmp_path).model.config
    names = tensors_of(build(config, device="meta"))
    rows = select_rows(find_family(config).rows(config), names)
    assert {ours for row in rows for ours in row.ours} == set(names)
    assert len({row.theirs for row in rows}) == len(rows)


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_decoding_equals_transformers(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path)
    ours = load(tmp_path).model
    source = torch.randint(4, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(2))
    real = torch.arange(11) < torch.tensor([[11], [5], [7]])
    options = {"max_new_tokens": 13, "do_sample": False, "num_beams": 1, "bad_words_ids": [[0], [1]]}
    expected = theirs.generate(source, attention_mask=real.long(), **options).tolist()
    found = search(
        ours, source, source_mask=real, begin=1, end=2, beam=1, limit=13, length_penalty=0.0, forbidden=[0, 1]
    )  # fmt: skip
    assert [row[0].tokens for row in found] == [[token for token in row if token > 2] for row in expected]


@pytest.mark.parametrize("target", ["transformers", "ctranslate2"])
@pytest.mark.parametrize("name", ["bart", "mbart", "m2m100"])
def test_conversions_are_certified(name: str, target: str, tmp_path: Path) -> None:
    save_variant(name, tmp_path / "theirs")
    assert convert(tmp_path / "theirs", tmp_path / "out", to=target).checked


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bart", "tie_word_embeddings", False),
        ("bart", "decoder_ffn_dim", 43),
        ("bart", "normalize_before", True),
        ("mbart", "max_position_embeddings", 71),
        ("mbart", "max_position_embeddings", 61),
        ("m2m100", "d_model", 29),
        ("t5", "feed_forward_proj", "gated-relu"),
        ("t5", "relative_attention_num_buckets", 11),
        ("t5", "d_kv", 11),
        ("m2m100", "tie_word_embeddings", False),
    ],
)
def test_unsupported_configs_are_refused(name: str, key: str, value: object, tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    edit_config(tmp_path, **{key: value})
    with pytest.raises(UsageError):
        load(tmp_path)


def test_t5_with_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """FLAN-T5: transformers says that it is tied, and uses the matrix in the file."""
    save_variant("t5 1.1", tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    matrix = torch.randn(VOCABULARY, 31, generator=torch.Generator().manual_seed(3))
    save_file({**load_file(file), "lm_head.weight": matrix}, file, {"format": "pt"})
    ours = load(tmp_path / "theirs").model
    assert (ours.config.tie_output, ours.config.scale_logits) == (False, False)
    for folder in (tmp_path / "theirs", export(ours, tmp_path / "ours")):
        found, expected = outputs_of_both(ours, transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval())
        assert (found - expected).abs().max() <= CLOSE


def test_text_is_framed_as_in_transformers(tmp_path: Path) -> None:
    """BART reads <s> text </s>, and its decoder starts with </s>; a bundle keeps both."""
    theirs = save_variant("bart", tmp_path / "theirs")
    tokenizer = with_prefix_and_suffix(byte_tokenizer(), ["<s>"], ["</s>"])
    tokenizer.save(tmp_path / "theirs" / "tokenizer.json")
    edit_config(tmp_path / "theirs", decoder_start_token_id=2)
    pipeline = chumoku.load(tmp_path / "theirs")
    source = torch.tensor([[1, *tokenizer.encode("a cat"), 2]])
    options = {"max_new_tokens": 13, "do_sample": False, "num_beams": 1, "decoder_start_token_id": 2}
    special = [[token] for token in (0, 1, 3, 4, *range(tokenizer.size, VOCABULARY))]
    expected = theirs.generate(source, bad_words_ids=special, **options)[0, 1:].tolist()
    text = tokenizer.decode([token for token in expected if token > 2])
    assert pipeline.translate("a cat", beam=1, max_new_tokens=13, split=False) == text
    again = chumoku.load(pipeline.save(tmp_path / "bundle"))
    assert again.translate("a cat", beam=1, max_new_tokens=13, split=False) == text
    assert again.source_tokenizer.encode("a", source=True) == [1, *tokenizer.encode("a")]


def test_pairs_are_prepared_as_sources_are_read(tmp_path: Path) -> None:
    tokenizer = with_roles(byte_tokenizer(), {"source_begin": 1})
    (tmp_path / "pairs.tsv").write_text("one two\tthree\nfour\tfive six\n")
    folder = prepare_pairs([tmp_path / "pairs.tsv"], tokenizer, tmp_path / "out", validation=0.0)
    rows = open_pairs(folder).source
    found = sorted(rows[number].tolist() for number in range(len(rows)))
    assert found == sorted([1, *tokenizer.encode(text)] for text in ("one two", "four"))
