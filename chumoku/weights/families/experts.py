"""Mixtures of experts in the transformers library: the router, and three matrices of every expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, read_layers, read_number
from chumoku.weights.families.llama import LAYER_PREFIX, TRANSFORMERS, rows
from chumoku.weights.families.table import Row, layer_rows, tensor_row

MAX_EXPERTS = 1 << 16  # of all layers together: a table has three rows for each


def expert_rows(config: ModelConfig, part: str, names: Mapping[str, str]) -> list[Row]:
    """The rows of a model like Llama with experts; `names` maps our matrices of an expert to theirs."""
    ours, theirs = f"{LAYER_PREFIX[0]}.feedforward", f"{LAYER_PREFIX[TRANSFORMERS]}.{part}"
    block = [tensor_row(f"{ours}.router.weight", f"{theirs}.gate.weight")]
    block += [
        Row((f"{ours}.experts.{name}",), f"{theirs}.experts.{expert}.{other}.weight", expert=expert)
        for name, other in names.items()
        for expert in range(config.experts)
    ]
    return [*rows(config), *layer_rows(config.layers, block)]


def read_experts(values: Values, *, width: str) -> dict[str, Any]:
    """Config values of the experts; `width` is the name of their inner width."""
    count = "num_local_experts" if "num_local_experts" in values else "num_experts"
    experts = read_number(values, count)
    if not 2 <= experts * read_layers(values) <= MAX_EXPERTS:
        raise UsageError(f"The config's {count} is {str(experts)[:40]}, which is too many or too few.")
    return {
        "experts": experts,
        "experts_per_token": read_number(values, "num_experts_per_tok", 2),
        "feedforward_width": read_number(values, width),
    }
