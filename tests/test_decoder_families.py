"""Decoder families like Llama, Gemma and GPT-NeoX: logits equal transformers, in both directions."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from bundles import byte_tokenizer
from foreign import ROPE, VOCABULARY, equal_models, export, gpt2, llama, outputs_of_both, randomize, save_model
from lazy import LazyModule
from safetensors.torch import load_file
from torch import nn

import chumoku
from chumoku import lora
from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.weights.bundle import Tokenizers
from chumoku.weights.certificate import certify
from chumoku.weights.families import FAMILIES, find_family, transformers_rows
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import load

peft = LazyModule("peft")
CLOSE = 1e-5
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 17}
LONGROPE = {
    **{**ROPE, "rope_type": "longrope", "original_max_position_embeddings": 17},
    **{"short_factor": [1.0, 1.3, 1.7], "long_factor": [1.2, 5.0, 11.0]},
}
SEPARATE = {"head_dim": 10, "num_hidden_layers": 3}
EXPERTS = {
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 44,
}  # the library needs multiples of 4


CLASSES, TAGS = "ForSequenceClassification", "ForTokenClassification"


def labeled(kind: str, task: str) -> nn.Module:
    """A decoder with five classes or tags."""
    changes = {"num_labels": 5, "pad_token_id": 0}
    body = gemma3(**changes) if kind == "Gemma3Text" else gpt2(**changes) if kind == "GPT2" else llama(kind, **changes)
    return getattr(transformers, f"{kind}{task}")(body.config)  # type: ignore[no-any-return]


def gemma(kind: str, **changes: Any) -> nn.Module:
    names = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "sliding_window": 5, **SEPARATE}
    return llama(kind, **{**names, "query_pre_attn_scalar": 7, "tie_word_embeddings": True, **changes})


def gemma3(**changes: Any) -> nn.Module:
    rope = {
        "full_attention": {**ROPE, "rope_type": "linear", "factor": 3.0},
        "sliding_attention": {**ROPE, "rope_theta": 7.0},
    }
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 36, "intermediate_size": 41, "head_dim": 10}
    sizes |= {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-2}
    sizes |= {"max_position_embeddings": 67, "rope_parameters": rope, "sliding_window": 5, "query_pre_attn_scalar": 7}
    sizes |= {"sliding_window_pattern": 3}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**{**sizes, **changes}))


def phi3(**changes: Any) -> nn.Module:
    return llama("Phi3", **{"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **changes})


def phi3_longrope(original: int, **changes: Any) -> nn.Module:
    return phi3(**{"rope_parameters": {**LONGROPE}, "original_max_position_embeddings": original, **changes})


def neox(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 41}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 5, "max_position_embeddings": 67, "layer_norm_eps": 1e-2}
    sizes |= {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**{**sizes, **changes}))


def phi(**changes: Any) -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 40, "intermediate_size": 41}
    sizes |= {"num_hidden_layers": 3, "num_attention_heads": 5, "max_position_embeddings": 67, "layer_norm_eps": 1e-2}
    sizes |= {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}
    return transformers.PhiForCausalLM(transformers.PhiConfig(**{**sizes, **changes}))


def smollm3(**changes: Any) -> nn.Module:
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    return llama("SmolLM3", **{**ids, "num_hidden_layers": 5, "no_rope_layer_interval": 2, **changes})


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "llama head width": lambda: llama(**SEPARATE),
    "llama attention biases": lambda: llama(attention_bias=True),
    "llama feed-forward biases": lambda: llama(mlp_bias=True),
    "llama yarn": lambda: llama(rope_parameters=YARN),
    "llama yarn factor": lambda: llama(rope_parameters={**YARN, "attention_factor": 1.3, "beta_fast": 7.0}),
    "mistral": lambda: llama("Mistral", sliding_window=5, **SEPARATE),
    "mixtral": lambda: llama("Mixtral", num_local_experts=5, sliding_window=7, **EXPERTS),
    "mixtral full": lambda: llama("Mixtral", num_local_experts=7, **EXPERTS),
    "qwen2": lambda: llama("Qwen2", tie_word_embeddings=True),
    "qwen2 window": lambda: llama("Qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=0),
    "qwen2 yarn": lambda: llama("Qwen2", rope_parameters=YARN),
    "qwen3": lambda: llama("Qwen3", **SEPARATE),
    "qwen3 biases": lambda: llama("Qwen3", attention_bias=True, head_dim=6, num_key_value_heads=6),
    "qwen3 pattern": lambda: llama(
        "Qwen3", use_sliding_window=True, sliding_window=5, head_dim=10, num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3 experts": lambda: llama(
        "Qwen3Moe", num_experts=5, moe_intermediate_size=52, norm_topk_prob=True, head_dim=10, **EXPERTS
    ),
    "qwen3 experts not normalized": lambda: llama(
        "Qwen3Moe", num_experts=7, moe_intermediate_size=52, norm_topk_prob=False, head_dim=10, **EXPERTS
    ),
    "qwen2 experts": lambda: llama(
        "Qwen2Moe", num_experts=5, moe_intermediate_size=52, shared_expert_intermediate_size=47, **EXPERTS
    ),
    "qwen2 experts normalized": lambda: llama(
        "Qwen2Moe", num_experts=7, moe_intermediate_size=52, shared_expert_intermediate_size=47, norm_topk_prob=True,
        qkv_bias=False, **EXPERTS,
    ),
    "phi": phi,
    "phi grouped": lambda: phi(
        num_attention_heads=10, num_key_value_heads=2, hidden_act="relu", tie_word_embeddings=True,
        rope_parameters={**YARN, "partial_rotary_factor": 1.0},
    ),
    "phi3": phi3,
    "phi3 longrope": lambda: phi3_longrope(17),
    "phi3 longrope within the original length": lambda: phi3_longrope(61, max_position_embeddings=61),
    "phi4 mini": lambda: phi3_longrope(
        17, hidden_size=48, tie_word_embeddings=True,
        rope_parameters={
            **{**LONGROPE, "partial_rotary_factor": 0.5, "attention_factor": 1.3},
            **{"short_factor": [1.0, 1.7], "long_factor": [1.2, 11.0]},
        },
    ),
    "phi3 window": lambda: phi3(sliding_window=5, num_hidden_layers=3),
    "olmo2": lambda: llama("Olmo2", num_hidden_layers=3),
    "olmo2 biases": lambda: llama("Olmo2", attention_bias=True, rope_parameters=YARN),
    "smollm3": smollm3,
    "smollm3 biases": lambda: smollm3(attention_bias=True, tie_word_embeddings=True),
    "gemma2": lambda: gemma("Gemma2", attn_logit_softcapping=3.0, final_logit_softcapping=5.0),
    "gemma2 no caps": lambda: gemma(
        "Gemma2", attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True,
        query_pre_attn_scalar=10,
    ),
    "gemma3": gemma3,
    "gemma3 local": lambda: gemma3(sliding_window_pattern=7),
    "gemma3 untied": lambda: gemma3(tie_word_embeddings=False, attention_bias=True),
    "gpt-neox": neox,
    "gpt-neox in sequence": lambda: neox(use_parallel_residual=False, hidden_act="relu", attention_bias=False),
    "gpt-neox whole heads": lambda: neox(
        rope_parameters={**ROPE, "partial_rotary_factor": 1.0}, tie_word_embeddings=True
    ),
}  # fmt: skip


def save_variant(name: str, folder: Path) -> nn.Module:
    theirs = randomize(VARIANTS[name]())
    save_model(theirs, folder)
    return theirs


@pytest.mark.parametrize("name", VARIANTS)
def test_models_equal_transformers_in_both_directions(name: str, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path / "theirs")
    first = load(tmp_path / "theirs").model
    ours, expected = outputs_of_both(first, theirs)
    assert (ours - expected).abs().max() <= CLOSE * max(1, expected.abs().max())
    (tmp_path / "ours").mkdir()
    family = FAMILIES[theirs.config.model_type]
    write_folder(tmp_path / "ours", first, Tokenizers(byte_tokenizer(), byte_tokenizer()), family=family)
    again = load(tmp_path / "ours").model
    assert equal_models(again, first)
    reopened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(reopened) is type(theirs)
    output, expected = outputs_of_both(again, reopened)
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())
    kept, out = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert kept.keys() == out.keys()
    assert all(torch.equal(kept[key], tensor) for key, tensor in out.items())


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", [name for name in VARIANTS if "phi3" not in name])
def test_models_with_interleaved_pairs_are_exported(name: str, tmp_path: Path) -> None:
    """The rows of queries, keys and their norms change their order, in joined matrices and in a part of a head too."""
    theirs = save_variant(name, tmp_path / "theirs")
    model = build(replace(load(tmp_path / "theirs").model.config, pairing="interleaved")).eval()
    randomize(model)
    assert find_family(model.config).name == theirs.config.model_type
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", model, Tokenizers(byte_tokenizer(), byte_tokenizer()))
    reopened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    output, expected = outputs_of_both(model, reopened)
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())


def test_joined_matrices_are_exported_with_interleaved_pairs(tmp_path: Path) -> None:
    save_variant("phi3", tmp_path / "theirs")
    model = randomize(build(replace(load(tmp_path / "theirs").model.config, pairing="interleaved")))
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", model, Tokenizers(byte_tokenizer(), byte_tokenizer()), family=FAMILIES["phi3"])
    output, expected = outputs_of_both(model, transformers.Phi3ForCausalLM.from_pretrained(tmp_path / "ours").eval())
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())


def test_gemma_without_unit_offset_is_exported(tmp_path: Path) -> None:
    """Norms that multiply by γ are written as γ − 1."""
    save_variant("gemma3", tmp_path / "theirs")
    model = randomize(build(replace(load(tmp_path / "theirs").model.config, norm_unit_offset=False)))
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", model, Tokenizers(byte_tokenizer(), byte_tokenizer()))
    output, expected = outputs_of_both(
        model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    )
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, "every n-th"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["chunked_attention"] * 2},
            "layer_types",
        ),
        ("gemma2", {"layer_types": ["sliding_attention", "full_attention"]}, "2 layer_types for"),
        ("smollm3", {"no_rope_layers": [0, 1, 1, 1, 1]}, "every n-th"),
        ("smollm3", {"no_rope_layers": [1]}, "every layer"),
        ("qwen2 experts", {"use_sliding_window": True}, "use_sliding_window"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("qwen3 experts", {"mlp_only_layers": [1]}, "mlp_only_layers"),
        ("qwen3 experts", {"num_local_experts": 0, "num_experts": 0}, "experts"),
        ("qwen3 experts", {"num_local_experts": 1024, "num_hidden_layers": 1024}, "too many"),
        ("qwen3", {"num_hidden_layers": 2.5}, "num_hidden_layers"),
        ("smollm3", {"num_hidden_layers": "many"}, "num_hidden_layers"),
        ("gemma3", {"rope_scaling": [3]}, "rope_parameters"),
        ("llama yarn", {"rope_parameters": {**YARN, "factor": -2.0, "mscale": 1.0, "mscale_all_dim": 1.0}}, "factor"),
        ("llama yarn", {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("phi3", {"rope_parameters": {**ROPE, "rope_type": "longrope"}}, "short_factor of longrope must be a list"),
        ("phi3", {"rope_parameters": {**LONGROPE, "long_factor": None}}, "long_factor of longrope must be a list"),
        ("phi3", {"rope_parameters": {**LONGROPE, "long_factor": ["1.0"] * 3}}, "must be a list of numbers"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [1.0]}}, "a short and a long factor for each pair"),
        ("phi3", {"rope_parameters": {**LONGROPE, "short_factor": [1.0, 0.0, 1.0]}}, "short_factors"),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1}, "original context above 1"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"hidden_activation": "silu"}, "hidden_activation"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma3", {"rope_parameters": {"sliding_attention": {**ROPE, "rope_type": "linear", "factor": 2.0}}}, "local"),
        ("llama yarn", {"rope_parameters": {**YARN, "truncate": False}}, "truncate"),
        ("gpt-neox", {"hidden_act": "tanh"}, "hidden_act"),
    ],
)
def test_unsupported_values_are_refused(name: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_variant(name, tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "layer_types": None, **values}
    path.write_text(json.dumps(config))
    with pytest.raises(UsageError, match=words):
        load(tmp_path)


def test_the_context_decides_the_frequencies_of_longrope(tmp_path: Path) -> None:
    """transformers decides by the length of the text: 31 tokens are below the original length of 41, and 47 above."""
    theirs = randomize(phi3_longrope(41))
    save_model(theirs, tmp_path)
    opened = {context: load_pipeline(tmp_path, context).model for context in (None, 41, 42)}
    random = torch.Generator().manual_seed(0)
    for length, right in ((31, {41}), (47, {None, 42})):
        ids = torch.randint(VOCABULARY, (2, length), generator=random)
        expected = theirs(ids).logits
        found = {context: (model(ids).logits - expected).abs().max() for context, model in opened.items()}
        limit = CLOSE * max(1, expected.abs().max())
        assert {context for context, difference in found.items() if difference <= limit} == right
        assert min(difference for context, difference in found.items() if context not in right) > 100 * limit
    for context, message in ((0, "must be 1 to 67"), (68, "must be 1 to 67")):
        with pytest.raises(UsageError, match=message):
            load_pipeline(tmp_path, context)


def load_pipeline(folder: Path, context: int | None) -> chumoku.Pipeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no tokenizer
        return chumoku.load(folder, context=context)


@pytest.mark.parametrize("original", [17, 61])
def test_a_model_with_longrope_is_certified(original: int, tmp_path: Path) -> None:
    """The probes are shorter than the original length, where transformers has the short factors."""
    save_model(randomize(phi3_longrope(original, max_position_embeddings=61)), tmp_path / "theirs")
    model = load(tmp_path / "theirs").model
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", model, Tokenizers(byte_tokenizer(), byte_tokenizer()))
    assert certify(model, "transformers", tmp_path / "ours", source="phi3", kind="float32").checked
    assert model.config.context == 61


def test_older_config_files_are_read(tmp_path: Path) -> None:
    """Files from before rope_parameters and layer_types."""
    older: dict[str, dict[str, Any]] = {
        "gpt-neox": {"rotary_pct": 0.25, "rotary_emb_base": 777.0},
        "gemma3": {
            "rope_theta": 777.0, "rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0},
            "sliding_window_pattern": 3,
        },
        "qwen2 yarn": {"rope_theta": 777.0, "rope_scaling": {**YARN, "type": "yarn"}},
        "smollm3": {"rope_theta": 777.0, "no_rope_layers": None},
    }  # fmt: skip
    for name, values in older.items():
        save_variant(name, tmp_path / name)
        expected = load(tmp_path / name).model.config
        path = tmp_path / name / "config.json"
        config = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("rope_parameters", "layer_types")}
        path.write_text(json.dumps({**config, **values}))
        assert load(tmp_path / name).model.config == expected, name


@torch.no_grad()
def test_adapters_with_our_names_still_open(tmp_path: Path) -> None:
    """They were saved before the family was supported; new ones have the library's names."""
    save_variant("qwen3", tmp_path / "theirs")
    model = load(tmp_path / "theirs").model
    lora.attach(model, lora.LoraSettings(rank=3))
    for name, parameter in model.named_parameters():
        if "adapters" in name:
            parameter.normal_(0, 0.3)
    ids, rows = torch.randint(VOCABULARY, (2, 7)), transformers_rows(model.config)
    for name, table in (("our names", None), ("their names", rows)):
        lora.save(model, tmp_path / name, base="", rows=table)
        again = load(tmp_path / "theirs").model
        lora.load(again, tmp_path / name, rows=rows)
        torch.testing.assert_close(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("phi3", ["qkv_proj", "gate_up_proj", "o_proj"]),
        ("gpt-neox", ["query_key_value", "dense_h_to_4h"]),
        ("phi", ["q_proj", "v_proj", "dense", "fc2"]),
        ("qwen2 experts", ["q_proj", "shared_expert.up_proj"]),
    ],
)
def test_peft_adapters_of_joined_matrices_open(name: str, targets: list[str], dora: bool, tmp_path: Path) -> None:
    theirs = save_variant(name, tmp_path / "base")
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=3, target_modules=targets, use_dora=dora))
    random = torch.Generator().manual_seed(3)
    for part, parameter in adapted.named_parameters():
        if "lora_" in part:
            parameter.data += torch.randn(parameter.shape, generator=random) * 0.2
    adapted.save_pretrained(tmp_path / "adapter")
    base = load(tmp_path / "base").model
    ours = chumoku.load(tmp_path / "base", adapter=tmp_path / "adapter").model
    output, expected = outputs_of_both(ours, adapted.eval())
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())
    assert (output - outputs_of_both(base, adapted)[0]).abs().max() > 1e-2


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", ["phi3", "gpt-neox", "phi"])
def test_our_adapters_of_joined_matrices_open_in_peft(name: str, pairing: str, tmp_path: Path) -> None:
    """With our order of rotary pairs, in a part of each head too; and again here."""
    theirs = save_variant(name, tmp_path / "first")
    model = randomize(build(replace(load(tmp_path / "first").model.config, pairing=pairing)))
    family = FAMILIES[theirs.config.model_type]
    (tmp_path / "base").mkdir()
    write_folder(tmp_path / "base", model, Tokenizers(byte_tokenizer(), byte_tokenizer()), family=family)
    theirs = type(theirs).from_pretrained(tmp_path / "base").eval()
    plain = copy.deepcopy(model)
    lora.attach(model, lora.LoraSettings(rank=3, targets=["**.attention.*", "**.feedforward.*"]))
    for part, parameter in model.named_parameters():
        if "adapters" in part:
            parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(part)))
    rows = family.rows(model.config)
    lora.save(model, tmp_path / "adapter", base="", rows=rows)
    output, expected = outputs_of_both(model, peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval())
    assert (output - expected).abs().max() <= CLOSE * max(1, expected.abs().max())
    lora.load(plain, tmp_path / "adapter", rows=rows)
    torch.testing.assert_close(outputs_of_both(plain, theirs)[0], output, atol=1e-5, rtol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *(("GPT2", CLASSES), ("GPT2", TAGS), ("Llama", CLASSES), ("Qwen2", TAGS), ("Llama", TAGS), ("Qwen2", CLASSES)),
        *(("Mistral", CLASSES), ("Qwen3", TAGS), ("Olmo2", CLASSES), ("Gemma3Text", CLASSES)),
    ],
)
def test_labels_equal_transformers_in_both_directions(kind: str, task: str, tmp_path: Path) -> None:
    theirs = randomize(labeled(kind, task))
    save_model(theirs, tmp_path / "theirs")
    ours = load(tmp_path / "theirs").model
    assert (ours.config.head, ours.config.label_bias) == (("tags", True) if task == TAGS else ("classes", False))
    ids, real = torch.randint(1, VOCABULARY, (2, 31)), torch.arange(31) < torch.tensor([[31], [17]])
    ids[~real] = 0
    folder = export(ours, tmp_path / "ours")
    there = getattr(transformers, f"AutoModel{task}").from_pretrained(folder).eval()
    with torch.no_grad():
        found = ours(ids, mask=real).logits
        for other in (theirs.eval(), there):
            expected = other(ids, attention_mask=real.long()).logits
            both = (found, expected) if task == CLASSES else (found[real], expected[real])
            assert (both[0] - both[1]).abs().max() <= CLOSE
    assert type(there).__name__ == f"{kind}{task}"
    assert equal_models(load(folder).model, ours)


def test_labels_that_transformers_cannot_express_are_refused(tmp_path: Path) -> None:
    sizes = {"kind": "decoder", "width": 12, "heads": 3, "layers": 1, "context": 31, "labels": ["a", "b"]}
    llama_like = {"position": "rotary", "norm": "rms", "feedforward": "swiglu", "bias": False, "pairing": "half"}
    for changes, said in (
        (
            {"head": "classes"},
            "Llama reads the class of a text with pooling = 'last', .*has pooling = 'mean', label_bias",
        ),
        ({"head": "tags", "label_bias": False}, "The tags of Llama have a bias"),
        ({"head": "tags", "query_key_norm": "all", "placement": "output"}, "no Olmo2ForTokenClassification"),
    ):
        model = build(chumoku.ModelConfig(vocabulary=263, **sizes, **llama_like, **changes))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=said):
            export(model, tmp_path / str(changes))
