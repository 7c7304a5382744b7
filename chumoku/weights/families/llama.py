"""Llama, and the table that the families like it share; its names in three formats.

    rotary positions, RMS norms, gated feed-forward, grouped-query attention

transformers      rotary pairs are half a head apart
GGUF, llama2.c    rotary pairs are adjacent
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families import classifier
from chumoku.weights.families.family import Family, Supported, Values, make_config, read_number, require, write_sizes
from chumoku.weights.families.rotary import read_rotary, write_rotary
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

# Names in chumoku, transformers, GGUF and llama2.c.
OUTER_TENSORS = (
    ("decoder.embedding.table", "model.embed_tokens.weight", "token_embd.weight", "token_embedding"),
    ("head.weight", "lm_head.weight", "output.weight", "output"),
)
FINAL_NORM = ("decoder.norm", "model.norm", "output_norm", "norm")
LAYER_PREFIX = ("decoder.blocks.{}", "model.layers.{}", "blk.{}", "layers.{}")
NORMS = {
    "pre": (
        ("attention_norm", "input_layernorm", "attn_norm", "attention_norm"),
        ("feedforward_norm", "post_attention_layernorm", "ffn_norm", "feedforward_norm"),
    ),
    "output": (
        ("attention_norm", "post_attention_layernorm", "post_attention_norm"),
        ("feedforward_norm", "post_feedforward_layernorm", "post_ffw_norm"),
    ),
    "sandwich": (
        ("attention_norm", "input_layernorm", "attn_norm"),
        ("attention_output_norm", "post_attention_layernorm", "post_attention_norm"),
        ("feedforward_norm", "pre_feedforward_layernorm", "ffn_norm"),
        ("feedforward_output_norm", "post_feedforward_layernorm", "post_ffw_norm"),
    ),
}
HEAD_NORMS = (
    ("attention.query_norm", "self_attn.q_norm", "attn_q_norm"),
    ("attention.key_norm", "self_attn.k_norm", "attn_k_norm"),
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
JOINED = (  # one matrix for several of ours, in Phi-3
    (("attention.query", "attention.key", "attention.value"), "self_attn.qkv_proj", "attn_qkv"),
    (("feedforward.gate", "feedforward.up"), "mlp.gate_up_proj", "ffn_up"),
)
TRANSFORMERS, GGUF = 1, 2
OURS = LAYER_PREFIX[0]


def rows(config: ModelConfig, column: int = TRANSFORMERS, *, unit_offset: bool = False) -> list[Row]:
    """The rows of all tensors; `unit_offset` if their norms multiply by 1 + γ."""
    rotary_heads = {"attention.query": config.heads, "attention.key": config.key_heads}
    theirs = LAYER_PREFIX[column]
    # γ of ours = γ of theirs + offset
    offset = float(unit_offset) - float(config.norm_unit_offset)
    block = []
    for names in NORMS[config.placement]:
        block += norm_rows(f"{OURS}.{names[0]}", f"{theirs}.{names[column]}", offset=offset)
    for names, heads in zip(HEAD_NORMS, rotary_heads.values(), strict=True):
        heads = heads if config.query_key_norm == "all" else 1
        block += norm_rows(f"{OURS}.{names[0]}", f"{theirs}.{names[column]}", offset=offset, heads=heads)
    for names in MATRICES:
        block += linear_rows(f"{OURS}.{names[0]}", f"{theirs}.{names[column]}", heads=rotary_heads.get(names[0], 0))
    return [
        *(tensor_row(names[0], names[column]) for names in OUTER_TENSORS),
        *norm_rows(FINAL_NORM[0], FINAL_NORM[column], offset=offset),
        *layer_rows(config.layers, block),
    ]


def joined_rows(config: ModelConfig, column: int = TRANSFORMERS) -> list[Row]:
    """The rows if query, key and value are one matrix, and gate and up as well."""
    separate = {f".{name}." for ours, *_ in JOINED for name in ours}
    heads = config.heads + config.key_heads
    block = [
        Row(
            tuple(f"{OURS}.{name}.weight" for name in names[0]),
            f"{LAYER_PREFIX[column]}.{names[column]}.weight",
            heads=heads if "attention" in names[0][0] else 0,
        )
        for names in JOINED
    ]
    others = [row for row in rows(config, column) if not any(name in row.ours[0] for name in separate)]
    return [*others, *layer_rows(config.layers, block)]


def llama2c_rows(config: ModelConfig) -> list[Row]:
    """Rows with llama2.c's names, which has no biases."""
    block = [tensor_row(f"{OURS}.{names[0]}.gamma", f"{LAYER_PREFIX[3]}.{names[3]}") for names in NORMS["pre"]]
    block += [tensor_row(f"{OURS}.{names[0]}.weight", f"{LAYER_PREFIX[3]}.{names[3]}") for names in MATRICES]
    outer = [tensor_row(names[0], names[3]) for names in OUTER_TENSORS]
    return [*outer, tensor_row(f"{FINAL_NORM[0]}.gamma", FINAL_NORM[3]), *layer_rows(config.layers, block)]


