"""Llama: rotary positions, RMS pre-norm, gated feed-forward, grouped-query attention; its names in three formats.

transformers      rotary pairs are half a head apart
GGUF, llama2.c    rotary pairs are adjacent
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.family import Family, Values, make_config, read_number, require
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

# Names in chumoku, transformers, GGUF and llama2.c.
OUTER_TENSORS = (
    ("decoder.embedding.table", "model.embed_tokens.weight", "token_embd.weight", "token_embedding"),
    ("decoder.norm.gamma", "model.norm.weight", "output_norm.weight", "norm"),
    ("head.weight", "lm_head.weight", "output.weight", "output"),
)
LAYER_PREFIX = ("decoder.blocks.{}", "model.layers.{}", "blk.{}", "layers.{}")
NORMS = (
    ("attention_norm", "input_layernorm", "attn_norm", "attention_norm"),
    ("feedforward_norm", "post_attention_layernorm", "ffn_norm", "feedforward_norm"),
)
MATRICES = (
    ("attention.query", "self_attn.q_proj", "attn_q", "attention.wq"),
    ("attention.key", "self_attn.k_proj", "attn_k", "attention.wk"),
    ("attention.value", "self_attn.v_proj", "attn_v", "attention.wv"),
    ("attention.output", "self_attn.o_proj", "attn_output", "attention.wo"),
    ("feedforward.gate", "mlp.gate_proj", "ffn_gate", "feedforward.w1"),
    ("feedforward.up", "mlp.up_proj", "ffn_up", "feedforward.w3"),
    ("feedforward.down", "mlp.down_proj", "ffn_down", "feedforward.w2"),
)
TRANSFORMERS, GGUF = 1, 2


def rows(config: ModelConfig, column: int = TRANSFORMERS) -> list[Row]:
    rotary_heads = {"attention.query": config.heads, "attention.key": config.key_heads}

    def theirs(name: str) -> str:
        return f"{LAYER_PREFIX[column]}.{name}"

    block = [row for names in NORMS for row in norm_rows(f"{LAYER_PREFIX[0]}.{names[0]}", theirs(names[column]))]
    for names in MATRICES:
        heads = rotary_heads.get(names[0], 0)
        block += linear_rows(f"{LAYER_PREFIX[0]}.{names[0]}", theirs(names[column]), heads=heads)
    return [*(tensor_row(names[0], names[column]) for names in OUTER_TENSORS), *layer_rows(config.layers, block)]


def llama2c_rows(config: ModelConfig) -> list[Row]:
    """Rows with llama2.c's names, which has no biases."""
    block = [tensor_row(f"{LAYER_PREFIX[0]}.{names[0]}.gamma", f"{LAYER_PREFIX[3]}.{names[3]}") for names in NORMS]
    block += [tensor_row(f"{LAYER_PREFIX[0]}.{names[0]}.weight", f"{LAYER_PREFIX[3]}.{names[3]}") for names in MATRICES]
    return [*(tensor_row(names[0], names[3]) for names in OUTER_TENSORS), *layer_rows(config.layers, block)]


def read(values: Values, source: Source) -> ModelConfig:
    require(values, "Llama", {"hidden_act": ("silu",), "partial_rotary_factor": (1.0, 1)})
    if values.get("mlp_bias", False) != values.get("attention_bias", False):
        raise UsageError("This Llama has biases only in attention or only in the feed-forward, which is not supported.")
    width, heads = read_number(values, "hidden_size", 4096), read_number(values, "num_attention_heads", 32)
    if values.get("head_dim") not in (None, width // max(1, heads)):
        raise UsageError(
            f"This Llama has head_dim = {str(values['head_dim'])[:40]}; only hidden_size / heads ({width} / {heads}) "
            "is supported."
        )
    return llama_config(
        vocabulary=read_number(values, "vocab_size", 32000),
        context=read_number(values, "max_position_embeddings", 2048),
        width=width,
        layers=read_number(values, "num_hidden_layers", 32),
        heads=heads,
        kv_heads=heads if values.get("num_key_value_heads") is None else read_number(values, "num_key_value_heads"),
        feedforward_width=read_number(values, "intermediate_size", 11008),
        norm_epsilon=read_number(values, "rms_norm_eps", 1e-6),
        bias=values.get("attention_bias", False),
        tie_output=values.get("tie_word_embeddings", False),
        pairing="half",
        rotary=_read_rotary(values),
        dropout={"attention": read_number(values, "attention_dropout", 0.0)},
    )


def llama_config(**values: Any) -> ModelConfig:
    """The config of a Llama with these values; None values are left at their defaults."""
    kind = {"kind": "decoder", "position": "rotary", "norm": "rms", "placement": "pre", "feedforward": "swiglu"}
    if values["kv_heads"] == values["heads"]:
        values["kv_heads"] = None
    return make_config({**kind, **{key: value for key, value in values.items() if value is not None}})


def _read_rotary(values: Values) -> dict[str, Any]:
    """Read `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""
    parameters = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping) or not isinstance(scaling, Mapping):
        raise UsageError("The config's rope_parameters must be an object.")
    rope = {"rope_theta": values.get("rope_theta", 10000.0), **scaling, **parameters}
    kind = rope.get("rope_type", rope.get("type", "default"))
    rotary = {"base": read_number(rope, "rope_theta")}
    match kind:
        case "default":
            return rotary
        case "linear":
            return {**rotary, "scaling": "linear", "factor": read_number(rope, "factor")}
        case "llama3":
            return {
                **rotary,
                "scaling": "llama3",
                "factor": read_number(rope, "factor"),
                "low": read_number(rope, "low_freq_factor"),
                "high": read_number(rope, "high_freq_factor"),
                "original": read_number(rope, "original_max_position_embeddings"),
            }
    raise UsageError(f"Rotary positions of type '{str(kind)[:40]}' are not supported; linear and llama3 are.")


def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.hidden,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "attention_bias": config.bias, "mlp_bias": config.bias,
        "tie_word_embeddings": config.tie_output,
        "attention_dropout": config.dropout.attention,
        "rope_theta": config.rotary.base,
        "rope_parameters": {"rope_theta": config.rotary.base, **_rope_parameters(config.rotary)},
        "bos_token_id": roles.begin, "eos_token_id": roles.end, "pad_token_id": roles.pad,
    }  # fmt: skip


def _rope_parameters(rotary: RotarySettings) -> dict[str, Any]:
    if rotary.scaling == "none":
        return {"rope_type": "default"}
    values: dict[str, Any] = {"rope_type": rotary.scaling, "factor": rotary.factor}
    if rotary.scaling == "llama3":
        values |= {"low_freq_factor": rotary.low, "high_freq_factor": rotary.high}
        values["original_max_position_embeddings"] = rotary.original
    return values


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_output else {}


SUPPORTED = {
    "kind": ("decoder",),
    "position": ("rotary",),
    "norm": ("rms",),
    "placement": ("pre",),
    "feedforward": ("swiglu",),
    "experts": (0,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "output_bias": (False,),
}
IGNORED = {
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the frequencies, which we compute",
    r"lm_head\.weight": "a copy of the embedding, if tied",
}
LLAMA = Family("llama", "Llama", "model.", read, write, rows, SUPPORTED, IGNORED, duplicates, pairing="half")
