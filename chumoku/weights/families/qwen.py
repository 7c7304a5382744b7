"""Qwen2 (biases of query, key and value), Qwen3 (norms of each head's queries and keys), and Qwen3 with experts."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.weights.families.experts import expert_rows, read_experts
from chumoku.weights.families.family import Values, read_layers, read_number, require
from chumoku.weights.families.llama import Variant, make_family
from chumoku.weights.families.table import Row
from chumoku.weights.families.window import read_window, write_window

WINDOW = {"attention_window": None, "full_attention_every": None}


def read_local_layers(values: Values, title: str) -> dict[str, Any]:
    first = read_number(values, "max_window_layers", 28)
    return read_window(values, title, local=[layer >= first for layer in range(read_layers(values))])


def write_layers(config: ModelConfig) -> dict[str, Any]:
    # The window starts at layer max_window_layers in programs that do not read layer_types.
    first = config.layers if config.attention_window is None else 0
    return {
        "use_sliding_window": config.attention_window is not None,
        "max_window_layers": first,
        **write_window(config),
    }


def read_qwen2(values: Values) -> dict[str, Any]:
    return {"attention_bias": "qkv", **read_local_layers(values, "Qwen2")}


def read_qwen3(values: Values) -> dict[str, Any]:
    bias = "all" if values.get("attention_bias", False) else None
    return {"attention_bias": bias, "query_key_norm": "head", **read_local_layers(values, "Qwen3")}


def write_qwen3(config: ModelConfig) -> dict[str, Any]:
    return {"attention_bias": config.biased_attention == "all", **write_layers(config)}


def read_moe(values: Values) -> dict[str, Any]:
    title = "Qwen3-MoE"
    require(values, title, {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None), "norm_topk_prob": (True,)})
    return {
        **read_qwen3({**values, "use_sliding_window": False}),
        **read_window(values, title, local=[True]),
        **read_experts(values, width="moe_intermediate_size"),
    }


def write_moe(config: ModelConfig) -> dict[str, Any]:
    return {
        "attention_bias": config.biased_attention == "all",
        "use_sliding_window": config.attention_window is not None,
        "sliding_window": config.attention_window,
        "moe_intermediate_size": config.hidden,
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "norm_topk_prob": True,
    }


def moe_rows(config: ModelConfig) -> list[Row]:
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    return expert_rows(config, "mlp", names)


BIAS = {"attention_bias": (None, "all"), "query_key_norm": ("head",)}
QWEN2 = make_family(
    Variant("qwen2", "Qwen2", "Qwen2ForCausalLM", {"attention_bias": ("qkv",), **WINDOW}, read_qwen2, write_layers)
)
QWEN3 = make_family(
    Variant(
        "qwen3", "Qwen3", "Qwen3ForCausalLM", {**BIAS, **WINDOW}, read_qwen3, write_qwen3, defaults={"head_dim": 128}
    )
)
QWEN3_MOE = make_family(
    Variant(
        "qwen3_moe",
        "Qwen3-MoE",
        "Qwen3MoeForCausalLM",
        {**BIAS, "attention_window": None, "experts": None},
        read_moe,
        write_moe,
        defaults={"norm_topk_prob": False},
        rows=moe_rows,
    )
)
