"""Shared by all looks: the prompt of a request, checks of layers and heads, and numbers as JSON.

finite numbers    six digits       others    "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from torch import Tensor

from chumoku.errors import ChumokuError, UsageError
from chumoku.inspect_prompt import Notice, Target, longest, question
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.snapshot import AttentionMap, LookInput
from chumoku.server.look import schemas as schemas
from chumoku.server.streaming import replace_non_finite
from chumoku.weights.bundle import Bundle

MAX_MAP_VALUES = 3_000_000  # of all maps together: 2 bytes each, 8 MB in base64
MAX_TOKENS, MAX_TOKENS_ONE_LAYER = 128, 512  # with the maps of all layers, of one layer
NAN_NOTICE: Notice = (
    "The model's logits are not finite (NaN), so it generated no text. Its internal values are shown as they are.",
    "モデルの出力が有限の数値ではない（NaN）ため、何も書けませんでした。内部の値はそのまま表示しています。",
)


def prompt_from_request(
    pipeline: Bundle,
    request: schemas.PromptRequest,
    check_interrupt: CheckInterrupt = never_interrupt,
    *,
    most: int | None = None,
) -> tuple[LookInput, list[Notice]]:
    """The tokens to inspect, at most `most` of them, and notices for the user."""
    most = longest(pipeline, most=MAX_TOKENS, room=MAX_MAP_VALUES) if most is None else most
    return prompt_from_text(
        pipeline, request.text, request.target, request.new, most=most, check_interrupt=check_interrupt
    )


def prompt_from_text(
    pipeline: Bundle,
    text: str,
    target: Target,
    new: int | None,
    *,
    most: int,
    check_interrupt: CheckInterrupt = never_interrupt,
) -> tuple[LookInput, list[Notice]]:
    """The same for a text; if the model's logits are NaN, the prompt alone is inspected."""
    check_target(pipeline, target)
    try:
        return question(pipeline, text, target, new, most=most, going=check_interrupt)
    except UsageError:
        raise
    except ChumokuError:
        prompt, notices = question(pipeline, text, target, 0, most=most)
        return prompt, [*notices, NAN_NOTICE]


def check_target(pipeline: Bundle, target: Target) -> None:
    if target is not None and pipeline.config.kind == "encoder":
        raise UsageError("An encoder generates no text, so it has no target. Leave 'target' out.")


def check_layer(pipeline: Bundle, layer: int, part: str | None = None) -> None:
    """Raise UsageError if the part (by default: the part with fewer layers) does not have this layer."""
    depths = {"encoder": pipeline.config.encoder_depth, "decoder": pipeline.config.decoder_depth}
    if part is not None and not depths[part]:
        raise UsageError(f"A model of kind '{pipeline.config.kind}' has no {part}.")
    count = depths[part] if part else min(depth for depth in depths.values() if depth)
    if layer >= count:
        raise UsageError(f"There is no layer {layer}: this model has {count}, numbered from 0.")


def check_head(pipeline: Bundle, head: int) -> None:
    if head >= pipeline.config.heads:
        raise UsageError(f"There is no head {head}: this model has {pipeline.config.heads}, numbered from 0.")


def json_number(value: float) -> float | str:
    """Six digits of a number; NaN and infinities as strings."""
    rounded: float | str = replace_non_finite(float(f"{value:.6g}"))
    return rounded


def json_numbers(tensor: Tensor) -> Any:
    """A vector or matrix as (nested) lists of `json_number`s."""
    if tensor.ndim == 1:
        return [json_number(value) for value in tensor.tolist()]
    return [[json_number(value) for value in row] for row in tensor.tolist()]


def nan_bitmap(one: AttentionMap) -> str | None:
    """Which weights of a map are NaN: one bit each, lowest first, in base64; None without NaN."""
    is_nan = one.weights.isnan().numpy()
    return base64.b64encode(np.packbits(is_nan, bitorder="little").tobytes()).decode() if is_nan.any() else None
