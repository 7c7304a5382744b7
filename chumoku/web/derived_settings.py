"""A model's config for JavaScript: every setting, and what would otherwise have to be computed again from them.

    key_width, key_heads, hidden, head_kind, encoder_depth, decoder_depth, source_tokens     as in ModelConfig
    local_layers, rotated_layers      for each layer, whether it has the attention window, and rotary positions
    rotary_frequencies                the angle of one step in each plane, scaled for long texts; null without rotary
    local_rotary_frequencies          those of layers with a window, if they have their own base
    rotary_magnitude                  the factor of cos and sin
    sinusoidal_frequencies, alibi_slopes
    bucket_starts                     relative_bias: {stack: [[first distance, bucket], …]} for keys before the query

Frequencies are Python's own float32 numbers, so that angles of distant positions agree to the last bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from chumoku.models.config import ModelConfig
from chumoku.models.stack import make_local_rotary, make_position, make_relative_bias, make_rotary
from chumoku.nn.positions import (
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    alibi_slopes,
    frequencies,
)

PROPERTIES = ("key_width", "key_heads", "hidden", "head_kind", "encoder_depth", "decoder_depth", "source_tokens")


def config_for_page(config: ModelConfig) -> dict[str, Any]:
    """Every setting by its name, and the derived ones."""
    layers = range(max(config.encoder_depth, config.decoder_depth))
    rotary, local = make_rotary(config), make_local_rotary(config)
    scaling = None if rotary is None else rotary.scaling
    return {
        **dataclasses.asdict(config),
        **{name: getattr(config, name) for name in PROPERTIES},
        "local_layers": [config.is_local(layer) for layer in layers],
        "rotated_layers": [config.is_rotated(layer) for layer in layers],
        "rotary_frequencies": _rotary_frequencies(rotary),
        "local_rotary_frequencies": _rotary_frequencies(local),
        "rotary_magnitude": 1.0 if scaling is None else scaling.magnitude,
        "sinusoidal_frequencies": _sinusoidal_frequencies(config),
        "alibi_slopes": alibi_slopes(config.heads).tolist() if config.position == "alibi" else None,
        "bucket_starts": _bucket_starts(config),
    }


def _rotary_frequencies(rotary: RotaryPositions | None) -> list[float] | None:
    if rotary is None:
        return None
    frequency = frequencies(rotary.width, base=rotary.base)
    found: list[float] = (frequency if rotary.scaling is None else rotary.scaling(frequency, rotary.base)).tolist()
    return found


def _sinusoidal_frequencies(config: ModelConfig) -> list[float] | None:
    position = make_position(config)
    if not isinstance(position, SinusoidalPositions):
        return None
    found: list[float] = frequencies(position.width, base=position.base, endpoint=position.endpoint).tolist()
    return found


def _bucket_starts(config: ModelConfig) -> dict[str, list[list[int]]] | None:
    if config.position != "relative_bias":
        return None
    with torch.device("meta"):
        biases = {stack: make_relative_bias(config, causal=stack == "decoder") for stack in ("encoder", "decoder")}
    return {stack: _starts(bias) for stack, bias in biases.items() if bias is not None}


def _starts(bias: RelativeBias) -> list[list[int]]:
    """From which distance on keys before the query have which bucket."""
    buckets: list[int] = bias.bucket(torch.arange(bias.max_distance + 1)).tolist()
    return [[at, bucket] for at, bucket in enumerate(buckets) if at == 0 or bucket != buckets[at - 1]]
