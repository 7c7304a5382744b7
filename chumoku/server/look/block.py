"""One position in one block, with one attention head: all intermediate values of the formula.

    scores   s_j = q · k_j                 scaled    s_j / √K (+ position bias)
    weights  softmax over visible j        context   Σ_j weights_j v_j

Queries, keys and values are recorded in the forward pass, after rotary positions are applied. Scores, weights and
context are computed again from them in double precision; they equal the recorded values up to the model's precision.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.stack import Stack
from chumoku.nn.tap import Tape
from chumoku.pipeline import Pipeline
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import run_and_record
from chumoku.probe.snapshot import LookInput
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import check_head, check_layer, json_number, json_numbers, prompt_from_request

SHOWN = 64  # values of a vector
NORMS = {"input": "input", "attention": "output", "feedforward": "feedforward", "out": "out"}


def block(
    pipeline: Pipeline, request: schemas.Block, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Everything that one block computes at one position."""
    check_layer(pipeline, request.layer, request.part)
    check_head(pipeline, request.head)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    reads_source = request.part == "encoder" and prompt.source is not None
    tokens = list(prompt.source or ()) if reads_source else list(prompt.tokens)
    if request.place >= len(tokens):
        raise UsageError(f"There is no place {request.place}: the text has {len(tokens)} tokens, numbered from 0.")
    here = f"{request.part}.blocks.{request.layer}"
    before = f"{request.part}.blocks.{request.layer - 1}.output" if request.layer else f"{request.part}.embedding"
    _, tape = run_and_record(pipeline.model, prompt.tokens, f"{here}.**", before, source=prompt.source)
    name = prompt.source_name or prompt.name if reads_source else prompt.name
    stream = _residual_stream(tape, here, before, request.place, pre=pipeline.config.placement == "pre")
    has_cross = f"{here}.cross_attention.queries" in tape
    return {
        "tokens": [{"id": one, "text": name(one)} for one in tokens],
        "embedding": _embedding(pipeline, request, tokens[request.place]),
        **{key: json_numbers(part[:SHOWN]) for key, part in stream.items()},
        **_attend_head(pipeline, tape, f"{here}.attention", request),
        "cross": _cross_attention(pipeline, tape, f"{here}.cross_attention", request, prompt) if has_cross else None,
        "norms": {key: json_number(float(stream[part].norm())) for key, part in NORMS.items()},
        "config": _config(pipeline),
        "notices": notices,
    }


def _residual_stream(tape: Tape, here: str, before: str, place: int, *, pre: bool) -> dict[str, Tensor]:
    """Vectors [D] of one position after each part of the block; `output` is what attention adds."""

    def at(name: str) -> Tensor:
        return tape[name][0, place].double().cpu().flatten()

    vectors = {"input": at(before), "norm1": at(f"{here}.attention_norm"), "output": at(f"{here}.attention.output")}
    stream = vectors["input"] + vectors["output"] if pre else vectors["norm1"]
    vectors["after_attention"] = stream
    if f"{here}.cross_attention.output" in tape:
        vectors["cross_norm"] = at(f"{here}.cross_attention_norm")
        vectors["cross_output"] = at(f"{here}.cross_attention.output")
        vectors["after_cross"] = stream + vectors["cross_output"] if pre else vectors["cross_norm"]
    vectors["norm2"] = at(f"{here}.feedforward_norm")
    vectors["hidden"], vectors["feedforward"] = at(f"{here}.feedforward.hidden"), at(f"{here}.feedforward.output")
    vectors["out"] = at(f"{here}.output")
    return vectors


def _attend_head(pipeline: Pipeline, tape: Tape, here: str, request: schemas.Block) -> dict[str, Any]:
    """softmax(q Kᵀ / √K) V for one query."""
    config, place = pipeline.config, request.place
    key_head = request.head * config.key_heads // config.heads
    query = tape[f"{here}.queries"][0, request.head, place].double().cpu()
    keys, values = (tape[f"{here}.{name}"][0, key_head].double().cpu() for name in ("keys", "values"))
    scores = keys @ query
    scaled = scores / math.sqrt(config.head_width)
    recorded = tape[f"{here}.scores"][0, request.head, place].double().cpu()
    biased = config.position in ("relative", "alibi") and "cross" not in here
    bias = recorded - scaled if biased else None
    masked = tape[f"{here}.masked_scores"][0, request.head, place].double().cpu() != recorded
    total = scaled if bias is None else scaled + bias
    weights = total.masked_fill(masked, -math.inf).softmax(-1)
    return {
        **{key: json_numbers(part) for key, part in (("query", query), ("keys", keys), ("values", values))},
        **{key: json_numbers(part) for key, part in (("scores", scores), ("scaled", scaled), ("weights", weights))},
        "bias": None if bias is None else json_numbers(bias),
        "masked": masked.tolist(),
        "context": json_numbers(weights @ values),
    }


def _cross_attention(
    pipeline: Pipeline, tape: Tape, here: str, request: schemas.Block, prompt: LookInput
) -> dict[str, Any]:
    name = prompt.source_name or prompt.name
    tokens = [{"id": one, "text": name(one)} for one in prompt.source or ()]
    return {"tokens": tokens, **_attend_head(pipeline, tape, here, request)}


def _embedding(pipeline: Pipeline, request: schemas.Block, token: int) -> dict[str, Any]:
    """The token's vector and the vector of its position (None if positions are not added to the embedding)."""
    stack = pipeline.model.get_submodule(request.part)
    if not isinstance(stack, Stack):
        raise UsageError(f"This model has no {request.part}.")
    device = pipeline.model.device
    with torch.no_grad():
        embedding = stack.embedding(torch.tensor([token], device=device))[0].double().cpu()
        position = None
        if stack.position is not None:
            index = torch.tensor([request.place], device=device)
            position = stack.position(index, request.place + 1)[0].double().cpu()
    added = None if position is None else json_numbers(position[:SHOWN])
    return {"token": json_numbers(embedding[:SHOWN]), "position": added}


def _config(pipeline: Pipeline) -> dict[str, Any]:
    config = pipeline.config
    return {
        **{name: getattr(config, name) for name in ("norm", "feedforward", "position", "heads", "key_heads")},
        **{name: getattr(config, name) for name in ("head_width", "width", "hidden", "kind", "layers")},
        "norm_place": config.placement,
        "scale_embedding": config.scale_embedding,
        "experts": config.experts,
        "base": config.rotary.base,
    }
