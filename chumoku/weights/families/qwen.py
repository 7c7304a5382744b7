"""Qwen2 (biases of query, key and value), Qwen3 (norms of each head's queries and keys), and both with experts.

Qwen2-MoE also has a shared expert.
"""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.weights.families.experts import expert_rows, read_experts
from chumoku.weights.families.family import Supported, Values, read_layers, read_number, require
from chumoku.weights.families.llama import LAYER_PREFIX, TRANSFORMERS, Variant, make_family
from chumoku.weights.families.table import Row, layer_rows, linear_rows, tensor_row
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


def read_sparse(values: Values, title: str) -> dict[str, Any]:
    require(values, title, {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)})
    normalize = values.get("norm_topk_prob", False)
    return {**read_experts(values, width="moe_intermediate_size"), "normalize_experts": normalize}


def write_sparse(config: ModelConfig) -> dict[str, Any]:
    return {
        "moe_intermediate_size": config.hidden,
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "norm_topk_prob": config.normalize_experts,
    }


def read_qwen3_moe(values: Values) -> dict[str, Any]:
    title = "Qwen3-MoE"
    return {
        **read_qwen3({**values, "use_sliding_window": False}),
        **read_window(values, title, local=[True]),
        **read_sparse(values, title),
    }


def write_qwen3_moe(config: ModelConfig) -> dict[str, Any]:
    return {
        "attention_bias": config.biased_attention == "all",
        "use_sliding_window": config.attention_window is not None,
        "sliding_window": config.attention_window,
        **write_sparse(config),
    }


def read_qwen2_moe(values: Values) -> dict[str, Any]:
    title = "Qwen2-MoE"
    require(values, title, {"use_sliding_window": (False,)})
    bias = "qkv" if values.get("qkv_bias", True) else None
    width = read_number(values, "shared_expert_intermediate_size", 5632)
    return {"attention_bias": bias, **read_sparse(values, title), "shared_expert_width": width}


def write_qwen2_moe(config: ModelConfig) -> dict[str, Any]:
    return {
        "qkv_bias": config.biased_attention == "qkv",
        "use_sliding_window": False,
        "shared_expert_intermediate_size": config.shared_expert_width,
        **write_sparse(config),
    }


def moe_rows(config: ModelConfig) -> list[Row]:
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    ours, theirs = f"{LAYER_PREFIX[0]}.feedforward", f"{LAYER_PREFIX[TRANSFORMERS]}.mlp"
    shared = [tensor_row(f"{ours}.shared_router.weight", f"{theirs}.shared_expert_gate.weight")]
    for name, other in names.items():
        shared += linear_rows(f"{ours}.shared.{name}", f"{theirs}.shared_expert.{other}")
    return [*expert_rows(config, "mlp", names), *layer_rows(config.layers, shared)]


MANY = range(1, 1 << 20)
BIAS: Supported = {"attention_bias": (None, "all"), "query_key_norm": ("head",)}
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
        {**BIAS, "attention_window": None, "experts": None, "normalize_experts": (True, False)},
        read_qwen3_moe,
        write_qwen3_moe,
        rows=moe_rows,
    )
)
QWEN2_MOE = make_family(
    Variant(
        "qwen2_moe",
        "Qwen2-MoE",
        "Qwen2MoeForCausalLM",
        {
            "attention_bias": (None, "qkv"),
            "experts": None,
            "normalize_experts": (True, False),
            "shared_expert_width": MANY,
        },
        read_qwen2_moe,
        write_qwen2_moe,
        defaults={"num_experts_per_tok": 4},
        rows=moe_rows,
    )
)
