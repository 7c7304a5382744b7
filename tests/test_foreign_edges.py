"""Edge cases of importing and exporting: duplicate tensors, missing keys, links, limits, the Hub, conversion."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
import torch
import transformers
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from commands import Ask
from foreign import LLAMA3, VOCABULARY, export, llama, marian, outputs_of_both, randomize, save_model, save_variant
from hub_stand_in import make_hub_cache
from safetensors.torch import load_file, save_file
from test_foreign import CLOSE, random_model
from test_lora import attach_trained, states_equal
from torch import Tensor, nn

import chumoku
import chumoku.cli
from chumoku import lora, safe_files, text
from chumoku.config import settings_to_dict
from chumoku.decoding import embed, translate
from chumoku.errors import BusyError, DamagedError, UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.nn.positions import Pairing, sinusoidal
from chumoku.nn.quantized import Int8, QuantizedEmbedding, QuantizedLinear, QuantizedLogits
from chumoku.text.tokenizer import with_prefix_and_suffix
from chumoku.training import outputs
from chumoku.training.settings import AdapterSettings
from chumoku.weights import convert as converting
from chumoku.weights.assign import assign_tensors
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.convert import convert
from chumoku.weights.families import FAMILIES
from chumoku.weights.families.family import find_unsupported
from chumoku.weights.families.gguf import ARCHITECTURES
from chumoku.weights.formats import hub, safetensors_source
from chumoku.weights.formats import transformers_folder as folders
from chumoku.weights.formats.transformers_folder import read_folder, write_folder
from chumoku.weights.identify_model import identify_model
from chumoku.weights.open_model import load

WEIGHTS, CONFIG = "model.safetensors", "config.json"
NOTHING: Any = SimpleNamespace(path="a file", shapes={})


def change_config(folder: Path, **values: object) -> Path:
    """Change values in a folder's config.json; None removes a key."""
    path = folder / CONFIG
    found = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({**load_file(folder / WEIGHTS), **tensors}, folder / WEIGHTS, {"format": "pt"})
    return folder


def escape(text: str) -> str:
    return text.replace(".", r"\.").replace("[", r"\[")


def output_difference(folder: Path, theirs: nn.Module) -> float:
    found, expected = outputs_of_both(load(folder).model, theirs)
    return float((found - expected).abs().max())


# Tied tensors


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
def test_tied_tensors_must_be_equal(name: str, repeat: str, first: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path)
    twin = load_file(tmp_path / WEIGHTS)[first].clone()
    assert output_difference(add_tensors(tmp_path, {repeat: twin}), theirs) <= CLOSE
    twin.view(-1)[-1] += 1e-3
    with pytest.raises(UsageError, match=f"{escape(repeat)} and {escape(first)} differ"):
        load(add_tensors(tmp_path, {repeat: twin}))
    with pytest.raises(UsageError, match=f"{escape(repeat)} and {escape(first)} differ"):
        load(add_tensors(tmp_path, {repeat: twin[:-1].clone()}))


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
def test_unneeded_tensors_are_ignored(name: str, more: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path)
    whole = {"position_ids": torch.int64, "attn.bias": torch.uint8}
    for key, shape in more.items():
        dtype = next((dtype for end, dtype in whole.items() if key.endswith(end)), torch.float32)
        add_tensors(tmp_path, {key: torch.ones(shape, dtype=dtype)})
    assert output_difference(tmp_path, theirs) <= CLOSE
    odd = next(iter(more)) + "es"
    with pytest.raises(UsageError, match=escape(odd)):
        load(add_tensors(tmp_path, {odd: torch.ones(3)}))


# Marian's positions


