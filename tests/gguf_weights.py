"""Random weights in the blocks of GGUF files. (The gguf library can only read most of these types.)"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chumoku.models.model import Model
from chumoku.nn.embeddings import Logits
from chumoku.nn.gguf_blocks import BLOCK_KINDS, TYPES_BY_NAME, Blocks
from chumoku.nn.modules import replace_module
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits
from chumoku.weights.assign import install_quantized

SIZES = {"width": 256, "heads": 2, "kv_heads": 1, "feedforward_width": 512}  # whole blocks of every type


def random_blocks(kind: str, outputs: int, inputs: int, *, seed: int) -> Blocks:
    """Weights [outputs, inputs] around zero, with a standard deviation of about 1/√inputs."""
    random = torch.Generator().manual_seed(seed)
    stored = TYPES_BY_NAME[kind.upper()]
    shape = (outputs, inputs // stored.block_values, stored.block_bytes)
    blocks = torch.randint(256, shape, generator=random, dtype=torch.uint8)
    starts = [0, *itertools.accumulate(stored.field_bytes)]
    places = [start for start, size in zip(starts, stored.field_bytes, strict=False) if size == 2]  # of d and e

    def set_scales(*scales: Tensor) -> Tensor:
        for place, scale in zip(places, scales, strict=False):
            blocks[..., place : place + 2] = scale.expand(shape[:2]).half()[..., None].view(torch.uint8)
        return Blocks(blocks).dequantize()

    one, none = torch.ones(()), torch.zeros(())
    steps, lows = set_scales(one, none), set_scales(none, one)
    shift = -steps.mean() / lows.mean() if len(places) > 1 else none
    size = (0.5 + torch.rand(shape[:2], generator=random)) / (steps + shift * lows).std() / inputs**0.5
    set_scales(size, shift * size)
    return Blocks(blocks)


def with_blocks(model: Model, kinds: Sequence[str] = BLOCK_KINDS, *, tables: bool = True) -> Model:
    """A copy of the model with new weights: its matrices, and its token table, have these kinds in turn."""
    model, numbers = copy.deepcopy(model).eval(), itertools.count()

    def blocks(outputs: int, inputs: int) -> Blocks:
        number = next(numbers)
        return random_blocks(kinds[number % len(kinds)], outputs, inputs, seed=number)

    for path in ("encoder.embedding", "decoder.embedding"):
        if (
            tables
            and hasattr(model, path.split(".")[0])
            and not isinstance(table := model.get_submodule(path), QuantizedEmbedding)
        ):
            install_quantized(model, path, blocks(len(table.table), model.config.width), {})
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            stored = blocks(module.out_features, module.in_features)
            replace_module(model, path, QuantizedLinear.of(stored, module.bias))
        elif isinstance(module, Logits):
            stored = blocks(model.config.vocabulary, model.config.width)
            replace_module(model, path, QuantizedLogits.of(stored, module.bias))
    return model.requires_grad_(False)
