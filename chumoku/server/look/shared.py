"""Shared by all looks: the prompt of a request, and limits."""

from __future__ import annotations

from chumoku.errors import ChumokuError, UsageError
from chumoku.inspect_prompt import Notice, Target, longest, question
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.snapshot import LookInput
from chumoku.server.look import schemas as schemas
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
