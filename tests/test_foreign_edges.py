"""Where weights of others are odd: tensors that are there twice, tables that differ, keys left out, links and bounds."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import transformers
from bundles import bytewise, chatty, made
from foreign import LLAMA3, ROPE, VOCABULARY, bert, both, filled, gpt2, llama, marian, saved, variant
from safetensors.torch import load_file, save_file
from test_foreign import CLOSE, cached, noisy, written
from torch import Tensor, nn

import chumoku
import chumoku.cli
from chumoku import lora, text, untrusted
from chumoku.decoding import embed, translate
from chumoku.errors import DamagedError, UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.nn.positions import Pairing, sinusoidal
from chumoku.nn.quantised import Int8Groups, Quantised, QuantisedEmbedding, QuantisedLogits
from chumoku.text.roles import Roles
from chumoku.text.tokenizer import framed
from chumoku.training import result
from chumoku.weights import convert as converting
from chumoku.weights import folder as folders
from chumoku.weights import hub, stored
from chumoku.weights.bundle import Bundle, Tokenizers, tensors_of
from chumoku.weights.convert import convert
from chumoku.weights.families import FAMILIES
from chumoku.weights.families.family import obstacles
from chumoku.weights.families.ggml import DIALECTS
from chumoku.weights.folder import read_folder, write_folder
from chumoku.weights.making import fill
from chumoku.weights.opening import load, recognised

WEIGHTS, CONFIG = "model.safetensors", "config.json"
NOTHING: Any = SimpleNamespace(path="a file", shapes={})


def change(folder: Path, **values: object) -> Path:
    """Other values in a folder's config.json; None takes a key out."""
    path = folder / CONFIG
    found = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


