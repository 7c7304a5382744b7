"""OLMo 2: norms on the outputs of the sublayers, and over the queries and keys of all heads together."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values
from chumoku.weights.families.llama import Variant, make_family

SUPPORTED = {"placement": ("output",), "query_key_norm": ("all",), "attention_bias": (None, "all")}


def read(values: Values) -> dict[str, Any]:
    bias = "all" if values.get("attention_bias", False) else None
    return {"placement": "output", "query_key_norm": "all", "attention_bias": bias}


def write(config: ModelConfig) -> dict[str, Any]:
    return {"attention_bias": config.biased_attention == "all"}


OLMO2 = make_family(
    Variant(
        "olmo2",
        "OLMo 2",
        "Olmo2ForCausalLM",
        SUPPORTED,
        read,
        write,
        defaults={"rms_norm_eps": 1e-5},
        label_heads=("classes",),
    )
)