def position_table(pairing: Pairing) -> Tensor:
    return sinusoidal(torch.arange(67), 30, pairing=pairing, dtype=torch.float64).float()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_one_learned_table_of_marian_is_enough(side: str, tmp_path: Path) -> None:
    theirs = randomize(marian())
    getattr(theirs.model, side).embed_positions.weight.data.normal_(generator=torch.Generator().manual_seed(5))
    save_model(theirs, tmp_path)
    names = {part: f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")}
    add_tensors(tmp_path, {name: theirs.state_dict()[name] for name in names.values()})
    assert load(tmp_path).config.position == "learned"
    assert output_difference(tmp_path, theirs) <= CLOSE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_16_bit_position_tables_are_recognized(pairing: Pairing, dtype: torch.dtype, tmp_path: Path) -> None:
    save_variant("marian", tmp_path)
    tables = {
        f"model.{side}.embed_positions.weight": position_table(pairing).to(dtype) for side in ("encoder", "decoder")
    }
    config = load(add_tensors(tmp_path, tables)).config
    assert (config.position, config.pairing) == ("sinusoidal", pairing)


@pytest.mark.parametrize("shape", [(67, 31), (66, 30), (67,), (67, 30, 1)])
def test_position_table_of_wrong_shape_is_not_read(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_variant("marian", tmp_path)
    name = "model.decoder.embed_positions.weight"
    add_tensors(tmp_path, {name: torch.zeros(shape)})
    monkeypatch.setattr(safetensors_source.SafetensorsSource, "read", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UsageError, match=escape(name)):
        folders.inspect_folder(tmp_path)


# Exported tokenizers

ENCODER = {"kind": "encoder", "position": "learned", "placement": "post", "embedding_norm": True, "segments": 2}
TRANSLATOR = {"kind": "encoder-decoder", "position": "sinusoidal", "placement": "post", "share_embeddings": True}
LLAMA = {"norm": "rms", "feedforward": "swiglu", "bias": False}
GPT2 = {"position": "learned", "feedforward": "gelu_tanh"}


def small(**changes: Any) -> ModelConfig:
    sizes = {"vocabulary": VOCABULARY, "context": 67, "layers": 2, "width": 12, "heads": 3}
    return ModelConfig(**{**sizes, "feedforward_width": 17, **changes})


def export_to(folder: Path, config: ModelConfig, target: text.Tokenizer, source: text.Tokenizer | None = None) -> Path:
    folder.mkdir()
    write_folder(folder, random_model(config), Tokenizers(target, target if source is None else source))
    return folder


def test_exported_tokenizers_add_the_end_token(tmp_path: Path) -> None:
    words, tokenizer = "Two words — ふたつ", byte_tokenizer()
    expected = [*tokenizer.encode(words), tokenizer.roles.end]
    for name, changes in {"masked": ENCODER, "vector": {**ENCODER, "head": "vector"}, "pairs": TRANSLATOR}.items():
        theirs = transformers.AutoTokenizer.from_pretrained(export_to(tmp_path / name, small(**changes), tokenizer))
        assert theirs(words).input_ids == expected
        assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.roles.end, tokenizer.roles.pad)
        ours = load(tmp_path / name)
        encode: Any = translate.encode if name == "pairs" else embed.encode
        options = {"into": None, "within": None} if name == "pairs" else {}
        assert encode(ours.model, [words], ours.source_tokenizer, **options) == [expected]
    theirs = transformers.AutoTokenizer.from_pretrained(export_to(tmp_path / "decoder", small(**LLAMA), tokenizer))
    assert theirs(words).input_ids == expected[:-1]


def test_existing_template_is_kept(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    begin, end = (tokenizer.token(number) for number in (tokenizer.roles.begin, tokenizer.roles.end))
    tokenizer = with_prefix_and_suffix(tokenizer, [begin, begin], [end])
    theirs = transformers.AutoTokenizer.from_pretrained(export_to(tmp_path / "a", small(**ENCODER), tokenizer))
    assert theirs("a").input_ids == [*[tokenizer.roles.begin] * 2, *tokenizer.encode("a"), tokenizer.roles.end]


def test_two_tokenizers_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(**{**TRANSLATOR, "share_embeddings": False}, source_vocabulary=269)
    target, source = byte_tokenizer(), chat_tokenizer()
    called: list[Any] = []
    monkeypatch.setattr(folders, "write_marian", lambda *given: called.append(given))
    ours = load(export_to(tmp_path / "a", config, target, source))
    assert ours.tokenizer.encode("é") == target.encode("é")
    assert ours.source_tokenizer.encode("é") == source.encode("é")
    assert ours.source_tokenizer.prefix_and_suffix[1] == ((source.roles.end,) if source.roles.end is not None else ())
    assert not called
    pieces = [text.train([words] * 3, kind="unigram", vocabulary=523) for words in ("one two three", "four five")]
    export_to(tmp_path / "b", config, *pieces)
    assert called == [(pieces[1], pieces[0], tmp_path / "b")]
    export_to(tmp_path / "c", config, pieces[0], source)
    export_to(tmp_path / "d", small(**TRANSLATOR), pieces[0])
    assert len(called) == 1


def test_marian_tokenizer_gives_the_same_ids(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it")
    target, source = (
        text.train([words] * 3, kind="unigram", vocabulary=523) for words in ("one two three four", "two seven one")
    )
    config = small(**{**TRANSLATOR, "share_embeddings": False, "vocabulary": 541, "source_vocabulary": 547})
    folder = export_to(tmp_path / "a", config, target, source)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    words = "two seven one"
    (expected,) = translate.encode(ours.model, [words], ours.source_tokenizer, into=None, within=None)  # type: ignore[arg-type]
    assert theirs(words).input_ids == expected == [*source.encode(words), source.roles.end]
    assert theirs(text_target=words).input_ids == [*target.encode(words), target.roles.end]


# Exported configs


@pytest.mark.parametrize("changes", [LLAMA, GPT2, ENCODER, TRANSLATOR], ids=["llama", "gpt2", "bert", "marian"])
def test_special_ids_and_dtype_are_written(changes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    roles = tokenizer.roles
    export_to(tmp_path / "a", small(**changes, **({"rotary": {"base": 77.0}} if changes is LLAMA else {})), tokenizer)
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
    write_folder(tmp_path / "b", random_model(small(**changes)).to(torch.bfloat16), Tokenizers(tokenizer, tokenizer))
    assert json.loads((tmp_path / "b" / CONFIG).read_text())["dtype"] == "bfloat16"
    tensors = load_file(tmp_path / "b" / WEIGHTS)
    assert {tensor.dtype for key, tensor in tensors.items() if "embed_positions" not in key} == {torch.bfloat16}


@torch.no_grad()
def test_transformers_generation_stops_at_our_end_token(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    end, begin = tokenizer.roles.end, tokenizer.roles.begin
    decoder = random_model(small(**GPT2, tie_output=False))
    translator = random_model(small(**TRANSLATOR, output_bias=True))
    decoder.decoder.norm.gamma.zero_()  # type: ignore[union-attr]
    decoder.decoder.norm.beta.fill_(1.0)  # type: ignore[union-attr]
    decoder.head.weight.zero_()[end] = 1.0  # type: ignore[operator]
    translator.head.bias[end] = 1e4  # type: ignore[index]
    kinds = {"AutoModelForCausalLM": decoder, "AutoModelForSeq2SeqLM": translator}
    found = {}
    for kind, model in kinds.items():
        folder = export(model, tmp_path / kind)
        theirs = getattr(transformers, kind).from_pretrained(folder).eval()
        found[kind] = theirs.generate(torch.tensor([[5, 7]]), max_new_tokens=11, do_sample=False).tolist()
    assert found == {"AutoModelForCausalLM": [[5, 7, end]], "AutoModelForSeq2SeqLM": [[begin, end]]}


# Imported configs

THEIRS = {
    "gpt2": transformers.GPT2Config,
    "bert": transformers.BertConfig,
    "llama": transformers.LlamaConfig,
    "marian": transformers.MarianConfig,
}


@pytest.mark.parametrize("name", THEIRS)
def test_missing_keys_have_their_defaults(name: str) -> None:
    """One key at a time, and all keys at once."""
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
         {"share": 1.0, "base": 77.0, "scaling": "linear", "factor": 5.0, "low": 1.0, "high": 4.0, "original": 8192}),
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
def test_unusual_values_are_read(name: str, values: dict[str, Any], key: str, expected: Any) -> None:
    if key == "vocabulary":
        values = {**values, "share_encoder_decoder_embeddings": False}
    found: Any = FAMILIES[name].read(values, NOTHING)
    for part in key.split("."):
        found = getattr(found, part)
    assert (settings_to_dict(found) if isinstance(expected, dict) else found) == expected


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("bert", {"add_cross_attention": True}, "add_cross_attention = true"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"type_vocab_size": 0.5}, "segments"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = false"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5"),
        ("llama", {"head_dim": "64"}, "head_dim"),
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
def test_configs_are_refused_by_their_key(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FAMILIES[name].read(values, NOTHING)


# Supported values of families

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


def candidate_values(key: str) -> tuple[Any, ...]:
    return SOME.get(key) or get_args(get_type_hints(ModelConfig)[key]) or (True, False)


def test_a_long_range_of_supported_values_is_not_searched_number_by_number() -> None:
    begin = time.process_time()
    found = find_unsupported("A", {"shared_expert_width": range(1, 1 << 27)}, small())
    assert time.process_time() - begin < 1
    assert found == ["model.shared_expert_width = null (A: 1, 2, 3, 4, 5, 6, …)"]


@pytest.mark.parametrize("family", CAN)
def test_supported_values_of_each_family(family: str) -> None:
    name = family.removeprefix("gguf ")
    supported = (ARCHITECTURES if family != name else FAMILIES)[name].supported
    # Tested with real configs of these families.
    keys = {"llama": {"bias", "head_width", "attention_bias", "rotary.scaling", "label_bias"}, "gpt2": {"label_bias"}}
    listed = {"head"} | keys.get(name, set())
    assert set(supported) - listed == set(CAN[family])
    for key, can in CAN[family].items():
        for value in candidate_values(key):
            more = {"segments": 0, "share_embeddings": False} if key == "kind" else {}
            found = find_unsupported(family, supported, small(**{**BASES[name], key: value, **more}))
            found = [one for one in found if key != "kind" or not one.startswith("model.segments")]
            if value in can:
                assert not found, (key, value)
            else:
                assert len(found) == 1, (key, value)
                assert found[0].startswith(f"model.{key} = {json.dumps(value)} ({family}: ")


@pytest.mark.parametrize("output_bias", [True, False])
def test_bert_output_bias_round_trip(output_bias: bool, tmp_path: Path) -> None:
    for tied in (True, False):
        config = small(**{**ENCODER, "segments": 3, "head": "masked"}, output_bias=output_bias, tie_output=tied)
        model = random_model(config)
        folder = export(model, tmp_path / str(tied))
        again = load(folder).model
        assert again.config == config
        assert states_equal(tensors_of(model), tensors_of(again))
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        found, expected = outputs_of_both(again, theirs)
        assert (found - expected).abs().max() <= CLOSE


def test_a_bert_without_segments_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    with pytest.raises(UsageError, match=r"model\.segments = 0"):
        write_folder(tmp_path, random_model(small(**{**ENCODER, "segments": 0})), Tokenizers(tokenizer, tokenizer))


# Limits


def header(path: Path, tensors: dict[str, Any]) -> int:
    """Write a safetensors file with this header and zeros as data; return the header's length."""
    data = json.dumps(tensors).encode()
    size = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(size))
    return len(data)


def empty_tensors(count: int, shape: tuple[int, ...] = (0,)) -> dict[str, Any]:
    size = 4 * torch.Size(shape).numel()
    return {
        f"t{number}": {"dtype": "F32", "shape": shape, "data_offsets": [number * size, (number + 1) * size]}
        for number in range(count)
    }


def test_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / WEIGHTS
    header(path, empty_tensors(safetensors_source.MAX_TENSORS + 1))
    with pytest.raises(DamagedError, match="16,385 tensors"):
        safetensors_source.read_headers(path)
    monkeypatch.setattr(safetensors_source, "MAX_TENSORS", 3)
    header(path, empty_tensors(3))
    assert len(safetensors_source.read_headers(path)) == 3


def test_header_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / WEIGHTS
    length = header(path, empty_tensors(2))
    monkeypatch.setattr(safe_files, "MAX_HEADER_BYTES", length)
    assert len(safetensors_source.read_headers(path)) == 2
    monkeypatch.setattr(safe_files, "MAX_HEADER_BYTES", length - 1)
    with pytest.raises(DamagedError, match=f"header of {length} bytes"):
        safetensors_source.read_headers(path)


def test_dimension_limit(tmp_path: Path) -> None:
    for rank in (8, 9):
        header(tmp_path / f"{rank}", empty_tensors(1, (1,) * rank))
    assert safetensors_source.read_headers(tmp_path / "8") == {"t0": ((1,) * 8, "F32")}
    with pytest.raises(DamagedError, match="t0 has more than 8 dimensions"):
        safetensors_source.read_headers(tmp_path / "9")


def test_json_size_limit(tmp_path: Path) -> None:
    path = tmp_path / CONFIG
    path.write_text('{"a": 1}')
    assert safe_files.read_json(path, max_bytes=8) == {"a": 1}
    with pytest.raises(UsageError, match="8 bytes; at most 7 are"):
        safe_files.read_json(path, max_bytes=7)
    path.write_text("[1]")
    with pytest.raises(DamagedError, match="not a JSON object"):
        safe_files.read_json(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DamagedError, match="JSON"):
        safe_files.read_json(path)
    save_variant("gpt2", tmp_path / "model")
    change_config(tmp_path / "model", more="x" * (1 << 20))
    with pytest.raises(UsageError, match="at most 1,048,576 are"):
        load(tmp_path / "model")


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_variant("gpt2", tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    places = {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(DamagedError, match=r"which is also in another file"):
        load(tmp_path)


def test_file_count_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(randomize(llama()), tmp_path, max_shard_size="20KB")
    count = len(list(tmp_path.glob("*.safetensors")))
    monkeypatch.setattr(folders, "MAX_FILES", count)
    assert load(tmp_path).config.layers == 2
    monkeypatch.setattr(folders, "MAX_FILES", count - 1)
    with pytest.raises(UsageError, match="too many"):
        load(tmp_path)


@pytest.mark.parametrize("parts", [False, True])
def test_files_are_opened_only_once(parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(randomize(llama(num_hidden_layers=3)), tmp_path, **({"max_shard_size": "20KB"} if parts else {}))
    opened: list[Path] = []
    real = safetensors_source.safe_open
    monkeypatch.setattr(
        safetensors_source, "safe_open", lambda path, **options: opened.append(path) or real(path, **options)
    )
    load(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2 if parts else len(files) == 1
    assert sorted(opened) == sorted(files * 2), "once for all shapes, once for all numbers"


@pytest.mark.parametrize(
    ("name", "keys"),
    [("llama", ["num_hidden_layers"]), ("gpt2", ["n_layer"]), ("bert", ["num_hidden_layers"]),
     ("marian", ["encoder_layers", "decoder_layers"])],
)  # fmt: skip
def test_config_that_needs_many_more_tensors_is_refused(name: str, keys: list[str], tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    kept = dict(list(load_file(tmp_path / WEIGHTS).items())[:7])
    save_file(kept, tmp_path / WEIGHTS, {"format": "pt"})
    change_config(tmp_path, **dict.fromkeys(keys, 1024))
    start = time.process_time()
    with pytest.raises(UsageError, match="needs many more"):
        load(tmp_path)
    assert time.process_time() - start < 1


# Adapters


def save_adapter(base: Path, folder: Path, named: str) -> Path:
    lora.save(attach_trained(load(base).model, lora.LoraSettings(rank=3), 2), folder, base=named)
    return folder


def test_adapter_header_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_bundle(tmp_path / "base", "decoder")
    folder = save_adapter(base, tmp_path / "adapter", str(base))
    path = folder / "adapter_model.safetensors"
    length = struct.unpack("<Q", path.read_bytes()[:8])[0]
    first, second = load(base).model, load(base).model
    monkeypatch.setattr(safe_files, "MAX_HEADER_BYTES", length)
    lora.load(first, folder)
    monkeypatch.setattr(safe_files, "MAX_HEADER_BYTES", length - 1)
    with pytest.raises(DamagedError, match=f"header of {length:,} bytes"):
        lora.load(second, folder)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors", "README.md"])
def test_links_out_of_an_adapters_folder_are_refused(name: str, tmp_path: Path) -> None:
    base = make_bundle(tmp_path / "base", "decoder")
    folder = save_adapter(base, tmp_path / "adapter", str(base))
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    for work in (lambda: lora.load(load(base).model, folder), lambda: chumoku.load(folder)):
        with pytest.raises(UsageError, match=f"{escape(name)} is a link that leads out"):
            work()


def test_link_loops_are_refused(tmp_path: Path) -> None:
    save_variant("gpt2", tmp_path / "a")
    base = make_bundle(tmp_path / "base", "decoder")
    adapter = save_adapter(base, tmp_path / "adapter", str(base))
    for folder in (tmp_path / "a", adapter):
        (folder / "loop").symlink_to("loop")
        with pytest.raises(UsageError, match="loop is a link"):
            chumoku.load(folder)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / CONFIG).symlink_to(CONFIG)
    for path in (tmp_path / "loop", tmp_path / "b"):
        with pytest.raises(UsageError, match=r"does not exist|not a model"):
            chumoku.load(path)
    assert safe_files.is_outside_link(tmp_path / "loop")


def test_adapter_base_may_be_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_bundle(tmp_path / "models" / "base", "decoder")
    folder = save_adapter(base, tmp_path / "models" / "adapter", "../base")
    monkeypatch.chdir(tmp_path)
    expected = chumoku.load(base, adapter=folder).model
    assert states_equal(tensors_of(chumoku.load(folder).model), tensors_of(expected))
    path = folder / "adapter_config.json"
    for other, hint in ((None, "does not say which"), ("", "does not say"), ("gone", "gone, which was not found")):
        path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": other}))
        with pytest.raises(UsageError, match=hint):
            chumoku.load(folder)


# Opening


def llama2c(path: Path, dim: int) -> Path:
    """Write a llama2.c model of zeros, without a tokenizer."""
    hidden, vocabulary, length = 1, 3, 2
    numbers = vocabulary * dim + 2 * dim + 4 * dim * dim + 3 * dim * hidden + dim + length * dim
    path.write_bytes(struct.pack("<7i", dim, hidden, 1, 1, 1, vocabulary, length) + bytes(4 * numbers))
    return path


def test_llama2c_headers_that_look_like_pickle(tmp_path: Path) -> None:
    assert (640).to_bytes(4, "little")[:2] == b"\x80\x02"
    assert identify_model(llama2c(tmp_path / "a.bin", 640))[1] == "llama2.c"
    for dim in (896, 1152):
        (tmp_path / "b.bin").write_bytes(struct.pack("<7i", dim, 1, 1, 1, 1, 3, 2) + bytes(99))
        with pytest.raises(UsageError, match="not a model in a supported format"):
            identify_model(tmp_path / "b.bin")
    save_variant("gpt2", tmp_path / "folder")
    path = tmp_path / "folder" / WEIGHTS
    data = path.read_bytes()
    for first in (b"\x80\x02", b"\x80\x04\x95", b"PK\x03\x04", b"\x80\x05\x01"):
        path.write_bytes(first.ljust(8, b"\0") + data[8:])
        assert identify_model(path) == (tmp_path / "folder", "transformers")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.bin", b"PK\x03\x04" + bytes(99)),
        ("a", b"PK\x03\x04"),
        ("a.bin", b"\x80\x02}q\x00."),
        ("a.bin", b"\x80\x05\x95" + bytes(99)),
        *((f"a.{end}", b"words, and nothing else") for end in ("pt", "pth", "ckpt", "pkl", "pickle")),
    ],
)
def test_pickles_are_recognized_by_name_or_magic(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match="is a pickle file, which is never opened"):
        identify_model(tmp_path / name)


def test_error_suggests_a_likely_path(tmp_path: Path) -> None:
    (tmp_path / "run" / "last").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / "files" / name).touch()
    (tmp_path / "none").mkdir()
    for folder, hint in (("run", "Did you mean .*run/last"), ("files", r"Did you mean .*a\.gguf"), ("none", "Give a")):
        with pytest.raises(UsageError, match=hint):
            load(tmp_path / folder)
    (tmp_path / "run" / "last").rename(tmp_path / "run" / "best")
    with pytest.raises(UsageError, match=r"Did you mean .*run/best"):
        load(tmp_path / "run")
    with pytest.raises(UsageError, match="is an adapter, but a full model"):
        load(save_adapter(make_bundle(tmp_path / "base", "decoder"), tmp_path / "adapter", "base"))


@pytest.mark.parametrize("name", ["x.GGUF", "x.pt", "x.PTH", "x.ckpt", "x.Bin", "x.data", "x.SafeTensors"])
def test_unreadable_model_is_not_a_translation_file(name: str, tmp_path: Path, ask: Ask) -> None:
    for file in (name, "references"):
        (tmp_path / file).write_text("one line\n")
    ended = ask("evaluate", str(tmp_path / name), str(tmp_path / "references"))
    assert ended.code == 2
    assert "BLEU" not in ended.out


# Converting


def test_concurrent_conversions_leave_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, real = make_bundle(tmp_path / "source", "decoder"), converting.WRITERS["chumoku"]

    def between(*given: Any) -> None:
        real(*given)
        monkeypatch.setitem(converting.WRITERS, "chumoku", real)
        with pytest.raises(BusyError, match="is in use"):
            convert(source, tmp_path / "out", to="chumoku")

    monkeypatch.setitem(converting.WRITERS, "chumoku", between)
    convert(source, tmp_path / "out", to="chumoku")
    assert load(tmp_path / "out").config == load(source).config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_unrelated_folders_are_kept(tmp_path: Path) -> None:
    source = make_bundle(tmp_path / "source", "decoder")
    files = [tmp_path / f"out.{end}" / "thesis.txt" for end in ("writing", "replaced", "removed")]
    for file in files:
        file.parent.mkdir()
        file.write_text("mine")
    convert(source, tmp_path / "out", to="chumoku")
    assert {file.read_text() for file in files} == {"mine"}


def test_certificate_is_not_overwritten(tmp_path: Path) -> None:
    source = make_bundle(tmp_path / "source", "decoder", **GPT2)
    (tmp_path / "a.certificate.json").write_text("mine")
    with pytest.raises(UsageError, match=r"a\.certificate\.json already exists"):
        convert(source, tmp_path / "a.gguf", to="gguf")
    assert (tmp_path / "a.certificate.json").read_text() == "mine"
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("to", ["chumoku", "gguf"])
def test_output_inside_the_source_is_refused(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_bundle(tmp_path / "source", "decoder", **GPT2)
    before = sorted(path.name for path in source.iterdir())
    monkeypatch.chdir(tmp_path)
    for given, out in ((source, source / "new.gguf"), ("source", "source/a/new.gguf"), (source, "source/new.gguf")):
        with pytest.raises(UsageError, match="inside the source model's folder"):
            convert(given, out, to=to)
    assert sorted(path.name for path in source.iterdir()) == before


# The hub


@pytest.fixture
def at_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Any]]:
    """A model in the Hub's cache, and the list of recorded download calls."""
    import huggingface_hub

    export(random_model(small(**GPT2)), tmp_path / "model")
    files = {name: (tmp_path / "model" / name).read_bytes() for name in (CONFIG, WEIGHTS, "tokenizer.json")}
    snapshot, request = make_hub_cache(tmp_path / "cache", files), []

    def download(*given: Any, **options: Any) -> str:
        request.append((given, options))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return snapshot, request


def test_only_needed_files_are_downloaded(at_hub: tuple[Path, list[Any]]) -> None:
    snapshot, request = at_hub
    assert hub.download("hf:owner/name") == hub.download("hf:owner/name@v1.0/x") == snapshot
    with pytest.raises(UsageError, match=r"owner/name has no file a\.gguf"):
        hub.download("hf:owner/name/a.gguf@abc")
    assert [given for given, _ in request] == [("owner/name",)] * 3
    assert [options["revision"] for _, options in request] == ["main", "v1.0/x", "abc"]
    wanted = request[0][1]["allow_patterns"]
    assert {"*.json", "*.safetensors", "vocab.txt", "merges.txt", "*.model", "*.spm", "chat_template.jinja"} <= set(
        wanted
    )
    assert not any(end in pattern for pattern in wanted for end in (".bin", ".pt", ".py", ".gguf"))
    assert request[2][1]["allow_patterns"] == ["a.gguf"]


def test_files_outside_the_hub_cache_are_refused(at_hub: tuple[Path, list[Any]]) -> None:
    snapshot, _ = at_hub
    assert load("hf:owner/name").config.position == "learned"
    link = snapshot / "tokenizer.json"
    blob, data = link.resolve(), link.read_bytes()
    link.unlink()
    link.write_bytes(data)
    with pytest.raises(DamagedError, match="not a file of the Hub's cache"):
        load("hf:owner/name")
    for place, message in (("other", "not a file of"), ("blobs", "a name that is not a hash")):
        link.unlink()
        (blob.parent.parent / place).mkdir(exist_ok=True)
        (blob.parent.parent / place / "name").write_bytes(data)
        link.symlink_to(blob.parent.parent / place / "name")
        with pytest.raises(DamagedError, match=message):
            load("hf:owner/name")
    link.unlink()
    link.symlink_to(blob)
    (snapshot / "blobs").mkdir()
    (snapshot / "blobs" / blob.name).write_bytes(data)
    with pytest.raises(DamagedError, match="not a file of the Hub's cache"):
        load("hf:owner/name")


@pytest.mark.parametrize("name", ["hf:a/b--c", "hf:a/b..c", "hf:-a/b", "hf:a/b.", f"hf:a/{'b' * 99}"])
def test_invalid_hub_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not (the name of a model|a model name) at the Hub"):
        load(name)


def test_hub_errors_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.errors

    error = huggingface_hub.errors.HfHubHTTPError.__new__(huggingface_hub.errors.HfHubHTTPError)

    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UsageError, match=r"owner/name at 'v2' does not exist"):
        load("hf:owner/name@v2")


# Sentence vectors


@pytest.mark.parametrize(
    ("kinds", "pooling", "expected"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "has .* Dense"),
        (["Transformer"], {}, "has Transformer;"),
        (["Pooling", "Transformer"], {}, "has Pooling"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
         "pools by cls_token, mean_tokens"),
        (["Transformer", "Pooling"], {"pooling_mode": "lasttoken"}, "pools by lasttoken"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": False, "pooling_mode": "cls"}, "first"),
        (["Transformer", "Pooling"], {}, "mean"),
    ],
)  # fmt: skip
def test_modules_of_sentence_transformers(kinds: list[str], pooling: Any, expected: str, tmp_path: Path) -> None:
    save_variant("bert body", tmp_path)
    modules = [{"idx": place, "type": f"sentence_transformers.models.{kind}"} for place, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / CONFIG).write_text(json.dumps(pooling))
    if expected in ("first", "mean"):
        config = read_folder(tmp_path).config
        assert (config.pooling, config.normalize) == (expected, False)
    else:
        with pytest.raises(UsageError, match=expected):
            read_folder(tmp_path)


# Assigning tensors


def random_int8(rows: int, columns: int, seed: int) -> Int8:
    random = torch.Generator().manual_seed(seed)
    q = torch.randint(-127, 128, (rows, columns // 32, 32), generator=random, dtype=torch.int8)
    return Int8(q, torch.rand(rows, columns // 32, generator=random).half() / 64)


@pytest.mark.parametrize("head", ["tied", "rounded", "floats"])
@torch.no_grad()
def test_quantized_tensors_are_assigned(head: str) -> None:
    config = small(width=32, heads=2, feedforward_width=64, **GPT2, tie_output=head == "tied")
    plain = random_model(config)
    tensors: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in tensors_of(plain).items()}
    rounded = ["decoder.embedding.table", "decoder.blocks.1.feedforward.up.weight"]
    rounded += ["head.weight"] * (head == "rounded")
    for seed, name in enumerate(rounded):
        stored_so = random_int8(*tensors[name].shape, seed)
        dict(plain.named_parameters())[name].copy_(stored_so.dequantize())
        tensors[name] = stored_so
    halves = {n: t if isinstance(t, Int8) else t.bfloat16() for n, t in tensors.items()}
    model = build(config, device="meta")
    assign_tensors(model, tensors, "cpu")
    up = model.decoder.blocks[1].feedforward.up  # type: ignore[union-attr]
    assert isinstance(up, QuantizedLinear)
    assert torch.equal(up.bias, tensors["decoder.blocks.1.feedforward.up.bias"])
    assert isinstance(model.decoder.embedding, QuantizedEmbedding)  # type: ignore[union-attr]
    assert isinstance(model.head, QuantizedLogits) == (head != "floats")
    ids = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=2e-2, rtol=2e-2)
    assert all(parameter.requires_grad for parameter in model.parameters())
    mixed = build(config, device="meta")
    assign_tensors(mixed, halves, "cpu")
    assert {parameter.dtype for parameter in mixed.parameters()} == {torch.float32}


def test_floats_get_one_dtype() -> None:
    config = small(**GPT2)
    for types, expected in (
        ((torch.bfloat16, torch.bfloat16), torch.bfloat16),
        ((torch.bfloat16, torch.float32), torch.float32),
        ((torch.float16, torch.float16), torch.float32),
        ((torch.float64, torch.float64), torch.float32),
    ):
        model = build(config, device="meta")
        tensors = {n: t.detach().to(types[n.endswith("bias")]) for n, t in tensors_of(build(config)).items()}
        assign_tensors(model, tensors, "cpu")
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
        assert all(parameter.requires_grad for parameter in model.parameters())


# Training runs


def recipe(init: str, settings: Any, seed: int = 5) -> Any:
    return SimpleNamespace(init=init, lora=settings, train=SimpleNamespace(seed=seed))


def test_a_run_starts_in_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = export(random_model(small(**GPT2)).to(torch.bfloat16), tmp_path / "base")
    init = load(folder)
    assert init.model.dtype == torch.bfloat16
    both_of = Tokenizers(init.tokenizer, init.source_tokenizer)
    request: list[str] = []
    real = outputs.to_precision
    monkeypatch.setattr(outputs, "to_precision", lambda model, kind: request.append(kind) or real(model, kind))

    def made_of(settings: Any, seed: int = 5) -> Any:
        where: Any = {"init": init, "device": torch.device("cpu")}
        return outputs.create_result(recipe("base", settings, seed), init.config, both_of, **where)

    whole = made_of(None)
    assert isinstance(whole, outputs.ModelResult)
    assert whole.tokenizers is both_of
    assert {tensor.dtype for tensor in whole.tensors().values()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in whole.model.parameters())
    adapters = [made_of(AdapterSettings(rank=3, base=base), seed) for base, seed in
                (("float32", 5), ("float32", 5), ("float32", 7), ("int8", 5))]  # fmt: skip
    assert request == ["int8"]
    assert {adapter.base for adapter in adapters} == {str(tmp_path / "base")}
    first, again, other, _ = (adapter.tensors() for adapter in adapters)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())
    assert outputs.base_name("hf:owner/name") == "hf:owner/name"


def test_a_run_keeps_both_tokenizers(tmp_path: Path) -> None:
    config = small(kind="encoder-decoder", source_vocabulary=269)
    target, source = byte_tokenizer(), chat_tokenizer()
    init = Bundle(random_model(config), target, source)
    made_of = outputs.create_result(
        recipe("base", None), config, Tokenizers(target, source), init=init, device=torch.device("cpu")
    )
    tmp_path.joinpath("out").mkdir()
    made_of.write(tmp_path / "out", made_of.tensors())
    assert text.load(tmp_path / "out" / "source_tokenizer.json").encode("é") == source.encode("é")
    assert text.load(tmp_path / "out" / "tokenizer.json").encode("é") == target.encode("é")
