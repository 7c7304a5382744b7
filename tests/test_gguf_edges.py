"""Edge cases of GGUF: keys of other models, scaled positions, more embedding rows than tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer
from foreign import VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st
from test_foreign import LLAMAS, SMALL, random_model
from torch import Tensor

import chumoku
from chumoku.errors import ChumokuError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits
from chumoku.text.formats.sentencepiece import UNUSED
from chumoku.text.tokenizer import Tokenizer
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.formats.gguf import open_gguf, write_gguf
from chumoku.weights.formats.gguf_model import TOKENS, pad_vocabulary, write_gguf_model
from chumoku.weights.open_model import load

pytest.importorskip("gguf", reason="Files are written with the gguf library.")

LLAMA = {"width": 36, "heads": 6, "norm": "rms", "feedforward": "swiglu", "bias": False}
GPT2 = {"width": 30, "heads": 3, "position": "learned", "feedforward": "gelu_tanh"}


def make_config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **LLAMA, **changes})


def export(path: Path, model: Model, tokenizer: Tokenizer | None = None, kind: Any = "f32") -> Path:
    tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
    write_gguf_model(path, model, Tokenizers(tokenizer, tokenizer), kind=kind)
    return path


def edit_file(path: Path, fields: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Path:
    """Rewrite a file with changed fields and added tensors; None removes a field."""
    file = open_gguf(path)
    given = {name: value for name, value in {**file.fields, **fields}.items() if value is not None}
    kept = {name: file.read(name) for name in file.tensors} | (tensors or {})
    write_gguf(path, architecture=given["general.architecture"], fields=given, tensors=kept, kind="f32")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return export(tmp_path_factory.mktemp("plain") / "a.gguf", random_model(make_config())).read_bytes()


@pytest.fixture
def file(plain: bytes, tmp_path: Path) -> Path:
    (tmp_path / "a.gguf").write_bytes(plain)
    return tmp_path / "a.gguf"


# Positions

ROPE = "llama.rope."
LINEAR = {f"{ROPE}scaling.type": "linear"}


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({f"{ROPE}scale_linear": 3.0}, 3.0),
        ({f"{ROPE}scaling.factor": 3.0}, 3.0),
        ({**LINEAR, f"{ROPE}scaling.factor": 3.0}, 3.0),
        ({**LINEAR, f"{ROPE}scale_linear": 3.0}, 3.0),
        ({f"{ROPE}scaling.factor": 5.0, f"{ROPE}scale_linear": 3.0}, 5.0),
        ({f"{ROPE}scaling.type": "none", f"{ROPE}scaling.factor": 3.0}, None),
        ({f"{ROPE}scaling.factor": 0.0}, None),
        ({f"{ROPE}scaling.factor": 1.0}, None),
        ({f"{ROPE}scale_linear": 1.0}, None),
        ({f"{ROPE}scale_linear": 0.0}, None),
        (LINEAR, None),
        ({}, None),
    ],
)
def test_linear_scaling_is_read_like_llama_cpp(fields: dict[str, Any], factor: float | None, file: Path) -> None:
    rotary = load(edit_file(file, fields)).config.rotary
    assert (rotary.scaling, rotary.factor) == (("none", 1.0) if factor is None else ("linear", factor))
    assert rotary.base == 10000.0


def test_rope_base_is_read(file: Path) -> None:
    assert load(edit_file(file, {f"{ROPE}freq_base": 77.0})).config.rotary.base == 77.0
    assert load(edit_file(file, {f"{ROPE}freq_base": None})).config.rotary.base == 10000.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.attn_factor", 1.5),
        ("attention.causal", False),
        ("attention.value_length", 8),
        ("rope.dimension_count", 4),
        ("expert_count", 2),
        ("attention.scale", 0.5),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.sliding_window", 16),
        ("logit_scale", 0.5),
        ("use_parallel_residual", True),
        ("embedding_scale", 6.0),
        ("residual_scale", 0.5),
    ],
)
def test_keys_of_other_models_are_refused_by_name(key: str, value: object, file: Path) -> None:
    with pytest.raises(UsageError, match=f"llama.{key} = {value}".replace(".", r"\.")):
        load(edit_file(file, {f"llama.{key}": value}))


def test_same_keys_with_default_values_are_accepted(file: Path) -> None:
    usual = {"rope.scaling.attn_factor": 1.0, "attention.causal": True, "attention.key_length": 6, "expert_count": 0}
    usual |= {"attention.value_length": 6, "rope.dimension_count": 6, "logit_scale": 0.0}
    before = load(file).config
    assert load(edit_file(file, {f"llama.{key}": value for key, value in usual.items()})).config == before
    assert load(edit_file(file, {"llama.rope.dimension_count": None})).config == before


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "", 3])
def test_unknown_scaling_is_named(kind: object, file: Path) -> None:
    with pytest.raises(UsageError, match=f"scales rotary positions by '{kind}'"):
        load(edit_file(file, {f"{ROPE}scaling.type": kind, f"{ROPE}scaling.factor": 2.0}))


def test_factors_are_llama_3s_or_refused(file: Path, tmp_path: Path) -> None:
    for fields, factors in (
        ({**LINEAR, f"{ROPE}scaling.factor": 2.0}, [1.0, 1.0, 1.0]),  # both at once
        ({f"{ROPE}scale_linear": 2.0}, [1.0, 1.0, 1.0]),
        ({}, [1.0, 2.0, 8.0]),
        ({}, [0.5, 0.5, 0.5]),
        ({}, [1.0, 1.0]),
    ):
        other = tmp_path / "b.gguf"
        other.write_bytes(file.read_bytes())
        with pytest.raises(UsageError, match="rope_freqs"):
            load(edit_file(other, fields, {"rope_freqs.weight": torch.tensor(factors)}))
    ones = {"rope_freqs.weight": torch.ones(3)}
    assert load(edit_file(file, {}, ones)).config.rotary.scaling == "none"


@pytest.mark.parametrize("rotary", [
    {"factor": 8.0, "original": 16, "base": 77.0},
    {"factor": 32.0, "original": 8192, "base": 500000.0},
    {"factor": 3.5, "original": 13, "low": 1.5, "high": 3.0},
    {"factor": 1.00037, "original": 16},
    {"factor": 8.0, "original": 16, "low": 0.25, "high": 9.0},
    {"factor": 8.0, "original": 1 << 20, "base": 77.0},  # nothing is long enough to be stretched
])  # fmt: skip
def test_llama_3_scaling_round_trip(rotary: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(rotary={"scaling": "llama3", **rotary}, norm_epsilon=2.0**-10)
    model = random_model(config)
    again = load(export(tmp_path / "a.gguf", model)).model
    found, expected = again.config.rotary, config.rotary
    for key in ("factor", "low", "high", "base"):
        assert getattr(found, key) == pytest.approx(getattr(expected, key), rel=1e-7)
    assert (found.original, found.scaling) == (expected.original, "llama3")
    third = load(export(tmp_path / "b.gguf", again)).model
    assert third.config == again.config
    ids = torch.arange(61)[None] * 7 % VOCABULARY
    torch.testing.assert_close(third(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_original_llama_3_factors_are_recognized(tmp_path: Path) -> None:
    rotary = {"scaling": "llama3", "factor": 32.0, "base": 500000.0}
    path = export(tmp_path / "a.gguf", random_model(make_config(width=192, heads=6, rotary=rotary)))
    ours = [name for name in open_gguf(path).fields if name.startswith("chumoku.")]
    assert len(ours) == 4
    found = load(edit_file(path, dict.fromkeys(ours))).config.rotary
    assert (found.scaling, found.factor, found.low, found.high, found.original) == ("llama3", 32.0, 1.0, 4.0, 8192)


# Round trips

EPSILONS = st.sampled_from([2.0**-7, 2.0**-17, 1e-2, 1e-6])


def in_llama_cpp(choices: dict[str, Any]) -> dict[str, Any]:
    """A Llama without what llama.cpp's has no field for: windows, layers without positions, factors of yarn."""
    rotary = {key: value for key, value in choices["rotary"].items() if key != "attention_factor"}
    kind = {"width": 36, "heads": 6, "norm": "rms", "feedforward": "swiglu"}
    return {**kind, **choices, "rotary": rotary, "attention_window": None, "no_position_every": None}


