"""Decoders like Llama in GGUF files, except Llama itself: their fields, as llama.cpp reads and writes them.

Rotary pairs are half a head apart, except for SmolLM3. The norms of Gemma are stored as 1 + γ. Some settings have no
field, because llama.cpp knows them: the layers with a window, and those without positions.
"""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families import gemma, llama, olmo2, phi3, qwen, smollm3
from chumoku.weights.families.family import Supported, Values, read_number
from chumoku.weights.families.gguf_fields import (
    ATTENTION_FACTOR,
    LONGROPE_FACTORS,
    ROTATED,
    GgufArchitecture,
    read_decoder,
    rope_factors,
    write_decoder,
)
from chumoku.weights.families.table import Row, Source

WINDOW = "attention.sliding_window"
NO_WINDOW: Supported = {"attention_window": (None,), "full_attention_every": (None,)}
SCALING: Supported = {"rotary.scaling": ("none", "linear", "yarn")}


def rows(config: ModelConfig) -> list[Row]:
    return llama.rows(config, llama.GGUF)


def make_architecture(name: str, supported: Supported, **settings: Any) -> GgufArchitecture:
    """An architecture with Llama's fields and the config values `settings`."""
    return GgufArchitecture(
        name,
        lambda values, source: read_decoder(values, source, name, **settings),
        lambda config: write_decoder(config, name),
        rows,
        {**supported, **NO_WINDOW, **SCALING},
    )


QWEN2 = make_architecture("qwen2", qwen.QWEN2.supported)
QWEN3 = make_architecture("qwen3", {**qwen.QWEN3.supported, "attention_bias": (None,)}, query_key_norm="head")
OLMO2 = make_architecture(
    "olmo2", {**olmo2.OLMO2.supported, "attention_bias": (None,)}, placement="output", query_key_norm="all"
)


def read_phi3(values: Values, source: Source) -> ModelConfig:
    window = read_number(values, f"phi3.{WINDOW}", 0) or None
    longrope = any(tensor in source.shapes for tensor in LONGROPE_FACTORS.values())
    allowed = (WINDOW, ROTATED, *([ATTENTION_FACTOR] if longrope else []))
    return read_decoder(values, source, "phi3", allowed=allowed, attention_window=window)


def write_phi3(config: ModelConfig) -> dict[str, Any]:
    return {**write_decoder(config, "phi3"), f"phi3.{WINDOW}": config.attention_window or 0}


PHI3 = GgufArchitecture(
    "phi3",
    read_phi3,
    write_phi3,
    lambda config: llama.joined_rows(config, llama.GGUF),
    {
        **phi3.PHI3.supported,
        **NO_WINDOW,
        "head_width": (None,),
        "rotary.scaling": ("none", "linear", "yarn", "longrope"),
    },
    {r"rope_factors_(short|long)\.weight": "the divisors of longrope, which are part of the config"},
    extra_tensors=rope_factors,
)
SMOLLM3 = make_architecture(
    "smollm3",
    {**smollm3.SMOLLM3.supported, "no_position_every": (4,)},
    no_position_every=4,
    pairing="interleaved",
)._replace(pairing="interleaved")


CAPS = {"score_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, which scale scores by 1 / √(width / heads)
EVERY = {"gemma2": 2, "gemma3": 6}  # every n-th layer has no window
LOCAL_BASE = 10000.0


def read_gemma(values: Values, source: Source, name: str, **changes: Any) -> ModelConfig:
    width, heads = (read_number(values, f"{name}.{key}") for key in ("embedding_length", "attention.head_count"))
    largest = values.get(f"{name}.block_count") == LARGEST[name]
    return read_decoder(
        values,
        source,
        name,
        allowed=(WINDOW,),
        placement="sandwich",
        feedforward="geglu_tanh",
        scale_embedding=True,
        attention_window=read_number(values, f"{name}.{WINDOW}", 4096),
        full_attention_every=EVERY[name],
        attention_scale=(width / heads) ** -0.5 if largest and width > 0 < heads else None,
        **changes,
    )


def read_gemma2(values: Values, source: Source) -> ModelConfig:
    defaults = {"score_cap": 50.0, "logit_cap": 30.0}
    caps = {key: float(read_number(values, f"gemma2.{theirs}", defaults[key])) for key, theirs in CAPS.items()}
    return read_gemma(values, source, "gemma2", **caps)


def read_gemma3(values: Values, source: Source) -> ModelConfig:
    rotary = read_decoder(values, source, "gemma3", allowed=(WINDOW,)).rotary
    settings = {key: getattr(rotary, key) for key in ("base", "scaling", "factor", "low", "high", "original")}
    base = read_number(values, "gemma3.rope.freq_base_swa", LOCAL_BASE)
    return read_gemma(values, source, "gemma3", query_key_norm="head", rotary={**settings, "local_base": base})


def write_gemma(config: ModelConfig, name: str) -> dict[str, Any]:
    needed = (config.width / config.heads if config.layers == LARGEST[name] else config.key_width) ** -0.5
    if config.attention_scale is not None and abs(config.attention_scale / needed - 1) > 1e-6:
        raise UsageError(f"llama.cpp supports this {name} only with model.attention_scale = {needed:.6g}.")
    return {
        **write_decoder(config, name),
        f"{name}.attention.key_length": config.key_width,
        f"{name}.attention.value_length": config.key_width,
        f"{name}.{WINDOW}": config.attention_window,
    }


def write_gemma2(config: ModelConfig) -> dict[str, Any]:
    if config.score_cap is None or config.logit_cap is None:
        raise UsageError("llama.cpp's gemma2 always has soft-capping: set model.score_cap and model.logit_cap.")
    return {
        **write_gemma(config, "gemma2"),
        **{f"gemma2.{theirs}": getattr(config, key) for key, theirs in CAPS.items()},
    }


GEMMA2 = GgufArchitecture(
    "gemma2",
    read_gemma2,
    write_gemma2,
    rows,
    {
        **gemma.GEMMA2.supported,
        "full_attention_every": (EVERY["gemma2"],),
        "attention_bias": (None,),
        "tie_output": (True,),
        "rotary.scaling": ("none", "linear"),
    },
)
GEMMA3 = GgufArchitecture(
    "gemma3",
    read_gemma3,
    lambda config: write_gemma(config, "gemma3"),
    rows,
    {
        **gemma.GEMMA3.supported,
        "full_attention_every": (EVERY["gemma3"],),
        "attention_bias": (None,),
        "score_cap": (None,),
        "logit_cap": (None,),
        "rotary.local_base": (LOCAL_BASE,),
        "rotary.scaling": ("none", "linear"),
    },
)
