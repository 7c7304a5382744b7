"""SmolLM3: Llama without rotary positions in every n-th layer."""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, read_layers, read_number
from chumoku.weights.families.llama import BIASES, Variant, make_family, read_biases, write_biases
from chumoku.weights.families.window import read_window, write_window


def read(values: Values) -> dict[str, Any]:
    layers = read_layers(values)
    every = read_number(values, "no_rope_layer_interval", 4)
    rotated = values.get("no_rope_layers")
    if rotated is None:
        rotated = [int((layer + 1) % max(1, every) != 0) for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) < layers:
        raise UsageError("The config's no_rope_layers must have a number for every layer.")
    rotated = [bool(one) for one in rotated[:layers]]
    every = rotated.index(False) + 1 if False in rotated else None
    if every is not None and (every < 2 or rotated != [(layer + 1) % every != 0 for layer in range(layers)]):
        raise UsageError("The layers of this SmolLM3 without positions are not every n-th one; only that is supported.")
    window = read_window(values, "SmolLM3", local=[not one for one in rotated])
    return {**read_biases(values), **window, "no_position_every": every}


def write(config: ModelConfig) -> dict[str, Any]:
    rotated = [int(config.is_rotated(layer)) for layer in range(config.layers)]
    window = {**write_window(config), "use_sliding_window": config.attention_window is not None}
    return {**write_biases(config), **window, "no_rope_layers": rotated}


SUPPORTED = {**BIASES, "no_position_every": None, "attention_window": None, "full_attention_every": None}
DEFAULTS = {"tie_word_embeddings": True, "rope_theta": 2e6, "use_sliding_window": False}
SMOLLM3 = make_family(Variant("smollm3", "SmolLM3", "SmolLM3ForCausalLM", SUPPORTED, read, write, defaults=DEFAULTS))
