"""One forward pass with recording, for every kind of model.

    encoder           model(tokens)                masked-token logits, or the text's vector
    decoder           model(tokens)                next-token logits
    encoder-decoder   model(source, tokens)        next-token logits of the target

Recording never changes the result. With `debug`, or CHUMOKU_DEBUG=1 in the environment, this is checked every time
(`nn.record_check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model, Output
from chumoku.nn.modules import eval_mode, unwrap_compiled
from chumoku.nn.tap import Tape, record

Tokens = Tensor | Sequence[int]


class ModelInput(NamedTuple):
    """Token ids [B, T], and for an encoder-decoder the source ids [B, S]."""

    tokens: Tensor
    source: Tensor | None = None


def make_input(model: Model, tokens: Tokens, source: Tokens | None = None) -> ModelInput:
    """Token ids as tensors on the model's device; a single sequence becomes a batch of one."""
    needs_source = model.config.kind == "encoder-decoder"
    if needs_source and source is None:
        raise UsageError(f"A model of kind '{model.config.kind}' needs a source: pass source=.")
    if not needs_source and source is not None:
        raise UsageError(f"A model of kind '{model.config.kind}' takes no source: leave source= out.")
    return ModelInput(_to_batch(model, tokens), None if source is None else _to_batch(model, source))


def _to_batch(model: Model, tokens: Tokens) -> Tensor:
    ids = tokens if isinstance(tokens, Tensor) else torch.tensor(list(tokens), dtype=torch.int64)
    ids = ids.to(model.device)
    return ids[None] if ids.ndim == 1 else ids


def run_model(model: Model, inputs: ModelInput) -> Output:
    """The output of one forward pass in eval mode without gradients; each module's mode is restored afterwards."""
    with eval_mode(model.modules()), torch.no_grad():
        output: Output = model(inputs.tokens) if inputs.source is None else model(inputs.source, inputs.tokens)
    return output


def run_and_record(
    model: Model, tokens: Tokens, *patterns: str, source: Tokens | None = None, debug: bool | None = None
) -> tuple[Output, Tape]:
    """The output of a forward pass, and a tape of the tensors whose addresses match (all, without patterns)."""
    model = unwrap_compiled(model)
    inputs = make_input(model, tokens, source)
    with record(model, *patterns, debug=debug) as tape:
        output = run_model(model, inputs)
    return output, tape


def final_output(output: Output) -> Tensor:
    """Logits [B, T, V], or vectors [B, D] of a model without logits."""
    if output.logits is not None:
        return output.logits
    return output.hidden if output.vector is None else output.vector


def check_layer(config: ModelConfig, layer: int, part: str | None = None) -> None:
    """Raise UsageError if the part ("encoder", "decoder"; None: the one with fewer layers) does not have this layer."""
    depths = {"encoder": config.encoder_depth, "decoder": config.decoder_depth}
    if part is not None and not depths.get(part):
        raise UsageError(f"A model of kind '{config.kind}' has no {part}.")
    count = depths[part] if part else min(depth for depth in depths.values() if depth)
    if not 0 <= layer < count:
        raise UsageError(f"There is no layer {layer}: this model has {count}, numbered from 0.")


def check_head(config: ModelConfig, head: int) -> None:
    if not 0 <= head < config.heads:
        raise UsageError(f"There is no head {head}: this model has {config.heads}, numbered from 0.")
