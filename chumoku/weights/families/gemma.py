"""Gemma 2 and the text model of Gemma 3: norms around every sublayer that multiply by 1 + γ, and local layers.

Gemma 2   soft-capped scores and logits
Gemma 3   norms of each head's queries and keys; local layers have their own rotary base
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, read_layers, read_number, require
from chumoku.weights.families.llama import Variant, make_family, rows
from chumoku.weights.families.rotary import read_scaling, write_rotary
from chumoku.weights.families.table import Row
from chumoku.weights.families.window import FULL, LOCAL, read_window, write_window

ACTIVATION = "gelu_pytorch_tanh"
SUPPORTED: Mapping[str, tuple[Any, ...] | None] = {
    "placement": ("sandwich",),
    "feedforward": ("geglu_tanh",),
    "norm_unit_offset": (False, True),
    "scale_embedding": (True,),
    "attention_bias": (None, "all"),
    "attention_window": None,
    "full_attention_every": None,
    "attention_scale": None,
    "score_cap": None,
    "logit_cap": None,
}


def gemma_rows(config: ModelConfig) -> list[Row]:
    return rows(config, unit_offset=True)


def read_gemma(values: Values, title: str, *, every: int) -> dict[str, Any]:
    require(values, title, {"hidden_activation": (ACTIVATION,), "use_bidirectional_attention": (None, False)})
    layers = read_layers(values)
    head_width, scalar = read_number(values, "head_dim"), read_number(values, "query_pre_attn_scalar")
    if scalar <= 0:
        raise UsageError(f"The config's query_pre_attn_scalar is {scalar}; it must be above 0.")
    return {
        "placement": "sandwich",
        "feedforward": "geglu_tanh",
        "norm_unit_offset": True,
        "scale_embedding": True,
        "attention_bias": "all" if values.get("attention_bias", False) else None,
        "attention_scale": None if scalar == head_width else scalar**-0.5,
        **{
            ours: None if values.get(theirs) is None else float(read_number(values, theirs))
            for ours, theirs in (("score_cap", "attn_logit_softcapping"), ("logit_cap", "final_logit_softcapping"))
        },
        **read_window(values, title, local=[(layer + 1) % every != 0 for layer in range(layers)]),
    }


def write_gemma(config: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_act": ACTIVATION,
        "hidden_activation": ACTIVATION,
        "attention_bias": config.biased_attention == "all",
        "query_pre_attn_scalar": write_scale(config),
        "attn_logit_softcapping": config.score_cap,
        "final_logit_softcapping": config.logit_cap,
        **write_window(config),
    }


def write_scale(config: ModelConfig) -> int:
    """The whole number n for which scores are multiplied by 1 / √n."""
    if config.attention_scale is None:
        return config.key_width
    found = round(config.attention_scale**-2)
    if found < 1 or not math.isclose(found**-0.5, config.attention_scale, rel_tol=1e-6):
        raise UsageError(
            f"Gemma supports model.attention_scale = 1 / √n for whole numbers n, not {config.attention_scale}."
        )
    return found


def read_gemma2(values: Values) -> dict[str, Any]:
    return read_gemma(values, "Gemma 2", every=2)


def read_gemma3(values: Values) -> dict[str, Any]:
    every = read_number(values, "sliding_window_pattern", 6)
    if not isinstance(every, int) or every < 1:
        raise UsageError(f"The config's sliding_window_pattern is {every}; it must be 1 or more.")
    config = {**read_gemma(values, "Gemma 3", every=every), "query_key_norm": "head"}
    return {**config, "rotary": read_two_bases(values, local="attention_window" in config)}


def read_two_bases(values: Values, *, local: bool) -> dict[str, Any]:
    """The rotary settings of full and of local layers; only one of them if all layers are of one kind."""
    parameters = values.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping) or not all(
        isinstance(parameters.get(k, {}), Mapping) for k in (FULL, LOCAL)
    ):
        raise UsageError("The config's rope_parameters must be an object.")
    old = {"rope_theta": read_number(values, "rope_theta", 1e6), **(values.get("rope_scaling") or {})}
    rotary = read_scaling({**old, **parameters.get(FULL, {})}, length=values.get("max_position_embeddings"))
    if not local:
        return rotary
    theta = read_number(values, "rope_local_base_freq", 10000.0)
    near = read_scaling(
        {"rope_theta": theta, **parameters.get(LOCAL, {})}, length=values.get("max_position_embeddings")
    )
    if near == rotary:
        return rotary
    if "scaling" in near:
        raise UsageError("This Gemma 3 scales the positions of its local layers, which is not supported.")
    return {**rotary, "local_base": near["base"]}


def write_gemma3(config: ModelConfig) -> dict[str, Any]:
    full, base = write_rotary(config.rotary), config.rotary.local_base
    near = full if base is None else {"rope_theta": base, "rope_type": "default"}
    return {
        **write_gemma(config),
        "rope_parameters": {FULL: full, LOCAL: near},
        "rope_local_base_freq": near["rope_theta"],
    }


DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA2 = make_family(
    Variant(
        "gemma2",
        "Gemma 2",
        "Gemma2ForCausalLM",
        SUPPORTED,
        read_gemma2,
        write_gemma,
        activation=ACTIVATION,
        defaults={**DEFAULTS, **CAPS},
        rows=gemma_rows,
    )
)
GEMMA3 = make_family(
    Variant(
        "gemma3_text",
        "Gemma 3",
        "Gemma3ForCausalLM",
        {**SUPPORTED, "query_key_norm": ("head",), "rotary.local_base": None},
        read_gemma3,
        write_gemma3,
        activation=ACTIVATION,
        defaults=DEFAULTS,
        rows=gemma_rows,
        label_heads=("classes",),
    )
)
