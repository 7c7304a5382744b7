"""Initialization, as one table: the first pattern that matches a parameter's address decides its distribution.

gpt2     N(0, 0.02); for the outputs of sublayers N(0, 0.02 / √R), R the number of residual additions
xavier   U(±√(6 / (in + out))) for matrices, N(0, 1 / √D) for tables, as for the original Transformer
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from chumoku.models.config import ModelConfig
from chumoku.nn.tap import matches

Fill = Callable[[Tensor, torch.Generator | None], object]


def constant(value: float) -> Fill:
    return lambda tensor, _: tensor.fill_(value)


def normal(deviation: float) -> Fill:
    return lambda tensor, generator: tensor.normal_(0.0, deviation, generator=generator)


def xavier(tensor: Tensor, generator: torch.Generator | None) -> None:
    bound = math.sqrt(6 / (tensor.shape[-1] + tensor.shape[-2]))
    tensor.uniform_(-bound, bound, generator=generator)


def make_rules(config: ModelConfig) -> list[tuple[str, Fill]]:
    """Return (pattern, fill function) pairs; the first matching pattern applies."""
    additions = {"encoder": 2 * config.encoder_depth, "decoder": 2 * config.decoder_depth}
    if config.kind == "encoder-decoder":
        additions["decoder"] = 3 * config.decoder_depth
    everywhere: list[tuple[str, Fill]] = [
        ("**.gamma", constant(0.0 if config.norm_unit_offset else 1.0)),
        ("**.variance", constant(1.0)),
        ("**.{beta,mean}", constant(0.0)),
        ("**.{bias,up_bias,gate_bias,down_bias}", constant(0.0)),
    ]
    if config.initialization == "xavier":
        return [*everywhere, ("**.table", normal(config.width**-0.5)), ("**", xavier)]
    sublayer_outputs: list[tuple[str, Fill]] = [
        (f"{stack}.blocks.*.{part}", normal(0.02 / math.sqrt(count)))
        for stack, count in additions.items()
        if count
        for part in (
            "{attention,cross_attention}.output.weight",
            "feedforward.down.weight",
            "feedforward.shared.down.weight",
            "feedforward.experts.down",
        )
    ]
    return [*everywhere, *sublayer_outputs, ("**", normal(0.02))]


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig, generator: torch.Generator | None = None) -> None:
    """Fill every parameter, then every buffer, in the order of the modules."""
    rules = make_rules(config)
    for address, tensor in (*model.named_parameters(), *model.named_buffers()):
        fill = next(fill for pattern, fill in rules if matches(pattern, address))
        fill(tensor, generator)
