"""What all looks share: the question behind a request, what a model does not have, and numbers as JSON may say them.

a number    six digits       none    "NaN", "Infinity", "-Infinity"
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
from chumoku.server.streaming import worded
from chumoku.weights.bundle import Bundle

ROOM = 3_000_000  # numbers of all maps together: 2 bytes each, in base64 8 MB
MOST, MOST_ONE = 128, 512  # tokens; with one layer's maps alone
MUTE: Notice = (
    "The model's answers are no finite numbers (NaN), so it wrote nothing. What it has inside is shown.",
    "モデルの出力が有限の数値ではない（NaN）ため、何も書けませんでした。内部の値はそのまま表示しています。",
)


def asking(
    speaker: Bundle, request: schemas.Question, going: CheckInterrupt = never_interrupt, *, most: int | None = None
) -> tuple[LookInput, list[Notice]]:
    """The question of a request, of no more tokens than can be shown."""
    room = longest(speaker, most=MOST, room=ROOM) if most is None else most
    return put(speaker, request.text, request.target, request.new, most=room, going=going)


def put(
    speaker: Bundle, text: str, target: Target, new: int | None, *, most: int, going: CheckInterrupt = never_interrupt
) -> tuple[LookInput, list[Notice]]:
    """The same; a model that has only NaN to say is looked at all the same."""
    check_target(speaker, target)
    try:
        return question(speaker, text, target, new, most=most, going=going)
    except UsageError:
        raise
    except ChumokuError:
        asked, notices = question(speaker, text, target, 0, most=most)
        return asked, [*notices, MUTE]


def check_target(speaker: Bundle, target: Target) -> None:
    if target is not None and speaker.config.kind == "encoder":
        raise UsageError("An encoder writes nothing, so there is no target to look at. Leave target out.")


def check_layer(speaker: Bundle, layer: int, part: str | None = None) -> None:
    """Refuse a layer that a part (or, where none is said, any of them) does not have."""
    depths = {"encoder": speaker.config.encoder_depth, "decoder": speaker.config.decoder_depth}
    if part is not None and not depths[part]:
        raise UsageError(f"A model of kind '{speaker.config.kind}' has no {part}.")
    there = depths[part] if part else min(depth for depth in depths.values() if depth)
    if layer >= there:
        raise UsageError(f"There is no layer {layer}: this model has {there}, numbered from 0.")


def check_head(speaker: Bundle, head: int) -> None:
    if head >= speaker.config.heads:
        raise UsageError(f"There is no head {head}: this model has {speaker.config.heads}, numbered from 0.")


def number(value: float) -> float | str:
    """Six digits of a number; what is none, in words."""
    said: float | str = worded(float(f"{value:.6g}"))
    return said


def numbers(table: Tensor) -> Any:
    """A tensor as nested lists of `number`s."""
    listed = table.tolist()
    return [number(one) for one in listed] if table.ndim == 1 else [[number(one) for one in row] for row in listed]


def holes(one: AttentionMap) -> str | None:
    """Where a map's weights are no numbers: one bit each, lowest first, in base64; None where all are."""
    odd = one.weights.isnan().numpy()
    return base64.b64encode(np.packbits(odd, bitorder="little").tobytes()).decode() if odd.any() else None