def add(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({**load_file(folder / WEIGHTS), **tensors}, folder / WEIGHTS, {"format": "pt"})
    return folder


def named(text: str) -> str:
    return text.replace(".", r"\.").replace("[", r"\[")


def apart(folder: Path, theirs: nn.Module) -> float:
    said, expected = both(load(folder).model, theirs)
    return float((said - expected).abs().max())


# Tensors that should be one


@pytest.mark.parametrize(
    ("name", "repeat", "first"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("llama tied", "lm_head.weight", "model.embed_tokens.weight"),
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("marian", "lm_head.weight", "model.shared.weight"),
        ("marian", "model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("marian", "model.decoder.embed_tokens.weight", "model.shared.weight"),
        ("marian two tables", "lm_head.weight", "model.decoder.embed_tokens.weight"),
    ],
)
def test_what_is_said_to_be_one_is_one(name: str, repeat: str, first: str, tmp_path: Path) -> None:
    theirs = variant(name, tmp_path)
    twin = load_file(tmp_path / WEIGHTS)[first].clone()
    assert apart(add(tmp_path, {repeat: twin}), theirs) <= CLOSE
    twin.view(-1)[-1] += 1e-3
    with pytest.raises(UsageError, match=f"{named(repeat)} beside {named(first)}"):
        load(add(tmp_path, {repeat: twin}))
    with pytest.raises(UsageError, match=f"{named(repeat)} beside {named(first)}"):
        load(add(tmp_path, {repeat: twin[:-1].clone()}))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gpt2", {"transformer.h.1.attn.bias": (1, 1, 67, 67), "transformer.h.0.attn.masked_bias": ()}),
        ("llama", {"model.layers.1.self_attn.rotary_emb.inv_freq": (3,)}),
        ("bert", {"cls.seq_relationship.weight": (2, 30), "cls.seq_relationship.bias": (2,),
                  "bert.pooler.dense.weight": (30, 30), "bert.pooler.dense.bias": (30,),
                  "bert.embeddings.position_ids": (1, 67)}),
        ("bert body", {"pooler.dense.weight": (30, 30), "embeddings.position_ids": (1, 67)}),
    ],
)  # fmt: skip
def test_tensors_that_mean_nothing_here_are_left_out(
    name: str, more: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    theirs = variant(name, tmp_path)
    whole = {"position_ids": torch.int64, "attn.bias": torch.uint8}
    for key, shape in more.items():
        dtype = next((dtype for end, dtype in whole.items() if key.endswith(end)), torch.float32)
        add(tmp_path, {key: torch.ones(shape, dtype=dtype)})
    assert apart(tmp_path, theirs) <= CLOSE
    odd = next(iter(more)) + "es"
    with pytest.raises(UsageError, match=named(odd)):
        load(add(tmp_path, {odd: torch.ones(3)}))


# Marian's positions


def table_of(pairing: Pairing) -> Tensor:
    return sinusoidal(torch.arange(67), 30, pairing=pairing, dtype=torch.float64).float()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_one_learned_table_of_marian_is_enough(side: str, tmp_path: Path) -> None:
    theirs = filled(marian())
    getattr(theirs.model, side).embed_positions.weight.data.normal_(generator=torch.Generator().manual_seed(5))
    saved(theirs, tmp_path)
    names = {part: f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")}
    add(tmp_path, {name: theirs.state_dict()[name] for name in names.values()})
    assert load(tmp_path).config.position == "learned"
    assert apart(tmp_path, theirs) <= CLOSE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_tables_of_16_bits_are_known_too(pairing: Pairing, dtype: torch.dtype, tmp_path: Path) -> None:
    variant("marian", tmp_path)
    tables = {f"model.{side}.embed_positions.weight": table_of(pairing).to(dtype) for side in ("encoder", "decoder")}
    config = load(add(tmp_path, tables)).config
    assert (config.position, config.pairing) == ("sinusoidal", pairing)


@pytest.mark.parametrize("shape", [(67, 31), (66, 30), (67,), (67, 30, 1)])
def test_a_table_of_another_shape_is_not_read(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant("marian", tmp_path)
    name = "model.decoder.embed_positions.weight"
    add(tmp_path, {name: torch.zeros(shape)})
    monkeypatch.setattr(stored.Stored, "read", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UsageError, match=named(name)):
        folders.describe_folder(tmp_path)


# Tokenizers that go out

ENCODER = {"kind": "encoder", "position": "learned", "placement": "post", "embedding_norm": True, "segments": 2}
TRANSLATOR = {"kind": "encoder-decoder", "position": "sinusoidal", "placement": "post", "share_embeddings": True}
LLAMA = {"norm": "rms", "feedforward": "swiglu", "bias": False}
GPT2 = {"position": "learned", "feedforward": "gelu_tanh"}


def small(**changes: Any) -> ModelConfig:
    sizes = {"vocabulary": VOCABULARY, "context": 67, "layers": 2, "width": 12, "heads": 3, "feedforward_width": 17}
    return ModelConfig(**{**sizes, **changes})


def sent(folder: Path, config: ModelConfig, target: text.Tokenizer, source: text.Tokenizer | None = None) -> Path:
    folder.mkdir()
    write_folder(folder, noisy(config), Tokenizers(target, target if source is None else source))
    return folder


def test_exported_tokenizers_end_as_ours_do(tmp_path: Path) -> None:
    words, tokenizer = "Two words — ふたつ", bytewise()
    expected = [*tokenizer.encode(words), tokenizer.roles.end]
    for name, changes in {"masked": ENCODER, "vector": {**ENCODER, "head": "vector"}, "pairs": TRANSLATOR}.items():
        theirs = transformers.AutoTokenizer.from_pretrained(sent(tmp_path / name, small(**changes), tokenizer))
        assert theirs(words).input_ids == expected
        assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.roles.end, tokenizer.roles.pad)
        ours = load(tmp_path / name)
        encode: Any = translate.encode if name == "pairs" else embed.encode
        options = {"into": None, "within": None} if name == "pairs" else {}
        assert encode(ours.model, [words], ours.source_tokenizer, **options) == [expected]
    theirs = transformers.AutoTokenizer.from_pretrained(sent(tmp_path / "decoder", small(**LLAMA), tokenizer))
    assert theirs(words).input_ids == expected[:-1]


def test_a_frame_of_its_own_stays(tmp_path: Path) -> None:
    tokenizer = bytewise()
    begin, end = (tokenizer.token(number) for number in (tokenizer.roles.begin, tokenizer.roles.end))
    tokenizer = framed(tokenizer, [begin, begin], [end])
    theirs = transformers.AutoTokenizer.from_pretrained(sent(tmp_path / "a", small(**ENCODER), tokenizer))
    assert theirs("a").input_ids == [*[tokenizer.roles.begin] * 2, *tokenizer.encode("a"), tokenizer.roles.end]


def test_two_tokenizers_go_out_and_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(**{**TRANSLATOR, "share_embeddings": False}, source_vocabulary=269)
    target, source = bytewise(), chatty()
    called: list[Any] = []
    monkeypatch.setattr(folders, "write_marian", lambda *given: called.append(given))
    ours = load(sent(tmp_path / "a", config, target, source))
    assert ours.tokenizer.encode("é") == target.encode("é")
    assert ours.source_tokenizer.encode("é") == source.encode("é")
    assert ours.source_tokenizer.frame[1] == ((source.roles.end,) if source.roles.end is not None else ())
    assert not called
    pieces = [text.train(["one two three four"] * 3, kind="unigram", vocabulary=size) for size in (31, 37)]
    sent(tmp_path / "b", config, *pieces)
    assert called == [(pieces[1], pieces[0], tmp_path / "b")]
    sent(tmp_path / "c", config, pieces[0], source)
    sent(tmp_path / "d", small(**TRANSLATOR), pieces[0])
    assert len(called) == 1


def test_marians_own_tokenizer_gives_our_numbers(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it")
    config = small(**{**TRANSLATOR, "share_embeddings": False}, source_vocabulary=269)
    lines = ["one two three four", "five six seven"] * 3
    target, source = (text.train(lines, kind="unigram", vocabulary=size) for size in (41, 47))
    folder = sent(tmp_path / "a", config, target, source)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    words = "two seven one"
    (expected,) = translate.encode(ours.model, [words], ours.source_tokenizer, into=None, within=None)  # type: ignore[arg-type]
    assert theirs(words).input_ids == expected == [*source.encode(words), source.roles.end]
    assert theirs(text_target=words).input_ids == [*target.encode(words), target.roles.end]


# Configs that go out


@pytest.mark.parametrize("changes", [LLAMA, GPT2, ENCODER, TRANSLATOR], ids=["llama", "gpt2", "bert", "marian"])
def test_ids_and_types_are_said(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = bytewise()
    roles = tokenizer.roles
    sent(tmp_path / "a", small(**changes, **({"rotary": {"base": 77.0}} if changes is LLAMA else {})), tokenizer)
    values = json.loads((tmp_path / "a" / CONFIG).read_text())
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "a")
    assert len({roles.begin, roles.end, roles.pad}) == 3
    assert theirs.pad_token_id == roles.pad
    assert values["dtype"] == "float32"
    if changes is TRANSLATOR:
        assert (theirs.decoder_start_token_id, theirs.eos_token_id) == (roles.begin, roles.end)
        assert values["bos_token_id"] is values["forced_eos_token_id"] is None
    elif changes is not ENCODER:
        assert (theirs.bos_token_id, theirs.eos_token_id) == (roles.begin, roles.end)
    if changes is LLAMA:
        assert values["rope_theta"] == theirs.rope_parameters["rope_theta"] == 77.0
    (tmp_path / "b").mkdir()
    write_folder(tmp_path / "b", noisy(small(**changes)).to(torch.bfloat16), Tokenizers(tokenizer, tokenizer))
    assert json.loads((tmp_path / "b" / CONFIG).read_text())["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in load_file(tmp_path / "b" / WEIGHTS).values()} == {torch.bfloat16}


@torch.no_grad()
def test_their_generation_stops_at_our_end(tmp_path: Path) -> None:
    tokenizer = bytewise()
    end, begin = tokenizer.roles.end, tokenizer.roles.begin
    decoder, translator = noisy(small(**GPT2, tie_output=False)), noisy(small(**TRANSLATOR, output_bias=True))
    decoder.decoder.norm.gamma.zero_()  # type: ignore[union-attr]
    decoder.decoder.norm.beta.fill_(1.0)  # type: ignore[union-attr]
    decoder.head.weight.zero_()[end] = 1.0  # type: ignore[operator]
    translator.head.bias[end] = 1e4  # type: ignore[index]
    kinds = {"AutoModelForCausalLM": decoder, "AutoModelForSeq2SeqLM": translator}
    said = {}
    for kind, model in kinds.items():
        folder = written(model, tmp_path / kind)
        theirs = getattr(transformers, kind).from_pretrained(folder).eval()
        said[kind] = theirs.generate(torch.tensor([[5, 7]]), max_new_tokens=11, do_sample=False).tolist()
    assert said == {"AutoModelForCausalLM": [[5, 7, end]], "AutoModelForSeq2SeqLM": [[begin, end]]}


# Configs that come in

THEIRS = {
    "gpt2": transformers.GPT2Config,
    "bert": transformers.BertConfig,
    "llama": transformers.LlamaConfig,
    "marian": transformers.MarianConfig,
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_key_left_out_is_as_they_have_it(name: str) -> None:
    """Alone, and all of them."""
    theirs, read = json.loads(THEIRS[name]().to_json_string(use_diff=False)), FAMILIES[name].read
    expected = read(theirs, NOTHING)
    assert read({}, NOTHING) == expected
    pairs = ("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
    for key in theirs:
        if key not in pairs:
            assert read({one: value for one, value in theirs.items() if one != key}, NOTHING) == expected, key


@pytest.mark.parametrize(
    ("name", "values", "key", "expected"),
    [
        ("gpt2", {"layer_norm_epsilon": 3e-3}, "norm_epsilon", 3e-3),
        ("gpt2", {"n_inner": 41}, "feedforward_width", 41),
        ("gpt2", {"n_embd": 24}, "feedforward_width", 96),
        ("gpt2", {"embd_pdrop": 0.11}, "dropout", {"embedding": 0.11, "attention": 0.1, "sublayer": 0.1}),
        ("gpt2", {"attn_pdrop": 0.12}, "dropout", {"embedding": 0.1, "attention": 0.12, "sublayer": 0.1}),
        ("gpt2", {"resid_pdrop": 0.13}, "dropout", {"embedding": 0.1, "attention": 0.1, "sublayer": 0.13}),
        ("gpt2", {"tie_word_embeddings": False}, "tie_output", False),
        ("bert", {"layer_norm_eps": 3e-3}, "norm_epsilon", 3e-3),
        ("bert", {"type_vocab_size": 5}, "segments", 5),
        ("bert", {"hidden_dropout_prob": 0.11}, "dropout", {"embedding": 0.11, "attention": 0.1, "sublayer": 0.11}),
        ("bert", {"attention_probs_dropout_prob": 0.12}, "dropout",
         {"embedding": 0.1, "attention": 0.12, "sublayer": 0.1}),
        ("bert", {"hidden_act": "gelu_pytorch_tanh"}, "feedforward", "gelu_tanh"),
        ("llama", {"rms_norm_eps": 3e-3}, "norm_epsilon", 3e-3),
        ("llama", {"attention_dropout": 0.12}, "dropout", {"embedding": 0.0, "attention": 0.12, "sublayer": 0.0}),
        ("llama", {"num_key_value_heads": 8}, "kv_heads", 8),
        ("llama", {"attention_bias": True, "mlp_bias": True}, "bias", True),
        ("llama", {"rope_theta": 77.0}, "rotary.base", 77.0),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}}, "rotary.factor", 3.0),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}}, "rotary.scaling", "linear"),
        ("llama", {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 3.0}}, "rotary.factor", 1.0),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0, "rope_theta": 11.0},
                   "rope_parameters": {"factor": 5.0, "rope_theta": 77.0}, "rope_theta": 7.0}, "rotary",
         {"base": 77.0, "scaling": "linear", "factor": 5.0, "low": 1.0, "high": 4.0, "original": 8192}),
        ("marian", {"dropout": 0.11}, "dropout", {"embedding": 0.11, "attention": 0.0, "sublayer": 0.11}),
        ("marian", {"attention_dropout": 0.12}, "dropout", {"embedding": 0.1, "attention": 0.12, "sublayer": 0.1}),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_embeddings", False),
        ("marian", {"tie_word_embeddings": False}, "share_embeddings", False),
        ("marian", {"decoder_vocab_size": 31}, "vocabulary", 31),
        ("marian", {"encoder_layers": 3}, "encoder_layers", 3),
        ("marian", {"scale_embedding": True}, "scale_embedding", True),
        ("marian", {"activation_function": "swish"}, "feedforward", "silu"),
    ],
)  # fmt: skip
def test_unusual_values_arrive(name: str, values: dict[str, Any], key: str, expected: Any) -> None:
    if key == "vocabulary":
        values = {**values, "share_encoder_decoder_embeddings": False}
    found: Any = FAMILIES[name].read(values, NOTHING)
    for part in key.split("."):
        found = getattr(found, part)
    assert (found.model_dump() if isinstance(expected, dict) else found) == expected


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("bert", {"add_cross_attention": True}, "add_cross_attention = true"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"type_vocab_size": 0.5}, "segments"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = false"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5"),
        ("llama", {"mlp_bias": True}, "in attention or feed-forward alone"),
        ("llama", {"attention_bias": True}, "in attention or feed-forward alone"),
        ("llama", {"head_dim": 64}, "heads of 64 numbers"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_scaling": [3]}, "rope_parameters"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
        ("llama", {"rope_scaling": {**LLAMA3}}, "original_max_position_embeddings"),
        ("marian", {"add_final_layer_norm": True}, "add_final_layer_norm"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding"),
        ("marian", {"normalize_before": True}, "normalize_before"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings"),
        ("marian", {"decoder_attention_heads": 8}, "attention_heads"),
        ("marian", {"encoder_attention_heads": 8, "decoder_attention_heads": 4}, "attention_heads"),
        ("marian", {"encoder_ffn_dim": 8}, "ffn_dim"),
        ("marian", {"vocab_size": True}, "vocab_size"),
    ],
)  # fmt: skip
def test_configs_are_refused_by_their_key(name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FAMILIES[name].read(values, NOTHING)


# What families can express

ACTIVATIONS = {"gelu", "gelu_tanh", "relu", "silu"}
SHARED: dict[str, set[Any]] = {"experts": {0}, "kv_heads": {None}, "bias": {True}, "norm": {"layer"}}
CAN: dict[str, dict[str, set[Any]]] = {
    "gpt2": {**SHARED, "kind": {"decoder"}, "position": {"learned"}, "placement": {"pre"}, "feedforward": ACTIVATIONS,
             "scale_embedding": {False}, "embedding_norm": {False}, "output_bias": {False}},
    "bert": {**SHARED, "kind": {"encoder"}, "position": {"learned"}, "placement": {"post"}, "feedforward": ACTIVATIONS,
             "scale_embedding": {False}, "embedding_norm": {True}, "segments": {1, 2, 1024}},
    "llama": {"experts": {0}, "norm": {"rms"}, "kind": {"decoder"}, "position": {"rotary"}, "placement": {"pre"},
              "feedforward": {"swiglu"}, "scale_embedding": {False}, "embedding_norm": {False}, "output_bias": {False}},
    "marian": {**SHARED, "kind": {"encoder-decoder"}, "position": {"sinusoidal", "learned"}, "placement": {"post"},
               "feedforward": ACTIVATIONS, "embedding_norm": {False}, "norm_epsilon": {1e-5}},
}  # fmt: skip
CAN |= {"gguf llama": CAN["llama"], "gguf gpt2": {**CAN["gpt2"], "feedforward": {"gelu_tanh"}}}
BASES = {"gpt2": GPT2, "bert": ENCODER, "llama": LLAMA, "marian": TRANSLATOR}
SOME = {"kv_heads": (None, 1), "experts": (0, 3), "norm_epsilon": (1e-5, 1e-6), "segments": (0, 1, 2, 1024)}


def possible(key: str) -> tuple[Any, ...]:
    return SOME.get(key) or get_args(ModelConfig.model_fields[key].annotation) or (True, False)


@pytest.mark.parametrize("family", CAN)
def test_what_a_family_can_express_and_nothing_else(family: str) -> None:
    name = family.removeprefix("gguf ")
    demands = (DIALECTS if family != name else FAMILIES)[name].demands
    assert set(demands) == set(CAN[family])
    for key, can in CAN[family].items():
        for value in possible(key):
            more = {"segments": 0, "share_embeddings": False} if key == "kind" else {}
            found = obstacles(family, demands, small(**{**BASES[name], key: value, **more}))
            found = [one for one in found if key != "kind" or not one.startswith("model.segments")]
            if value in can:
                assert not found, (key, value)
            else:
                assert len(found) == 1, (key, value)
                assert found[0].startswith(f"model.{key} = {json.dumps(value)}, and {family} has ")


@pytest.mark.parametrize("output_bias", [True, False])
def test_bert_with_or_without_a_bias_goes_out_and_in(output_bias: bool, tmp_path: Path) -> None:
    for tied in (True, False):
        config = small(**ENCODER, output_bias=output_bias, tie_output=tied, segments=3) if False else small(
            **{**ENCODER, "segments": 3}, output_bias=output_bias, tie_output=tied
        )  # fmt: skip
        model = noisy(config)
        folder = written(model, tmp_path / str(tied))
        again = load(folder).model
        assert again.config == config
        assert all(torch.equal(tensor, tensors_of(again)[name]) for name, tensor in tensors_of(model).items())
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        said, expected = both(again, theirs)
        assert (said - expected).abs().max() <= CLOSE


def test_a_bert_without_segments_is_refused(tmp_path: Path) -> None:
    tokenizer = bytewise()
    with pytest.raises(UsageError, match=r"model\.segments = 0"):
        write_folder(tmp_path, noisy(small(**{**ENCODER, "segments": 0})), Tokenizers(tokenizer, tokenizer))
