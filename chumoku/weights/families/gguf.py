"""Llama and GPT-2 in GGUF files: llama.cpp's names of tensors and config fields.

    general.architecture = "llama"     llama.block_count, llama.embedding_length, llama.attention.head_count …

Rotary pairs are adjacent in GGUF. Llama 3's position scaling is stored as a tensor of factors, one per frequency; it is
recognized by computing the same factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.nn.positions import RotaryScaling, frequencies
from chumoku.weights.families import gpt2, llama
from chumoku.weights.families.family import Supported, Values, find_unsupported, make_config, read_number
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row

ROPE_FACTORS = "rope_freqs.weight"
LLAMA3 = {"low": 1.0, "high": 4.0, "original": 8192}  # for Llama 3.1 and 3.2; the factor is the tensor's maximum
CHUMOKU_PREFIX = "chumoku.rotary"  # fields for other values; llama.cpp ignores them
REQUIRED_VALUES = {
    **{"expert_count": 0, "attention.causal": True, "rope.scaling.attn_factor": 1.0, "attention.scale": 0.0},
    **{"attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0, "attention.sliding_window": 0, "logit_scale": 0.0},
    **{"use_parallel_residual": False, "embedding_scale": 0.0, "residual_scale": 0.0},
}
HEAD_WIDTHS = ("rope.dimension_count", "attention.key_length", "attention.value_length")


class GgufArchitecture(NamedTuple):
    """A model family as llama.cpp stores it in GGUF."""

    name: str
    read: Callable[[Values, Source], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    rows: Callable[[ModelConfig], list[Row]]
    extra_tensors: Callable[[ModelConfig], dict[str, Tensor]]  # tensors that are not in the table
    supported: Supported
    ignored: Mapping[str, str]


def llama_read(values: Values, source: Source) -> ModelConfig:
    width, heads = read_number(values, "llama.embedding_length"), read_number(values, "llama.attention.head_count")
    head_width = width // max(1, heads)
    for key, required in {**REQUIRED_VALUES, **dict.fromkeys(HEAD_WIDTHS, head_width)}.items():
        if values.get(f"llama.{key}", required) != required:
            raise UsageError(f"{source.path} has llama.{key} = {str(values[f'llama.{key}'])[:40]}: not supported.")
    return llama.llama_config(
        vocabulary=_vocabulary_size(source),
        context=read_number(values, "llama.context_length", 2048),
        width=width,
        layers=read_number(values, "llama.block_count"),
        heads=heads,
        kv_heads=read_number(values, "llama.attention.head_count_kv", heads),
        feedforward_width=read_number(values, "llama.feed_forward_length"),
        norm_epsilon=read_number(values, "llama.attention.layer_norm_rms_epsilon", 1e-5),
        bias="blk.0.attn_q.bias" in source.shapes,
        tie_output="output.weight" not in source.shapes,
        pairing="interleaved",
        rotary=_read_rotary(values, source, head_width=head_width),
    )


def _vocabulary_size(source: Source) -> int:
    shape = source.shapes.get("token_embd.weight", ())
    if len(shape) != 2:
        raise UsageError(f"{source.path} lacks the embedding table token_embd.weight. Is the file complete?")
    return shape[0]


def _read_rotary(values: Values, source: Source, *, head_width: int) -> dict[str, Any]:
    rotary: dict[str, Any] = {"base": read_number(values, "llama.rope.freq_base", 10000.0)}
    older = 1 / read_number(values, "llama.rope.scale_linear", 1.0) if values.get("llama.rope.scale_linear") else 1.0
    factor = read_number(values, "llama.rope.scaling.factor", 1 / older)
    kind = values.get("llama.rope.scaling.type", "linear")
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


def _rope_factors(rotary: RotarySettings, head_width: int) -> Tensor:
    """The factor by which Llama 3's scaling divides each frequency."""
    unscaled = frequencies(head_width, base=rotary.base, dtype=torch.float64)
    scaling = RotaryScaling("llama3", rotary.factor, low=rotary.low, high=rotary.high, original=rotary.original)
    return (unscaled / scaling(unscaled, rotary.base)).float()


