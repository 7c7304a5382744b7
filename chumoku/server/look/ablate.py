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
from chumoku.inspect_prompt import said
from chumoku.models.model import EncoderModel
from chumoku.pipeline import Speaker
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import final_output, make_input, run_model
from chumoku.probe.patching import Change, apply_edits
from chumoku.probe.snapshot import LookInput
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import asking, check_head, check_layer, number

BEST = 5


def ablate(speaker: Speaker, request: schemas.Ablate, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """What is said, and how likely, with all parts and with some switched off."""
    changes = {address: _without(heads) for address, heads in _switched(speaker, request.off).items()}
    model = speaker.model
    asked, notices = asking(speaker, request, going)
    both = make_input(model, asked.tokens, asked.source)
    before = final_output(run_model(model, both))
    with apply_edits(model, changes):
        change = Change(before, final_output(run_model(model, both)))
        other, _ = asking(speaker, request, going)
    speaks = before.ndim == 3
    bits = (change.effects[0] / (math.log(2) if speaks else 1)).reshape(-1).tolist()
    masked = isinstance(model, EncoderModel)
    places = (
        (list(asked.masked_positions) or [0]) if masked else list(range(asked.prompt_length - 1, len(asked.tokens)))
    )
    each = [bits[place] for place in places] if speaks else bits
    said_at = places[0] if masked or asked.prompt_length > 0 else 0
    return {
        **{
            name: {
                "said": said(speaker.tokenizer, one),
                "candidates": _best(logits[0, said_at], asked) if speaks else [],
            }
            for name, logits, one in (("before", change.before, asked), ("after", change.after, other))
        },
        "change": number(sum(each) / len(each)),
        "places": [{"place": place, "bits": number(part)} for place, part in zip(places, each, strict=False)],
        "measure": "bits" if speaks else "cosine",
        "notices": notices,
    }


def _switched(speaker: Speaker, off: Sequence[schemas.Part]) -> dict[str, list[int] | None]:
    """Addresses, each with its heads that are off; None for all of what lies there."""
    found: dict[str, list[int] | None] = {}
    for one in off:
        check_layer(speaker, one.layer, one.part)
        if one.feedforward == (one.head is not None) or (one.feedforward and one.cross):
            raise UsageError("A part that is off is a head (head, and cross where it looks across), or feedforward.")
        if one.cross and (one.part != "decoder" or speaker.config.kind != "encoder-decoder"):
            raise UsageError(f"The {one.part} of a model of kind '{speaker.config.kind}' has no cross-attention.")
        block = f"{one.part}.blocks.{one.layer}"
        if one.head is None:
            found[f"{block}.feedforward.output"] = None
            continue
        check_head(speaker, one.head)
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


def _best(logits: Tensor, asked: LookInput) -> list[dict[str, Any]]:
    chances = logits.float().softmax(-1).cpu()
    return [
        {"id": int(one), "text": asked.name(int(one)), "probability": number(float(chance))}
        for chance, one in zip(*chances.topk(min(BEST, len(chances))), strict=True)
    ]
