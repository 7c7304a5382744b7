"""One block, one head, one place: every number of the formula, computed beside what the model itself had.

    scores   s_j = q · k_j                 scaled    s_j / √K (+ relative position)
    weights  softmax over visible j        context   Σ_j weights_j v_j

Queries, keys and values are those of the pass, turned by rotary positions where there are such; scores, weights and
context are computed anew from them in double precision, and agree with the pass to its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.stack import Stack
from chumoku.nn.tap import Tape
from chumoku.pipeline import Speaker
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import run_and_record
from chumoku.probe.snapshot import LookInput
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import asking, check_head, check_layer, number, numbers

SHOWN = 64  # numbers of a vector
NORMS = {"input": "input", "attention": "output", "feedforward": "feedforward", "out": "out"}


def block(speaker: Speaker, request: schemas.Block, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """All that happens to one place in one block, with one head's look."""
    check_layer(speaker, request.layer, request.part)
    check_head(speaker, request.head)
    asked, notices = asking(speaker, request, going)
    reads_source = request.part == "encoder" and asked.source is not None
    own = list(asked.source or ()) if reads_source else list(asked.tokens)
    if request.place >= len(own):
        raise UsageError(f"There is no place {request.place}: {len(own)} tokens are looked at, numbered from 0.")
    here = f"{request.part}.blocks.{request.layer}"
    before = f"{request.part}.blocks.{request.layer - 1}.output" if request.layer else f"{request.part}.embedding"
    _, tape = run_and_record(speaker.model, asked.tokens, f"{here}.**", before, source=asked.source)
    name = asked.source_name or asked.name if reads_source else asked.name
    stream = _stream(tape, here, before, request.place, pre=speaker.config.placement == "pre")
    crosses = f"{here}.cross_attention.queries" in tape
    return {
        "tokens": [{"id": one, "text": name(one)} for one in own],
        "embedding": _embedded(speaker, request, own[request.place]),
        **{key: numbers(part[:SHOWN]) for key, part in stream.items()},
        **_head(speaker, tape, f"{here}.attention", request, causal=request.part == "decoder"),
        "cross": _crossed(speaker, tape, f"{here}.cross_attention", request, asked) if crosses else None,
        "norms": {key: number(float(stream[part].norm())) for key, part in NORMS.items()},
        "config": _config(speaker),
        "notices": notices,
    }


def _stream(tape: Tape, here: str, before: str, place: int, *, pre: bool) -> dict[str, Tensor]:
    """The vectors [D] of one place on their way through the block; `output` is what attention adds."""

    def at(name: str) -> Tensor:
        return tape[name][0, place].double().cpu().flatten()

    found = {"input": at(before), "norm1": at(f"{here}.attention_norm"), "output": at(f"{here}.attention.output")}
    stream = found["input"] + found["output"] if pre else found["norm1"]
    found["after_attention"] = stream
    if f"{here}.cross_attention.output" in tape:
        found["cross_norm"] = at(f"{here}.cross_attention_norm")
        found["cross_output"] = at(f"{here}.cross_attention.output")
        found["after_cross"] = stream + found["cross_output"] if pre else found["cross_norm"]
    found["norm2"] = at(f"{here}.feedforward_norm")
    found["hidden"], found["feedforward"] = at(f"{here}.feedforward.hidden"), at(f"{here}.feedforward.output")
    found["out"] = at(f"{here}.output")
    return found


def _head(speaker: Speaker, tape: Tape, here: str, request: schemas.Block, *, causal: bool) -> dict[str, Any]:
    """softmax(q Kᵀ / √K) V of one query."""
    config, place = speaker.config, request.place
    shared = request.head * config.key_heads // config.heads
    query = tape[f"{here}.queries"][0, request.head, place].double().cpu()
    keys, values = (tape[f"{here}.{name}"][0, shared].double().cpu() for name in ("keys", "values"))
    scores = keys @ query
    scaled = scores / math.sqrt(config.head_width)
    recorded = tape[f"{here}.scores"][0, request.head, place].double().cpu()
    relative = config.position == "relative" and "cross" not in here
    bias = recorded - scaled if relative else None
    masked = torch.arange(len(keys)) > place if causal else torch.zeros(len(keys), dtype=torch.bool)
    biased = scaled if bias is None else scaled + bias
    weights = biased.masked_fill(masked, -math.inf).softmax(-1)
    return {
        **{key: numbers(part) for key, part in (("query", query), ("keys", keys), ("values", values))},
        **{key: numbers(part) for key, part in (("scores", scores), ("scaled", scaled), ("weights", weights))},
        "bias": None if bias is None else numbers(bias),
        "masked": masked.tolist(),
        "context": numbers(weights @ values),
    }


def _crossed(speaker: Speaker, tape: Tape, here: str, request: schemas.Block, asked: LookInput) -> dict[str, Any]:
    name = asked.source_name or asked.name
    seen = [{"id": one, "text": name(one)} for one in asked.source or ()]
    return {"tokens": seen, **_head(speaker, tape, here, request, causal=False)}


def _embedded(speaker: Speaker, request: schemas.Block, token: int) -> dict[str, Any]:
    """The token's own vector, and what its place adds to it (rotary and relative positions add nothing)."""
    stack = speaker.model.get_submodule(request.part)
    if not isinstance(stack, Stack):
        raise UsageError(f"This model has no {request.part}.")
    device = speaker.model.device
    with torch.no_grad():
        own = stack.embedding(torch.tensor([token], device=device))[0].double().cpu()
        place = None
        if stack.position is not None:
            where = torch.tensor([request.place], device=device)
            place = stack.position(where, request.place + 1)[0].double().cpu()
    return {"token": numbers(own[:SHOWN]), "position": None if place is None else numbers(place[:SHOWN])}


def _config(speaker: Speaker) -> dict[str, Any]:
    config = speaker.config
    return {
        **{name: getattr(config, name) for name in ("norm", "feedforward", "position", "heads", "key_heads")},
        **{name: getattr(config, name) for name in ("head_width", "width", "hidden", "kind", "layers")},
        "norm_place": config.placement,
        "scale_embedding": config.scale_embedding,
        "experts": config.experts,
        "base": config.rotary.base,
    }