def llama_write(config: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "llama.context_length": config.context,
        "llama.embedding_length": config.width,
        "llama.block_count": config.layers,
        "llama.feed_forward_length": config.hidden,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.key_heads,
        "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "llama.rope.dimension_count": config.key_width,
        "llama.rope.freq_base": config.rotary.base,
        "llama.vocab_size": config.vocabulary,
    }
    if config.rotary.scaling == "linear":
        values |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": config.rotary.factor}
    if config.rotary.scaling == "llama3":
        values |= {f"{CHUMOKU_PREFIX}.{key}": getattr(config.rotary, key) for key in (*LLAMA3, "factor")}
    return values


def llama_extra(config: ModelConfig) -> dict[str, Tensor]:
    return {ROPE_FACTORS: _rope_factors(config.rotary, config.key_width)} if config.rotary.scaling == "llama3" else {}


def gpt2_rows(config: ModelConfig) -> list[Row]:
    ours, theirs = "decoder.blocks.{}", "blk.{}"
    joined = [
        tuple(f"{ours}.attention.{part}.{end}" for part in ("query", "key", "value")) for end in ("weight", "bias")
    ]
    return [
        tensor_row("decoder.embedding.table", "token_embd.weight"),
        tensor_row("decoder.position.table", "position_embd.weight"),
        *layer_rows(
            config.layers,
            [
                *norm_rows(f"{ours}.attention_norm", f"{theirs}.attn_norm"),
                Row(joined[0], f"{theirs}.attn_qkv.weight"),
                Row(joined[1], f"{theirs}.attn_qkv.bias"),
                *linear_rows(f"{ours}.attention.output", f"{theirs}.attn_output"),
                *norm_rows(f"{ours}.feedforward_norm", f"{theirs}.ffn_norm"),
                *linear_rows(f"{ours}.feedforward.up", f"{theirs}.ffn_up"),
                *linear_rows(f"{ours}.feedforward.down", f"{theirs}.ffn_down"),
            ],
        ),
        *norm_rows("decoder.norm", "output_norm"),
        tensor_row("head.weight", "output.weight"),
    ]


def gpt2_read(values: Values, source: Source) -> ModelConfig:
    return make_config({
        "kind": "decoder", "position": "learned", "norm": "layer", "placement": "pre", "feedforward": "gelu_tanh",
        "vocabulary": _vocabulary_size(source),
        "context": read_number(values, "gpt2.context_length"),
        "width": read_number(values, "gpt2.embedding_length"),
        "layers": read_number(values, "gpt2.block_count"),
        "heads": read_number(values, "gpt2.attention.head_count"),
        "feedforward_width": read_number(values, "gpt2.feed_forward_length"),
        "norm_epsilon": read_number(values, "gpt2.attention.layer_norm_epsilon", 1e-5),
        "tie_output": "output.weight" not in source.shapes,
    })  # fmt: skip


def gpt2_write(config: ModelConfig) -> dict[str, Any]:
    return {
        "gpt2.context_length": config.context,
        "gpt2.embedding_length": config.width,
        "gpt2.block_count": config.layers,
        "gpt2.feed_forward_length": config.hidden,
        "gpt2.attention.head_count": config.heads,
        "gpt2.attention.layer_norm_epsilon": config.norm_epsilon,
    }


ARCHITECTURES = {
    "llama": GgufArchitecture(
        "llama",
        llama_read,
        llama_write,
        lambda config: llama.rows(config, llama.GGUF),
        llama_extra,
        {**llama.LLAMA.supported, "rotary.scaling": ("none", "linear", "llama3"), "head_width": (None,)},
        {r"rope_freqs\.weight": "the factors of Llama 3's position scaling, which we compute"},
    ),
    "gpt2": GgufArchitecture(
        "gpt2",
        gpt2_read,
        gpt2_write,
        gpt2_rows,
        lambda config: {},
        {**gpt2.GPT2.supported, "feedforward": ("gelu_tanh",)},
        {},
    ),
}


def find_architecture(config: ModelConfig) -> GgufArchitecture:
    """The llama.cpp architecture that can express this model; if none can, an error says why."""
    found = {
        name: find_unsupported(f"llama.cpp's {name}", one.supported, config) for name, one in ARCHITECTURES.items()
    }
    nearest = min(found, key=lambda name: len(found[name]))
    if found[nearest]:
        raise UsageError(
            f"llama.cpp has no model like this. Its {nearest} is the nearest, except for {'; '.join(found[nearest])}."
        )
    return ARCHITECTURES[nearest]
