"""What the web page shows of a model: functions from a request to JSON values.

    look          tokens, maps, entropy, streams, lens, words, positions      data of probe.page
    tokens        the tokens of the texts                     addresses      all recordable tensors
    tensor        the first 64 × 64 numbers at an address     next_tokens    the most likely next tokens, with logits
    block         one head's computation at one position      ablate         the output with parts switched off

Each function runs the model, so the server calls it in the worker thread. It calls `check_interrupt` before each
generated token and each layer of the lens, which may raise an exception to stop it. A response has at most about 8 MB.
NaN and infinities become the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import difflib
import math
from typing import Any

import torch
from torch import Tensor

from chumoku.errors import AddressError, UsageError
from chumoku.inspect_prompt import Notice, generated_text, longest, source_tokens
from chumoku.models.model import EncoderModel
from chumoku.nn import tap
from chumoku.pipeline import Pipeline
from chumoku.probe import page
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import final_output, make_input, run_and_record, run_model
from chumoku.probe.snapshot import LookInput, take_snapshot
from chumoku.server.look import schemas as schemas
from chumoku.server.look.ablate import ablate as ablate
from chumoku.server.look.block import block as block
from chumoku.server.look.shared import (
    MAX_MAP_VALUES,
    MAX_TOKENS,
    MAX_TOKENS_ONE_LAYER,
    check_head,
    check_layer,
    json_number,
    json_numbers,
    nan_bitmap,
    prompt_from_request,
)
from chumoku.server.streaming import replace_non_finite
from chumoku.server.token_text import label_tokens

SIDE = 64  # maximal number of rows and columns shown


def look(
    pipeline: Pipeline, request: schemas.Look, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Everything that the page draws for one prompt."""
    if request.layer is None:
        room = longest(pipeline, most=MAX_TOKENS, room=MAX_MAP_VALUES)
    else:
        check_layer(pipeline, request.layer)
        room = longest(pipeline, most=MAX_TOKENS_ONE_LAYER, room=MAX_MAP_VALUES, layers=1)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt, most=room)
    snapshot = take_snapshot(
        pipeline.model, prompt, layer=request.layer, with_lens=request.lens, check_interrupt=check_interrupt
    )
    data = page.to_json(snapshot)
    data["maps"] = [
        {**map_data, "first_layer": request.layer or 0, "nan": nan_bitmap(one)}
        for one, map_data in zip(snapshot.maps, data["maps"], strict=True)
        if request.maps is None or one.key in request.maps
    ]
    then = None if prompt.next_token is None else {"id": prompt.next_token, "text": prompt.name(prompt.next_token)}
    names = {"model": request.model, "text": request.text, "said": generated_text(pipeline.tokenizer, prompt)}
    return {**names, "then": then, "notices": notices, **replace_non_finite(data)}