WHOLES = st.one_of(
    LLAMAS.map(in_llama_cpp),
    st.fixed_dictionaries({"tie_output": st.booleans(), "width": st.sampled_from([30, 42]),
        "heads": st.sampled_from([1, 3])}).map(lambda choices: {**GPT2, **choices}),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(choices=WHOLES, epsilon=EPSILONS, context=st.sampled_from([67, 71]))
def test_round_trip(
    choices: dict[str, Any], epsilon: float, context: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gguf")
    config = ModelConfig(**{**SMALL, **choices, "norm_epsilon": epsilon, "context": context})
    model = random_model(config)
    first = load(export(folder / "a.gguf", model)).model
    again = load(export(folder / "b.gguf", first)).model
    assert again.config == first.config
    assert (folder / "a.gguf").read_bytes() == (folder / "b.gguf").read_bytes()
    tensors, others = tensors_of(first), tensors_of(again)
    assert tensors.keys() == others.keys() == tensors_of(model).keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    for key in ("kv_heads", "bias", "tie_output", "layers", "heads", "width", "context", "vocabulary", "hidden"):
        assert getattr(first.config, key) == getattr(config, key), key
    assert first.config.norm_epsilon == pytest.approx(epsilon, rel=1e-7)
    if config.pairing == "interleaved" or config.position == "learned":
        assert all(torch.equal(tensor, tensors_of(model)[name]) for name, tensor in tensors.items())
    ids = torch.randint(VOCABULARY, (2, 31), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(first(ids).logits, model(ids).logits, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": True, "tie_output": False},
        {"bias": True, "tie_output": True, "kv_heads": 1},
        {**GPT2, "width": 64, "heads": 2, "tie_output": False, "bias": True, "norm": "layer"},
    ],
)
@torch.no_grad()
def test_quantized_models_compute_like_float_models(changes: dict[str, Any], tmp_path: Path) -> None:
    """Q8_0 matrices with biases, embedding and untied head, compared with the same file dequantized."""
    model = random_model(
        make_config(**{"width": 64, "heads": 2, "feedforward_width": 96, "pairing": "half", **changes})
    )
    path = export(tmp_path / "a.gguf", model, kind="q8_0")
    ids = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    whole, floats = (load(path, dequantize=kept).model for kept in (False, True))
    assert isinstance(whole.decoder.embedding, QuantizedEmbedding)  # type: ignore[union-attr]
    assert isinstance(whole.head, QuantizedLogits)
    assert isinstance(whole.decoder.blocks[0].feedforward.down, QuantizedLinear)  # type: ignore[union-attr]
    assert not any(isinstance(module, QuantizedLinear) for module in floats.modules())
    scale = float(floats(ids).logits.abs().max())
    assert (whole(ids).logits - floats(ids).logits).abs().max() <= 3e-2 * scale
    assert (floats(ids).logits - model(ids).logits).abs().max() <= 0.2 * scale
    assert all(parameter.requires_grad for parameter in whole.parameters())


# More rows than tokens


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), chat_tokenizer()], ids=["byte", "bpe"])
def test_extra_rows_get_unused_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = random_model(make_config(vocabulary=tokenizer.size + 5))
    path = export(tmp_path / "a.gguf", model, tokenizer)
    fields = open_gguf(path).fields
    assert len(fields[TOKENS]) == len(fields["tokenizer.ggml.token_type"]) == tokenizer.size + 5
    assert fields[TOKENS][-5:] == [f"<unused{tokenizer.size + place}>" for place in range(5)]
    assert fields["tokenizer.ggml.token_type"][-5:] == [UNUSED] * 5
    again = load(path)
    assert again.tokenizer.size == again.config.vocabulary == tokenizer.size + 5
    for words in ("Two words — ふたつ", "<unused262>", f"<unused{tokenizer.size}>"):
        assert again.tokenizer.encode(words) == tokenizer.encode(words)
        assert again.tokenizer.decode(tokenizer.encode(words)) == words
    assert again.tokenizer.roles == tokenizer.roles


