"""Fields of decoders like Llama in GGUF files, the same for every architecture except for their prefix.

    general.architecture = "llama"     llama.block_count, llama.embedding_length, llama.attention.head_count …

Llama 3's position scaling is stored as a tensor of factors, one per frequency; it is recognized by computing the same
factors. Longrope (Phi-3 and Phi-4) is stored as two tensors of divisors, without a rope.scaling.type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.nn.positions import RotaryScaling, frequencies
from chumoku.weights.families import llama
from chumoku.weights.families.family import Supported, Values, read_number
from chumoku.weights.families.table import Row, Source

ROPE_FACTORS = "rope_freqs.weight"
LONGROPE_FACTORS = {"short_factors": "rope_factors_short.weight", "long_factors": "rope_factors_long.weight"}
ATTENTION_FACTOR, ROTATED = "rope.scaling.attn_factor", "rope.dimension_count"
LLAMA3 = {"low": 1.0, "high": 4.0, "original": 8192}  # for Llama 3.1 and 3.2; the factor is the tensor's maximum
CHUMOKU_PREFIX = "chumoku.rotary"  # fields for other values; llama.cpp ignores them
REQUIRED_VALUES = {
    **{"expert_count": 0, "attention.causal": True, ATTENTION_FACTOR: 1.0, "attention.scale": 0.0},
    **{"attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0, "attention.sliding_window": 0, "logit_scale": 0.0},
    **{"use_parallel_residual": False, "embedding_scale": 0.0, "residual_scale": 0.0},
}
YARN = {"low": 1.0, "high": 32.0}  # llama.cpp's, which no field changes


class GgufArchitecture(NamedTuple):
    """A model family as llama.cpp stores it in GGUF."""

    name: str
    read: Callable[[Values, Source], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    rows: Callable[[ModelConfig], list[Row]]
    supported: Supported
    ignored: Mapping[str, str] = {}
    pairing: str = "half"  # of rotary positions
    extra_tensors: Callable[[ModelConfig], dict[str, Tensor]] = lambda config: {}  # tensors that are not in the table


def read_decoder(
    values: Values, source: Source, name: str, *, allowed: tuple[str, ...] = (), **changes: Any
) -> ModelConfig:
    """The config of a decoder like Llama; `changes` are our values that its architecture has besides those of Llama.

    allowed: fields of REQUIRED_VALUES that the architecture may have with other values.
    """
    width, heads = (read_number(values, f"{name}.{key}") for key in ("embedding_length", "attention.head_count"))
    head_width = read_number(values, f"{name}.attention.key_length", width // max(1, heads))
    widths = dict.fromkeys((ROTATED, "attention.value_length"), head_width)
    for key, required in {**REQUIRED_VALUES, **widths}.items():
        if key not in allowed and values.get(f"{name}.{key}", required) != required:
            raise UsageError(f"{source.path} has {name}.{key} = {str(values[f'{name}.{key}'])[:40]}: not supported.")
    return llama.llama_config(**{
        "vocabulary": vocabulary_size(source),
        "context": read_number(values, f"{name}.context_length", 2048),
        "width": width,
        "layers": read_number(values, f"{name}.block_count"),
        "heads": heads,
        "kv_heads": read_number(values, f"{name}.attention.head_count_kv", heads),
        "head_width": head_width,
        "feedforward_width": read_number(values, f"{name}.feed_forward_length"),
        "norm_epsilon": read_number(values, f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
        **_read_biases(source),
        "tie_output": "output.weight" not in source.shapes,
        "pairing": "half",
        "rotary": _read_rotary(values, source, name, head_width=head_width),
        **changes,
    })  # fmt: skip


def _read_biases(source: Source) -> dict[str, Any]:
    projections, output, bias = (f"blk.0.{part}.bias" in source.shapes for part in ("attn_q", "attn_output", "ffn_up"))
    kind = "all" if output else "qkv" if projections else "none"
    return {"bias": bias, "attention_bias": None if kind == ("all" if bias else "none") else kind}


def vocabulary_size(source: Source) -> int:
    shape = source.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise UsageError(f"{source.path} lacks the embedding table token_embd.weight. Is the file complete?")
    return shape[0]


def _read_rotary(values: Values, source: Source, name: str, *, head_width: int) -> dict[str, Any]:
    rotary: dict[str, Any] = {"base": read_number(values, f"{name}.rope.freq_base", 10000.0)}
    rotated = read_number(values, f"{name}.{ROTATED}", head_width)
    if rotated != head_width:
        rotary["share"] = rotated / max(1, head_width)
    old_key = f"{name}.rope.scale_linear"
    older = 1 / read_number(values, old_key, 1.0) if values.get(old_key) else 1.0
    factor = read_number(values, f"{name}.rope.scaling.factor", 1 / older)
    kind = values.get(f"{name}.rope.scaling.type", "linear")
    if any(tensor in source.shapes for tensor in LONGROPE_FACTORS.values()):
        if kind not in ("none", "linear", "longrope") or (kind != "none" and factor not in (0.0, 1.0)):
            raise UsageError(f"{source.path} scales rotary positions by longrope and by '{str(kind)[:40]}' at once.")
        return {**rotary, **_read_longrope(values, source, name, pairs=rotated // 2)}
    if kind == "yarn" and factor > 1:
        context = read_number(values, f"{name}.context_length", 2048)
        original = read_number(values, f"{name}.rope.scaling.original_context_length", context)
        return {**rotary, "scaling": "yarn", "factor": factor, "original": original, **YARN}
    if kind not in ("none", "linear"):
        raise UsageError(f"{source.path} scales rotary positions by '{str(kind)[:40]}', which is not supported.")
    linear = kind == "linear" and factor not in (0.0, 1.0)
    if ROPE_FACTORS not in source.shapes:
        return {**rotary, "scaling": "linear", "factor": factor} if linear else rotary
    if source.shapes[ROPE_FACTORS] == (head_width // 2,) and not linear:
        factors = source.read(ROPE_FACTORS).float()
        guess = {**LLAMA3, "factor": round(float(factors.max()), 3)}
        for key in guess:
            guess[key] = read_number(values, f"{CHUMOKU_PREFIX}.{key}", guess[key])
        if guess["factor"] == 1.0 and bool((factors == 1).all()):
            return rotary
        found = {**rotary, **guess, "scaling": "llama3", "original": int(guess["original"])}
        if guess["factor"] > 1 and torch.allclose(
            factors, _rope_factors(RotarySettings(**found), head_width), rtol=1e-4
        ):
            return found
    raise UsageError(f"{source.path} scales rotary positions by factors ({ROPE_FACTORS}) that are not Llama 3's.")


def _read_longrope(values: Values, source: Source, name: str, *, pairs: int) -> dict[str, Any]:
    for tensor in LONGROPE_FACTORS.values():
        if source.shapes.get(tensor) != (pairs,):
            if tensor not in source.shapes:
                raise UsageError(f"{source.path} lacks the tensor {tensor}, which longrope needs.")
            raise UsageError(
                f"{source.path}: {tensor} has shape {list(source.shapes[tensor])}; longrope needs {pairs} factors, one "
                "for each frequency."
            )
    context = read_number(values, f"{name}.context_length", 2048)
    original = read_number(values, f"{name}.rope.scaling.original_context_length", context)
    factor = max(1.0, read_number(values, f"{CHUMOKU_PREFIX}.factor", context / max(1, original)))
    attention = read_number(values, f"{name}.{ATTENTION_FACTOR}", 1.0)
    default = RotaryScaling("longrope", factor, original=max(2, original)).magnitude
    return {
        "scaling": "longrope",
        "factor": factor,
        "original": original,
        **{key: source.read(tensor).float().tolist() for key, tensor in LONGROPE_FACTORS.items()},
        **({} if math.isclose(attention, default, rel_tol=1e-6) else {"attention_factor": attention}),
    }


def _rope_factors(rotary: RotarySettings, head_width: int) -> Tensor:
    """The factor by which Llama 3's scaling divides each frequency."""
    unscaled = frequencies(head_width, base=rotary.base, dtype=torch.float64)
    scaling = RotaryScaling("llama3", rotary.factor, low=rotary.low, high=rotary.high, original=rotary.original)
    return (unscaled / scaling(unscaled, rotary.base)).float()


