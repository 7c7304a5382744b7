"""Ablation: what the model says when some of its parts are switched off.

    bits    KL(before ‖ after) = Σ p log₂(p / q) at every generated position; for vectors 1 − cos

Both models continue the same prompt; the bits are measured on the text that was generated before the ablation.
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
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import final_output, make_input, run_model
from chumoku.probe.patching import Change, apply_edits
from chumoku.probe.snapshot import LookInput
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import check_head, check_layer, json_number, prompt_from_request

BEST = 5  # candidates shown


def ablate(
    pipeline: Pipeline, request: schemas.Ablate, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Text and candidates with all parts, and with some switched off."""
    changes = {address: _zero_heads(heads) for address, heads in _find_ablated(pipeline, request.off).items()}
    model = pipeline.model
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    both = make_input(model, prompt.tokens, prompt.source)
    before = final_output(run_model(model, both))
    with apply_edits(model, changes):
        change = Change(before, final_output(run_model(model, both)))
        ablated_prompt, _ = prompt_from_request(pipeline, request, check_interrupt)
    has_logits = before.ndim == 3
    bits = (change.effects[0] / (math.log(2) if has_logits else 1)).reshape(-1).tolist()
    masked = isinstance(model, EncoderModel)
    places = (
        (list(prompt.masked_positions) or [0]) if masked else list(range(prompt.prompt_length - 1, len(prompt.tokens)))
    )
    effects = [bits[place] for place in places] if has_logits else bits
    candidates_at = places[0] if masked or prompt.prompt_length > 0 else 0
    return {
        **{
            name: {
                "said": generated_text(pipeline.tokenizer, one),
                "candidates": _top_candidates(logits[0, candidates_at], prompt) if has_logits else [],
            }
            for name, logits, one in (("before", change.before, prompt), ("after", change.after, ablated_prompt))
        },
        "change": json_number(sum(effects) / len(effects)),
        "places": [{"place": place, "bits": json_number(part)} for place, part in zip(places, effects, strict=False)],
        "measure": "bits" if has_logits else "cosine",
        "notices": notices,
    }


def _find_ablated(pipeline: Pipeline, off: Sequence[schemas.Part]) -> dict[str, list[int] | None]:
    """Address → heads to switch off, or None for the whole output at this address."""
    ablated: dict[str, list[int] | None] = {}
    for one in off:
        check_layer(pipeline, one.layer, one.part)
        if one.feedforward == (one.head is not None) or (one.feedforward and one.cross):
            raise UsageError("Each entry of 'off' must have either 'head' (optionally with 'cross') or 'feedforward'.")
        if one.cross and (one.part != "decoder" or pipeline.config.kind != "encoder-decoder"):
            raise UsageError(f"The {one.part} of a model of kind '{pipeline.config.kind}' has no cross-attention.")
        block = f"{one.part}.blocks.{one.layer}"
        if one.head is None:
            ablated[f"{block}.feedforward.output"] = None
            continue
        check_head(pipeline, one.head)
        heads = ablated.setdefault(f"{block}.{'cross_attention' if one.cross else 'attention'}.heads", [])
        if heads is not None:
            heads.append(one.head)
    return ablated


def _zero_heads(heads: list[int] | None) -> Callable[[Tensor], Tensor]:
    def edit(tensor: Tensor) -> Tensor:
        if heads is None:
            return torch.zeros_like(tensor)
        return tensor.index_fill(1, torch.tensor(heads, device=tensor.device), 0.0)

    return edit


def _top_candidates(logits: Tensor, prompt: LookInput) -> list[dict[str, Any]]:
    probabilities = logits.float().softmax(-1).cpu()
    return [
        {"id": int(token), "text": prompt.name(int(token)), "probability": json_number(float(probability))}
        for probability, token in zip(*probabilities.topk(min(BEST, len(probabilities))), strict=True)
    ]