def test_token_lists_are_padded_together() -> None:
    fields = {TOKENS: ["a", "b"], "tokenizer.ggml.scores": [-1.0, -2.0], "tokenizer.ggml.token_type": [1, 1], "x": [7]}
    grown = pad_vocabulary(fields, 4)
    assert grown[TOKENS] == ["a", "b", "<unused2>", "<unused3>"]
    assert grown["tokenizer.ggml.scores"] == [-1.0, -2.0, 0.0, 0.0]
    assert grown["tokenizer.ggml.token_type"] == [1, 1, UNUSED, UNUSED]
    assert grown["x"] == [7]
    assert pad_vocabulary(fields, 2) == pad_vocabulary(fields, 1) == fields
    assert "tokenizer.ggml.scores" not in pad_vocabulary({TOKENS: ["a"]}, 3)


def test_llama_cpp_scales_positions_the_same(file: Path, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed.")
    kept = file.read_bytes()
    ids = [number * 7 % VOCABULARY for number in range(31)]
    for place, fields in enumerate((
        {},
        {f"{ROPE}scale_linear": 3.0},
        {f"{ROPE}scaling.factor": 3.0},
        {f"{ROPE}scaling.type": "none", f"{ROPE}scaling.factor": 3.0},
    )):  # fmt: skip
        path = tmp_path / f"{place}.gguf"
        path.write_bytes(kept)
        edit_file(path, fields)
        theirs = llama_cpp.Llama(str(path), n_ctx=61, logits_all=True, verbose=False, n_threads=1)
        theirs.eval(ids)
        expected = torch.tensor(theirs.scores[: len(ids)])
        found = load(path).model(torch.tensor([ids])).logits[0]
        assert (found - expected).abs().max() <= 2e-2 * expected.abs().max(), fields


# Wrong files


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"llama.block_count": None}, r"llama\.block_count"),
        ({"llama.attention.head_count": [6, 6]}, r"llama\.attention\.head_count"),
        ({"llama.block_count": 3}, r"blk\.2"),
        ({"llama.block_count": 1}, r"blk\.1"),
        ({"llama.block_count": 1024}, r"blk|many more"),
        ({"llama.attention.head_count_kv": 3}, "attn_k"),
        ({"llama.feed_forward_length": 43}, "ffn"),
        ({f"{ROPE}freq_base": -1.0}, r"rotary\.base"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon"),
    ],
)
def test_inconsistent_files_are_refused(fields: dict[str, Any], message: str, file: Path) -> None:
    if "general.architecture" in fields:
        data = file.read_bytes()
        file.write_bytes(data.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba", 1))
    else:
        edit_file(file, fields)
    with pytest.raises(ChumokuError, match=message):
        chumoku.load(file)