def tokens(
    pipeline: Pipeline, request: schemas.PromptRequest, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Tokens of the text and of its continuation, without running the model."""
    own, other = pipeline.tokenizer, pipeline.source_tokenizer
    notices: list[Notice] = []
    most = min(MAX_TOKENS_ONE_LAYER, pipeline.config.context)
    if pipeline.config.kind == "encoder-decoder":
        source = source_tokens(other, request.text, most, notices)
        without_new = request.model_copy(update={"new": 0})
        target = [] if request.target is None else prompt_from_request(pipeline, without_new, most=most)[0].tokens[1:]
        return {"tokens": label_tokens(target, own), "source": label_tokens(source, other), "notices": notices}
    prompt, notices = prompt_from_request(pipeline, request.model_copy(update={"new": 0}), most=most)
    return {"tokens": label_tokens(prompt.tokens, own), "source": [], "notices": notices}


def addresses(
    pipeline: Pipeline, request: schemas.PromptRequest, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    return {"addresses": tap.addresses(pipeline.model)}


def tensor(
    pipeline: Pipeline, request: schemas.Tensor, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """The first numbers of the tensor at an address, its shape and statistics."""
    known = tap.addresses(pipeline.model)
    if request.address not in known:
        near = difflib.get_close_matches(request.address, known, n=1, cutoff=0.3)
        hint = f"Did you mean {near[0]}?" if near else f"The model has {len(known)} addresses."
        raise AddressError(f"This model has no address {request.address}. {hint}")
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    _, tape = run_and_record(pipeline.model, prompt.tokens, request.address, source=prompt.source)
    if request.address not in tape:
        raise AddressError(f"The forward pass of this prompt did not reach {request.address}.")
    values = tape[request.address][0].float().cpu()
    table = _as_table(pipeline, values, request)
    rows, columns = _axis_labels(request.address, prompt, table)
    if request.row is not None:
        if request.row >= len(table):
            raise UsageError(f"There is no row {request.row} at {request.address}: it has {len(table)} rows.")
        table, rows = table[request.row : request.row + 1], rows and rows[request.row : request.row + 1]
    finite = table[table.isfinite()]
    statistics = [float(one) for one in (finite.min(), finite.max(), finite.mean())] if len(finite) else [math.nan] * 3
    return {
        "address": request.address,
        "shape": list(values.shape),
        "shown": json_numbers(table[:SIDE, :SIDE]),
        "rows": rows and rows[:SIDE],
        "columns": columns and columns[:SIDE],
        **{name: json_number(one) for name, one in zip(("least", "most", "mean"), statistics, strict=True)},
        "odd": int(table.numel() - len(finite)),
        "notices": notices,
    }


def next_tokens(
    pipeline: Pipeline, request: schemas.Next, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """The most likely next tokens; `rest` is log Σ exp of the logits of all others."""
    kind = pipeline.config.kind
    if isinstance(pipeline.model, EncoderModel):
        raise UsageError(f"A model of kind '{kind}' predicts no next token. Use a decoder or an encoder-decoder.")
    without_new = request if request.target is not None else request.model_copy(update={"new": 0})
    most = min(MAX_TOKENS_ONE_LAYER, pipeline.config.context)
    prompt, notices = prompt_from_request(pipeline, without_new, check_interrupt, most=most)
    logits = (
        final_output(run_model(pipeline.model, make_input(pipeline.model, prompt.tokens, prompt.source)))[0, -1]
        .float()
        .cpu()
    )
    best = logits.topk(min(request.count, len(logits)))
    others = torch.ones(len(logits), dtype=torch.bool).index_fill(0, best.indices, False)
    return {
        "candidates": [
            {"id": int(token), "text": prompt.name(int(token)), "logit": json_number(float(logit))}
            for logit, token in zip(*best, strict=True)
        ],
        "rest": json_number(float(logits[others].double().logsumexp(0))) if others.any() else "-Infinity",
        "vocabulary": len(logits),
        "notices": notices,
    }


def _as_table(pipeline: Pipeline, values: Tensor, request: schemas.Tensor) -> Tensor:
    """A tensor of one to three axes as a matrix; with three axes, the matrix of the requested head."""
    if values.ndim == 1:
        return values[None]
    if values.ndim == 2:
        return values
    if "attention." not in request.address:  # mixture of experts: hidden values of each chosen expert
        return values.flatten(1)
    check_head(pipeline, request.head)
    return values[request.head * len(values) // pipeline.config.heads]  # several query heads may share a key head


def _axis_labels(address: str, prompt: LookInput, table: Tensor) -> tuple[list[str] | None, list[str] | None]:
    """Labels of the rows, and of the columns if they are tokens too."""
    own = [prompt.name(token) for token in prompt.tokens]
    source = [(prompt.source_name or prompt.name)(token) for token in prompt.source or ()]
    queries = source if source and address.startswith("encoder") else own
    keys = source if "cross_attention" in address else queries
    part = address.rpartition(".")[2]
    if part == "vector":
        return None, None
    rows = keys if "attention." in address and part in ("keys", "values") else queries
    return rows, keys if part in ("scores", "masked_scores", "weights") and "attention." in address else None