def write_decoder(config: ModelConfig, name: str) -> dict[str, Any]:
    """The fields of a decoder like Llama."""
    values: dict[str, Any] = {
        "context_length": config.context,
        "embedding_length": config.width,
        "block_count": config.layers,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.key_heads,
        "attention.layer_norm_rms_epsilon": config.norm_epsilon,
        ROTATED: config.rotated_width,
        "rope.freq_base": config.rotary.base,
        "vocab_size": config.vocabulary,
        **_write_scaling(config.rotary),
    }
    if config.head_width is not None:
        values |= {"attention.key_length": config.key_width, "attention.value_length": config.key_width}
    own = {f"{CHUMOKU_PREFIX}.{key}": getattr(config.rotary, key) for key in _keys_without_field(config)}
    return {**{f"{name}.{key}": value for key, value in values.items()}, **own}


def _keys_without_field(config: ModelConfig) -> tuple[str, ...]:
    """The keys of rotary settings that llama.cpp has no field for, because it stores what follows from them."""
    if config.rotary.scaling == "llama3":
        return (*LLAMA3, "factor")
    usual = config.rotary.factor == max(1.0, config.context / config.rotary.original)
    return ("factor",) if config.rotary.scaling == "longrope" and not usual else ()


def _write_scaling(rotary: RotarySettings) -> dict[str, Any]:
    if rotary.scaling == "yarn":
        if any(getattr(rotary, key) != value for key, value in YARN.items()) or rotary.attention_factor is not None:
            raise UsageError("llama.cpp supports yarn positions only with low = 1, high = 32 and no attention_factor.")
        scaling = {"type": "yarn", "factor": rotary.factor, "original_context_length": rotary.original}
    elif rotary.scaling == "linear":
        scaling = {"type": "linear", "factor": rotary.factor}
    elif rotary.scaling == "longrope":
        settings = RotaryScaling(
            "longrope", rotary.factor, original=rotary.original, attention_factor=rotary.attention_factor
        )
        scaling = {"attn_factor": settings.magnitude, "original_context_length": rotary.original}
    else:
        scaling = {}
    return {f"rope.scaling.{key}": value for key, value in scaling.items()}


def rope_factors(config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of position scaling: of Llama 3 or of longrope."""
    if config.rotary.scaling == "longrope":
        return {tensor: torch.tensor(getattr(config.rotary, key)) for key, tensor in LONGROPE_FACTORS.items()}
    return {ROPE_FACTORS: _rope_factors(config.rotary, config.key_width)} if config.rotary.scaling == "llama3" else {}
