"""Parts switched off, and what the model says without them.

    bits    KL(before ‖ after) = Σ p log₂(p / q) at every place where something was written; for vectors 1 − cos

Both are asked to go on from the same text; the bits are those of what was said before, read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.inspect_prompt import generated_text
from chumoku.models.model import EncoderModel
from chumoku.pipeline import Pipeline
from chumoku.probe.cancellation import Going, on
from chumoku.probe.forward_pass import answer, ask, given
from chumoku.probe.patching import Change, edits
from chumoku.probe.snapshot import Asked
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import asking, check_head, check_layer, number

BEST = 5


def ablate(pipeline: Pipeline, request: schemas.Ablate, going: Going = on) -> dict[str, Any]:
    """What is said, and how likely, with all parts and with some switched off."""
    changes = {address: _without(heads) for address, heads in _switched(pipeline, request.off).items()}
    model = pipeline.model
    asked, notices = asking(pipeline, request, going)
    both = given(model, asked.tokens, asked.source)
    before = answer(ask(model, both))
    with edits(model, changes):
        change = Change(before, answer(ask(model, both)))
        other, _ = asking(pipeline, request, going)
    speaks = before.ndim == 3
    bits = (change.effects[0] / (math.log(2) if speaks else 1)).reshape(-1).tolist()
    masked = isinstance(model, EncoderModel)
    places = (list(asked.guessed) or [0]) if masked else list(range(asked.first - 1, len(asked.tokens)))
    each = [bits[place] for place in places] if speaks else bits
    said_at = places[0] if masked or asked.first > 0 else 0
    return {
        **{
            name: {
                "said": generated_text(pipeline.tokenizer, one),
                "candidates": _best(logits[0, said_at], asked) if speaks else [],
            }
            for name, logits, one in (("before", change.before, asked), ("after", change.after, other))
        },
        "change": number(sum(each) / len(each)),
        "places": [{"place": place, "bits": number(part)} for place, part in zip(places, each, strict=False)],
        "measure": "bits" if speaks else "cosine",
        "notices": notices,
    }


def _switched(pipeline: Pipeline, off: Sequence[schemas.Part]) -> dict[str, list[int] | None]:
    """Addresses, each with its heads that are off; None for all of what lies there."""
    found: dict[str, list[int] | None] = {}
    for one in off:
        check_layer(pipeline, one.layer, one.part)
        if one.feedforward == (one.head is not None) or (one.feedforward and one.cross):
            raise UsageError("A part that is off is a head (head, and cross where it looks across), or feedforward.")
        if one.cross and (one.part != "decoder" or pipeline.config.kind != "encoder-decoder"):
            raise UsageError(f"The {one.part} of a model of kind '{pipeline.config.kind}' has no cross-attention.")
        block = f"{one.part}.blocks.{one.layer}"
        if one.head is None:
            found[f"{block}.feedforward.output"] = None
            continue
        check_head(pipeline, one.head)
        heads = found.setdefault(f"{block}.{'cross_attention' if one.cross else 'attention'}.heads", [])
        if heads is not None:
            heads.append(one.head)
    return found


def _without(heads: list[int] | None) -> Callable[[Tensor], Tensor]:
    def off(tensor: Tensor) -> Tensor:
        if heads is None:
            return torch.zeros_like(tensor)
        return tensor.index_fill(1, torch.tensor(heads, device=tensor.device), 0.0)

    return off


def _best(logits: Tensor, asked: Asked) -> list[dict[str, Any]]:
    chances = logits.float().softmax(-1).cpu()
    return [
        {"id": int(one), "text": asked.name(int(one)), "probability": number(float(chance))}
        for chance, one in zip(*chances.topk(min(BEST, len(chances))), strict=True)
    ]
