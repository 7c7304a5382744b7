"""GGUF files of decoders like Qwen, Gemma and Phi: names as in the gguf library, logits as in transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer
from foreign import ROPE, VOCABULARY, llama, outputs_of_both, randomize, save_model
from test_decoder_families import VARIANTS as FAMILIES
from test_decoder_families import YARN, gemma, gemma3, phi3, phi3_longrope, smollm3
from torch import nn

from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.models.config import RotarySettings
from chumoku.models.model import Model
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.families.gguf import ARCHITECTURES, find_architecture
from chumoku.weights.formats.gguf import open_gguf
from chumoku.weights.formats.gguf_model import write_gguf_model
from chumoku.weights.open_model import load

gguf = pytest.importorskip("gguf", reason="The gguf library has the names that ours are held against.")
ROPE_KEYS, PHI3 = gguf.Keys.Rope, ARCHITECTURES["phi3"]
CLOSE = 1e-5
WIDE = {"head_dim": 256, "query_pre_attn_scalar": 256}  # the library reads no other scale of Gemma from GGUF
LOCAL = {"rope_parameters": {"full_attention": ROPE, "sliding_attention": {**ROPE, "rope_theta": 10000.0}}}
VARIANTS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "llama head width": ("llama", lambda: llama(head_dim=10)),
    "llama attention biases": ("llama", lambda: llama(attention_bias=True)),
    "mistral": ("llama", lambda: llama("Mistral", sliding_window=None, num_hidden_layers=3)),
    "qwen2": ("qwen2", lambda: llama("Qwen2")),
    "qwen2 yarn": ("qwen2", lambda: llama("Qwen2", rope_parameters=YARN)),
    "qwen3": ("qwen3", lambda: llama("Qwen3", head_dim=10, num_hidden_layers=3)),
    "phi4 mini": ("phi3", FAMILIES["phi4 mini"]),
    "olmo2": ("olmo2", lambda: llama("Olmo2", num_hidden_layers=3)),
    "smollm3": ("smollm3", lambda: smollm3(no_rope_layer_interval=4)),
    "gemma2": ("gemma2", lambda: gemma("Gemma2", final_logit_softcapping=5.0, query_pre_attn_scalar=10)),
    "gemma3": (
        "gemma3",
        lambda: gemma3(**LOCAL, num_hidden_layers=7, sliding_window_pattern=6, query_pre_attn_scalar=10),
    ),
}
READ_BY_TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "qwen2": lambda: llama("Qwen2"),
    "qwen3": lambda: llama("Qwen3", head_dim=128),
    "gemma2": lambda: gemma("Gemma2", **WIDE),
    "gemma3": lambda: gemma3(**{**LOCAL, **WIDE, "num_hidden_layers": 7, "sliding_window_pattern": 6}),
}


def open_ours(theirs: nn.Module, folder: Path) -> Model:
    save_model(randomize(theirs), folder)
    return load(folder).model


def write(model: Model, path: Path) -> Path:
    write_gguf_model(path, model, Tokenizers(byte_tokenizer(), byte_tokenizer()), kind="f32")
    return path


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", VARIANTS)
def test_files_are_written_and_read(name: str, pairing: str, tmp_path: Path) -> None:
    architecture, make = VARIANTS[name]
    model = open_ours(make(), tmp_path / "theirs")
    if pairing == "interleaved":
        model = randomize(build(replace(model.config, pairing="interleaved")))
    assert find_architecture(model.config).name == architecture
    path = write(model, tmp_path / "model.gguf")
    number = next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = {gguf.TENSOR_NAMES[one] for one in gguf.MODEL_TENSORS[number]}
    found = {tensor.rsplit(".", 1)[0] for tensor in open_gguf(path).shapes}
    assert {part.replace(".0.", ".{bid}.") for part in found if ".0." in part or "blk" not in part} <= names
    again = load(path).model
    ids = torch.randint(VOCABULARY, (2, 31), generator=torch.Generator().manual_seed(1))
    expected, output = model(ids).logits, again(ids).logits
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())
    second = load(write(again, tmp_path / "again.gguf")).model
    assert second.config == again.config


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_files(name: str, tmp_path: Path) -> None:
    model = open_ours(READ_BY_TRANSFORMERS[name](), tmp_path / "theirs")
    write(model, tmp_path / "model.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    output, expected = outputs_of_both(model, theirs.eval())
    assert (output - expected).abs().max() <= 10 * CLOSE * max(1, expected.abs().max())


def test_joined_matrices_are_written_and_read(tmp_path: Path) -> None:
    """A Phi-3 is written as a Llama, unless its architecture is given."""
    model = open_ours(phi3(), tmp_path / "theirs")
    for pairing in ("half", "interleaved"):
        model = randomize(build(replace(model.config, pairing=pairing)))
        assert find_architecture(model.config).name == "llama"
        path = tmp_path / f"{pairing}.gguf"
        tokenizers = Tokenizers(byte_tokenizer(), byte_tokenizer())
        write_gguf_model(path, model, tokenizers, kind="f32", architecture=ARCHITECTURES["phi3"])
        assert {"blk.0.attn_qkv.weight", "blk.0.ffn_up.weight"} <= open_gguf(path).shapes.keys()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
        for other in (load(path).model, theirs.eval()):
            output, expected = outputs_of_both(model, other)
            assert (output - expected).abs().max() <= 10 * CLOSE * max(1, expected.abs().max())


def test_longrope_is_written_and_read(tmp_path: Path) -> None:
    """The file has the names of the gguf library; the model that is read from it is the same."""
    model = open_ours(phi3_longrope(17, sliding_window=71), tmp_path / "theirs")
    factors = {"short_factors": [1.0, 1.25, 1.75], "long_factors": [1.25, 5.0, 11.0]}  # exact in float32
    rotary = replace(model.config.rotary, **factors)
    tensors = {gguf.TENSOR_NAMES[getattr(gguf.MODEL_TENSOR, f"ROPE_FACTORS_{kind}")] for kind in ("LONG", "SHORT")}
    keys = [key.format(arch="phi3") for key in (ROPE_KEYS.SCALING_ATTN_FACTOR, ROPE_KEYS.SCALING_ORIG_CTX_LEN)]
    for settings in (rotary, replace(rotary, factor=3.0, attention_factor=1.375)):
        model = randomize(build(replace(model.config, rotary=settings, norm_epsilon=0.0625)))
        file = open_gguf(path := write(model, tmp_path / "model.gguf"))
        assert {f"{name}.weight" for name in tensors} <= file.shapes.keys()
        magnitude = settings.attention_factor or (1 + math.log(67 / 17) / math.log(17)) ** 0.5
        assert [file.fields[key] for key in keys] == [pytest.approx(magnitude), 17]
        again = load(path).model
        assert again.config == model.config
        ids = torch.randint(VOCABULARY, (2, 31), generator=torch.Generator().manual_seed(1))
        assert torch.equal(again(ids).logits, model(ids).logits)


ONES = {f"rope_factors_{kind}.weight": torch.ones(3) for kind in ("short", "long")}


@pytest.mark.parametrize(
    ("tensors", "fields", "words"),
    [
        (
            {"rope_factors_long.weight": torch.ones(5)},
            {},
            r"rope_factors_long.weight has shape \[5\]; longrope needs 3",
        ),
        ({"rope_factors_short.weight": None}, {}, "lacks the tensor rope_factors_short.weight, which longrope needs"),
        ({"rope_factors_long.weight": torch.zeros(3)}, {}, "long_factors"),
        ({}, {"rope.scaling.type": "yarn"}, "by longrope and by 'yarn' at once"),
        ({}, {"rope.scaling.factor": 2.0}, "by longrope and by 'linear' at once"),
        ({}, {"rope.scaling.original_context_length": 1}, "original context above 1"),
        ({}, {"rope.dimension_count": 0}, r"has shape \[3\]; longrope needs 0"),
        (dict.fromkeys(ONES), {}, "rope.scaling.attn_factor = 1.2"),
    ],
)
def test_a_file_with_wrong_longrope_is_refused(
    tensors: dict[str, Any], fields: dict[str, Any], words: str, longrope: Model, tmp_path: Path
) -> None:
    kept = {name: tensor for name, tensor in {**ONES, **tensors}.items() if tensor is not None}
    architecture = PHI3._replace(
        write=lambda config: {**PHI3.write(config), **{f"phi3.{key}": value for key, value in fields.items()}},
        extra_tensors=lambda config: kept,
    )
    tokenizers = Tokenizers(byte_tokenizer(), byte_tokenizer())
    write_gguf_model(tmp_path / "model.gguf", longrope, tokenizers, kind="f32", architecture=architecture)
    with pytest.raises(UsageError, match=words):
        load(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_ours(phi3_longrope(17), tmp_path_factory.mktemp("longrope"))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gemma2", {"score_cap": None}, "soft-capping"),
        ("gemma2", {"attention_scale": 0.7}, "attention_scale"),
        ("gemma3", {"full_attention_every": 3}, "full_attention_every = 3"),
        ("gemma3", {"rotary": RotarySettings(local_base=7.0)}, r"rotary\.local_base = 7\.0"),
        ("smollm3", {"no_position_every": 2}, "no_position_every = 2"),
        ("qwen2 yarn", {"rotary": RotarySettings(scaling="yarn", factor=4.0, high=8.0)}, "yarn"),
        ("qwen3", {"attention_window": 5}, "attention_window = 5"),
        ("phi4 mini", {"attention_window": 61}, "attention_window = 61"),
    ],
)
def test_what_llama_cpp_cannot_run_is_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = open_ours(VARIANTS[name][1](), tmp_path / "theirs")
    with pytest.raises(UsageError, match=words):
        write(build(replace(model.config, **changes)), tmp_path / "model.gguf")
