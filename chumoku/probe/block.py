"""One position in one block, with one attention head: all intermediate values of the formula.

    scores   s_j = q · k_j                 scaled    s_j / √K (+ position bias)
    weights  softmax over visible j        context   Σ_j weights_j v_j

Queries, keys and values are recorded in the forward pass, after rotary positions are applied. Scores, weights and
context are computed again from them in double precision; they equal the recorded values up to the model's precision.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.config import SCORE_POSITIONS, ModelConfig
from chumoku.models.model import Model
from chumoku.models.stack import Stack
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.tap import Tape
from chumoku.probe.forward_pass import Tokens, check_head, check_layer, make_input, run_and_record
from chumoku.probe.lens import stream_addresses


class HeadTrace(NamedTuple):
    """What one head computes for one query."""

    query: Tensor  # [K]
    keys: Tensor  # [S, K]
    values: Tensor  # [S, K]
    scores: Tensor  # [S]
    scaled: Tensor  # [S]
    weights: Tensor  # [S]
    bias: Tensor | None  # [S] what relative positions, ALiBi and soft-capping add to `scaled`
    masked: Tensor  # [S] True where a key is in the future or outside the window
    context: Tensor  # [K]


class BlockTrace(NamedTuple):
    """What one block computes at one position."""

    embedding: Tensor  # [D] the token's vector
    position: Tensor | None  # [D] the vector of its position; None if positions are not added to the embedding
    stream: dict[str, Tensor]  # the vector after each part of the block; `output` is what attention adds
    attention: HeadTrace
    cross: HeadTrace | None


def trace_block(
    model: Model,
    tokens: Tokens,
    place: int,
    *,
    part: Literal["encoder", "decoder"],
    layer: int,
    head: int,
    source: Tokens | None = None,
) -> BlockTrace:
    """Everything that one block computes at one position, in double precision on the CPU.

    tokens, source: token ids of one text; `source` only for an encoder-decoder.
    place: the position, numbered from 0; of the source, if `part` is the encoder of an encoder-decoder.
    """
    model = unwrap_compiled(model)
    check_layer(model.config, layer, part)
    check_head(model.config, head)
    inputs = make_input(model, tokens, source)
    ids = inputs.tokens[0] if inputs.source is None or part == "decoder" else inputs.source[0]
    if not 0 <= place < len(ids):
        raise UsageError(f"There is no place {place}: the text has {len(ids)} tokens, numbered from 0.")
    here, before = f"{part}.blocks.{layer}", stream_addresses(part, layer)[-1]
    _, tape = run_and_record(model, inputs.tokens, f"{here}.**", before, source=inputs.source)
    embedding, position = _embed(model, part, ids[place], place)
    cross = f"{here}.cross_attention"
    return BlockTrace(
        embedding,
        position,
        _residual_stream(tape, here, before, place),
        _trace_head(model.config, tape, f"{here}.attention", head, place),
        _trace_head(model.config, tape, cross, head, place) if f"{cross}.queries" in tape else None,
    )


def _residual_stream(tape: Tape, here: str, before: str, place: int) -> dict[str, Tensor]:
    """Vectors [D] of one position after each part of the block; `output` is what attention adds."""

    def at(name: str) -> Tensor:
        return tape[name][0, place].double().cpu().flatten()

    vectors = {"input": at(before), "norm1": at(f"{here}.attention_norm"), "output": at(f"{here}.attention.output")}
    vectors["after_attention"] = at(f"{here}.after_attention")
    if f"{here}.cross_attention.output" in tape:
        vectors["cross_norm"] = at(f"{here}.cross_attention_norm")
        vectors["cross_output"] = at(f"{here}.cross_attention.output")
        vectors["after_cross"] = at(f"{here}.after_cross_attention")
    shared = f"{here}.feedforward_norm" not in tape
    vectors["norm2"] = vectors["norm1"] if shared else at(f"{here}.feedforward_norm")
    vectors["hidden"], vectors["feedforward"] = at(f"{here}.feedforward.hidden"), at(f"{here}.feedforward.output")
    vectors["out"] = at(f"{here}.output")
    return vectors


def _trace_head(config: ModelConfig, tape: Tape, here: str, head: int, place: int) -> HeadTrace:
    """softmax(q Kᵀ / √K) V for one query."""
    key_head = head * config.key_heads // config.heads
    query = tape[f"{here}.queries"][0, head, place].double().cpu()
    keys, values = (tape[f"{here}.{name}"][0, key_head].double().cpu() for name in ("keys", "values"))
    scores = keys @ query
    scaled = scores / math.sqrt(config.key_width)
    recorded = tape[f"{here}.scores"][0, head, place].double().cpu()
    has_bias = config.position in SCORE_POSITIONS and not here.endswith("cross_attention")
    bias = recorded - scaled if has_bias or config.score_cap is not None else None
    masked = tape[f"{here}.masked_scores"][0, head, place].double().cpu() != recorded
    biased = scaled if bias is None else scaled + bias
    weights = biased.masked_fill(masked, -math.inf).softmax(-1)
    return HeadTrace(query, keys, values, scores, scaled, weights, bias, masked, weights @ values)


def _embed(model: Model, part: str, token: Tensor, place: int) -> tuple[Tensor, Tensor | None]:
    """The token's vector and the vector of its position."""
    stack = model.get_submodule(part)
    if not isinstance(stack, Stack):
        raise UsageError(f"This model has no {part}.")
    with torch.no_grad():
        embedding = stack.embedding(token[None])[0].double().cpu()
        if stack.position is None:
            return embedding, None
        index = torch.tensor([place], device=model.device)
        return embedding, stack.position(index, place + 1)[0].double().cpu()
