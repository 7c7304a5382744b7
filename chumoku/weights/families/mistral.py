"""Mistral: Llama with a sliding window in every layer; Mixtral: the same with experts."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.weights.families.experts import expert_rows, read_experts
from chumoku.weights.families.family import Values
from chumoku.weights.families.llama import Variant, make_family
from chumoku.weights.families.table import Row
from chumoku.weights.families.window import read_window

WINDOW = {"attention_window": None}


def read(values: Values) -> dict[str, Any]:
    return read_window(values, "Mistral", local=[True])


def write(config: ModelConfig) -> dict[str, Any]:
    return {"sliding_window": config.attention_window}


def read_mixtral(values: Values) -> dict[str, Any]:
    return {**read(values), **read_experts(values, width="intermediate_size")}


def write_mixtral(config: ModelConfig) -> dict[str, Any]:
    return {**write(config), "num_local_experts": config.experts, "num_experts_per_tok": config.experts_per_token}


def mixtral_rows(config: ModelConfig) -> list[Row]:
    return expert_rows(config, "block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"})


MISTRAL = make_family(
    Variant("mistral", "Mistral", "MistralForCausalLM", WINDOW, read, write, defaults={"sliding_window": 4096})
)
MIXTRAL = make_family(
    Variant(
        "mixtral",
        "Mixtral",
        "MixtralForCausalLM",
        {**WINDOW, "experts": None},
        read_mixtral,
        write_mixtral,
        defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-5},
        rows=mixtral_rows,
    )
)