def llama_config(**values: Any) -> ModelConfig:
    """The config of a Llama with these values; None values are left at their defaults."""
    kind = {"kind": "decoder", "position": "rotary", "norm": "rms", "placement": "pre", "feedforward": "swiglu"}
    if values["kv_heads"] == values["heads"]:
        values["kv_heads"] = None
    if values.get("head_width") is not None and values["head_width"] * values["heads"] == values["width"]:
        values["head_width"] = None
    return make_config({**kind, **{key: value for key, value in values.items() if value is not None}})


def read_common(values: Values, title: str, *, partial: bool = False) -> dict[str, Any]:
    """Our values of the keys that all families like Llama have; `partial` if a part of each head may be rotated."""
    heads = read_number(values, "num_attention_heads", 32)
    rotary = read_rotary(values)
    if "share" in rotary and not partial:
        raise UsageError(f"This {title} has partial_rotary_factor = {rotary['share']}; only 1 is supported.")
    return {
        "vocabulary": read_number(values, "vocab_size", 32000),
        "context": read_number(values, "max_position_embeddings", 2048),
        "width": read_number(values, "hidden_size", 4096),
        "layers": read_number(values, "num_hidden_layers", 32),
        "heads": heads,
        "kv_heads": heads if values.get("num_key_value_heads") is None else read_number(values, "num_key_value_heads"),
        "head_width": None if values.get("head_dim") is None else read_number(values, "head_dim"),
        "feedforward_width": read_number(values, "intermediate_size", 11008),
        "norm_epsilon": read_number(values, "rms_norm_eps", 1e-6),
        "bias": False,
        "tie_output": values.get("tie_word_embeddings", False),
        "pairing": "half",
        "rotary": rotary,
        "dropout": {"attention": read_number(values, "attention_dropout", 0.0)},
    }


def write_common(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    return {
        **write_sizes(config),
        "num_key_value_heads": config.key_heads,
        "head_dim": config.key_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_output,
        "attention_dropout": config.dropout.attention,
        "rope_theta": config.rotary.base,
        "rope_parameters": write_rotary(config.rotary),
        "bos_token_id": roles.begin, "eos_token_id": roles.end, "pad_token_id": roles.pad,
    }  # fmt: skip


def read_biases(values: Values) -> dict[str, Any]:
    """Config values for biases in the feed-forward (mlp_bias) and in attention (attention_bias), if they differ."""
    bias, attention = values.get("mlp_bias", False), values.get("attention_bias", False)
    return {"bias": bias, "attention_bias": None if attention == bias else "all" if attention else "none"}


def write_biases(config: ModelConfig) -> dict[str, Any]:
    return {"attention_bias": config.biased_attention == "all", "mlp_bias": config.bias}


class Variant(NamedTuple):
    """What a family like Llama does differently."""

    name: str  # model_type
    title: str
    architecture: str
    supported: Supported
    read: Callable[[Values], dict[str, Any]]
    write: Callable[[ModelConfig], dict[str, Any]]
    activation: str = "silu"
    defaults: Mapping[str, Any] = {}  # values of keys that a config.json may lack
    rows: Callable[[ModelConfig], list[Row]] = rows
    partial: bool = False  # whether a part of each head may be rotated
    label_heads: Sequence[str] = classifier.LABEL_HEADS  # that transformers has for it

    @property
    def label_title(self) -> str:
        """The first part of the names of its classes for labels."""
        title = self.architecture.removesuffix("ForCausalLM")
        return f"{title}Text" if self.name.endswith("_text") else title


def make_family(variant: Variant) -> Family:
    def read(values: Values, source: Source) -> ModelConfig:
        values = {**variant.defaults, **values}
        require(values, variant.title, {"hidden_act": (variant.activation,)})
        common = read_common(values, variant.title, partial=variant.partial)
        return llama_config(**{**common, **variant.read(values), **classifier.DECODER.read(values, source)})

    def write(config: ModelConfig, roles: Roles) -> dict[str, Any]:
        names = {"model_type": variant.name, "architectures": [variant.architecture]}
        head = classifier.DECODER.write(config, variant.label_title, variant.label_heads)
        return {**names, **write_common(config, roles), **variant.write(config), **head}

    def all_rows(config: ModelConfig) -> list[Row]:
        return [*variant.rows(config), *classifier.DECODER.rows(config)]

    supported = {**SUPPORTED, **classifier.DECODER_SUPPORTED, **variant.supported}
    return Family(
        variant.name, variant.title, "model.", read, write, all_rows, supported, IGNORED, duplicates, pairing="half"
    )


def duplicates(config: ModelConfig) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_output else {}


SUPPORTED: Supported = {
    "kind": ("decoder",),
    "position": ("rotary",),
    "rotary.scaling": ("none", "linear", "llama3", "yarn"),
    "head_width": None,
    "norm": ("rms",),
    "placement": ("pre",),
    "feedforward": ("swiglu",),
    "experts": (0,),
    "bias": (False,),
    "scale_embedding": (False,),
    "embedding_norm": (False,),
    "output_bias": (False,),
}
IGNORED = {
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the frequencies, which we compute",
    r"lm_head\.weight": "a copy of the embedding, if tied",
}
BIASES: Supported = {"bias": (False, True), "attention_bias": (None, "all", "none")}
LLAMA = make_family(Variant("llama", "Llama", "LlamaForCausalLM", BIASES, read_biases, write_biases))
