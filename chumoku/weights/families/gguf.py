"""Decoders in GGUF files: llama.cpp's names of tensors and config fields, by architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families import gpt2, llama
from chumoku.weights.families.family import Values, find_unsupported, make_config, read_number
from chumoku.weights.families.gguf_decoders import GEMMA2, GEMMA3, OLMO2, PHI3, QWEN2, QWEN3, SMOLLM3
from chumoku.weights.families.gguf_fields import (
    GgufArchitecture,
    read_decoder,
    rope_factors,
    vocabulary_size,
    write_decoder,
)
from chumoku.weights.families.table import Row, Source, layer_rows, linear_rows, norm_rows, tensor_row


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
        "vocabulary": vocabulary_size(source),
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


LLAMA = GgufArchitecture(
    "llama",
    lambda values, source: read_decoder(values, source, "llama", pairing="interleaved"),
    lambda config: write_decoder(config, "llama"),
    lambda config: llama.rows(config, llama.GGUF),
    llama.LLAMA.supported,
    {r"rope_freqs\.weight": "the factors of Llama 3's position scaling, which we compute"},
    pairing="interleaved",
    extra_tensors=rope_factors,
)
GPT2 = GgufArchitecture(
    "gpt2", gpt2_read, gpt2_write, gpt2_rows, {**gpt2.GPT2.supported, "feedforward": ("gelu_tanh",)}
)
ARCHITECTURES = {one.name: one for one in (LLAMA, GPT2, QWEN2, QWEN3, PHI3, OLMO2, SMOLLM3, GEMMA2, GEMMA3)}


def find_architecture(config: ModelConfig) -> GgufArchitecture:
    """The llama.cpp architecture that can express this model; if none can, an error says why."""
    config = _without_unused_window(config)
    found = {
        name: find_unsupported(f"llama.cpp's {name}", one.supported, config) for name, one in ARCHITECTURES.items()
    }
    nearest = min(found, key=lambda name: len(found[name]))
    if found[nearest]:
        raise UsageError(
            f"llama.cpp has no model like this. Its {nearest} is the nearest, except for {'; '.join(found[nearest])}."
        )
    return ARCHITECTURES[nearest]


def _without_unused_window(config: ModelConfig) -> ModelConfig:
    """The config without a window as long as the context, which Phi-3 with longrope and Phi-4 have."""
    used = config.full_attention_every is not None or (config.attention_window or 0) < config.context
    return config if used else replace(config, attention_window=None, rotary=replace(config.rotary, local_base=None))
