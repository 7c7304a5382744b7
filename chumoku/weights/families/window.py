"""Sliding windows in config.json: sliding_window, and which layers have it (layer_types)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, read_number

LOCAL, FULL = "sliding_attention", "full_attention"


def read_window(values: Values, title: str, *, local: Sequence[bool]) -> dict[str, Any]:
    """Our values; `local` says which layers have the window if the config has no layer_types."""
    if values.get("sliding_window") is None or values.get("use_sliding_window", True) is False:
        return {}
    window, types = read_number(values, "sliding_window"), values.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or set(map(str, types)) - {LOCAL, FULL}:
            raise UsageError(f"This {title} has layer_types other than {LOCAL} and {FULL}.")
        if len(types) != (layers := read_number(values, "num_hidden_layers")):
            raise UsageError(f"This {title} has {len(types)} layer_types for {layers} layers.")
        local = [kind == LOCAL for kind in types]
    if not any(local):
        return {}
    if all(local):
        return {"attention_window": window}
    every = local.index(False) + 1
    if every < 2 or list(local) != [(layer + 1) % every != 0 for layer in range(len(local))]:
        raise UsageError(
            f"This {title} has a sliding window in some layers, but the others are not every n-th one; only that is "
            "supported."
        )
    return {"attention_window": window, "full_attention_every": every}


def write_window(config: ModelConfig) -> dict[str, Any]:
    types = [LOCAL if config.is_local(layer) else FULL for layer in range(config.layers)]
    return {"sliding_window": config.attention_window, "layer_types": types}
