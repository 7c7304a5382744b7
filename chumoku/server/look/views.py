"""What the web page shows of a model: functions from a request to JSON values.

    look          tokens, maps, entropy, streams, lens, words, positions      data of probe.page
    tokens        the tokens of the texts                     addresses      all recordable tensors
    tensor        the first 64 × 64 numbers at an address     next_tokens    the most likely next tokens, with logits
    block         one head's computation at one position      ablate         the output with parts switched off
    patch         the output with values of another text      effects        of every head of a layer switched off alone

Each function runs the model, so the server calls it in the worker thread. It calls `check_interrupt` before each
generated token and each layer of the lens, which may raise an exception to stop it. A response has at most about 8 MB.
NaN and infinities become the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from chumoku.errors import UsageError
from chumoku.inspect_prompt import Notice, generated_text, longest, source_tokens
from chumoku.nn import tap
from chumoku.pipeline import Pipeline
from chumoku.probe import next_token, page
from chumoku.probe.block import HeadTrace, trace_block
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.edits import Replacement, copy_places
from chumoku.probe.forward_pass import check_head, check_layer, final_output, run_and_record
from chumoku.probe.json_values import json_number, json_numbers
from chumoku.probe.patching import Change, compare_edited, compare_without, switch_off
from chumoku.probe.patching import ablate as measure_effects
from chumoku.probe.snapshot import LookInput, most_likely, predicted_positions, take_snapshot
from chumoku.probe.tensor_table import check_address, read_table
from chumoku.server.look import schemas as schemas
from chumoku.server.look.shared import MAX_MAP_VALUES, MAX_TOKENS, MAX_TOKENS_ONE_LAYER, prompt_from_request
from chumoku.server.token_text import label_tokens

SHOWN_VALUES = 64  # values of a vector
NORMS = {"input": "input", "attention": "output", "feedforward": "feedforward", "out": "out"}
SWITCHABLE = ("attention.heads", "cross_attention.heads", "feedforward.output")  # of a block
SIDE = 64  # maximal number of rows and columns shown


def look(
    pipeline: Pipeline, request: schemas.Look, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Everything that the page draws for one prompt."""
    if request.layer is None:
        room = longest(pipeline, most=MAX_TOKENS, room=MAX_MAP_VALUES)
    else:
        check_layer(pipeline.config, request.layer)
        room = longest(pipeline, most=MAX_TOKENS_ONE_LAYER, room=MAX_MAP_VALUES, layers=1)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt, most=room)
    snapshot = take_snapshot(
        pipeline.model, prompt, layer=request.layer, with_lens=request.lens, check_interrupt=check_interrupt
    )
    data = page.to_json(snapshot)
    data["maps"] = [one for one in data["maps"] if request.maps is None or one["key"] in request.maps]
    names = {"model": request.model, "text": request.text, "output": generated_text(pipeline.tokenizer, prompt)}
    return {**names, "notices": notices, **data}


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
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    shape, table, rows, columns = read_table(pipeline.model, prompt, request.address, head=request.head)
    if request.row is not None:
        if request.row >= len(table):
            raise UsageError(f"There is no row {request.row} at {request.address}: it has {len(table)} rows.")
        table, rows = table[request.row : request.row + 1], rows and rows[request.row : request.row + 1]
    finite = table[table.isfinite()].double()  # the sum of masked scores is not finite in float32
    statistics = [float(one) for one in (finite.min(), finite.max(), finite.mean())] if len(finite) else [math.nan] * 3
    return {
        "address": request.address,
        "shape": shape,
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
    without_new = request if request.target is not None else request.model_copy(update={"new": 0})
    most = min(MAX_TOKENS_ONE_LAYER, pipeline.config.context)
    prompt, notices = prompt_from_request(pipeline, without_new, check_interrupt, most=most)
    best = next_token.next_tokens(pipeline.model, prompt.tokens, source=prompt.source, count=request.count)
    return {
        "candidates": [
            {"id": token, "text": prompt.name(token), "logit": json_number(logit)}
            for token, logit in zip(best.tokens, best.logits, strict=True)
        ],
        "rest": json_number(best.rest),
        "vocabulary": best.vocabulary,
        "notices": notices,
    }


def block(
    pipeline: Pipeline, request: schemas.Block, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Everything that one block computes at one position."""
    check_layer(pipeline.config, request.layer, request.part)
    check_head(pipeline.config, request.head)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    where: dict[str, Any] = {"part": request.part, "layer": request.layer, "head": request.head}
    trace = trace_block(pipeline.model, prompt.tokens, request.place, source=prompt.source, **where)
    own = pipeline.tokenizer
    source = label_tokens(prompt.source or (), pipeline.source_tokenizer)
    vectors = {"token": trace.embedding, "position": trace.position}
    return {
        "tokens": source if source and request.part == "encoder" else label_tokens(prompt.tokens, own),
        "embedding": {key: None if one is None else json_numbers(one[:SHOWN_VALUES]) for key, one in vectors.items()},
        **{key: json_numbers(one[:SHOWN_VALUES]) for key, one in trace.stream.items()},
        **_describe_head(trace.attention),
        "cross": None if trace.cross is None else {"tokens": source, **_describe_head(trace.cross)},
        "norms": {key: json_number(float(trace.stream[part].norm())) for key, part in NORMS.items()},
        "config": _describe_config(pipeline),
        "notices": notices,
    }


def ablate(
    pipeline: Pipeline, request: schemas.Ablate, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Text and candidates with all parts, and with some switched off.

    Both models continue the same prompt; the bits are measured on the text that was generated before the ablation.
    """
    model, off = pipeline.model, _find_switched_off(pipeline, request.off)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    change = compare_without(model, off, prompt.tokens, source=prompt.source)
    with switch_off(model, off):
        ablated_prompt, _ = prompt_from_request(pipeline, request, check_interrupt)
    outputs = (("before", change.before, prompt), ("after", change.after, ablated_prompt))
    first = _predicted_places(pipeline, prompt)[0]
    return {
        **{
            name: {
                "output": generated_text(pipeline.tokenizer, one),
                "candidates": _describe_candidates(pipeline, output, first, prompt),
            }
            for name, output, one in outputs
        },
        **_describe_change(pipeline, change, prompt),
        "notices": notices,
    }


def patch(
    pipeline: Pipeline, request: schemas.Patch, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """Candidates of the text, of another text, and of the text with tensors of the other one.

    Both texts have the same continuation, that of the first one. The candidates are those at the place where the
    prediction changes most.
    """
    model = pipeline.model
    for one in request.replace:
        check_address(model, one.address)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    follows = None if pipeline.config.kind == "encoder" else list(prompt.tokens[prompt.prompt_length :])
    about_other = request.model_copy(update={"text": request.other, "target": follows})
    other, other_notices = prompt_from_request(pipeline, about_other, check_interrupt)
    wanted = [
        Replacement(one.address, one.place, one.place if one.other_place is None else one.other_place, one.head)
        for one in request.replace
    ]
    addresses = dict.fromkeys(one.address for one in wanted)
    output, tape = run_and_record(model, other.tokens, *addresses, source=other.source)
    change = compare_edited(model, copy_places(wanted, tape), prompt.tokens, source=prompt.source)
    described = _describe_change(pipeline, change, prompt)
    places, other_places = _predicted_places(pipeline, prompt), _predicted_places(pipeline, other)
    nth = max(range(len(described["places"])), key=lambda one: float(described["places"][one]["bits"]))
    there = other_places[min(nth, len(other_places) - 1)]
    return {
        "place": places[nth],
        "before": {"candidates": _describe_candidates(pipeline, change.before, places[nth], prompt)},
        "after": {"candidates": _describe_candidates(pipeline, change.after, places[nth], prompt)},
        "other": {"candidates": _describe_candidates(pipeline, final_output(output), there, other)},
        **described,
        "notices": [*notices, *(one for one in other_notices if one not in notices)],
    }


def _predicted_places(pipeline: Pipeline, prompt: LookInput) -> list[int]:
    return list(predicted_positions(pipeline.model, prompt)) or [0]


def _describe_change(pipeline: Pipeline, change: Change, prompt: LookInput) -> dict[str, Any]:
    """The mean effect, and that at each predicted position: in bits, for vectors 1 − cos."""
    places, by_place = _predicted_places(pipeline, prompt), change.before.ndim == 3
    effects = (change.effects[0, places] / math.log(2) if by_place else change.effects).tolist()
    return {
        "change": json_number(sum(effects) / len(effects)),
        "places": [{"place": place, "bits": json_number(part)} for place, part in zip(places, effects, strict=False)],
        "measure": "bits" if by_place else "cosine",
    }


def effects(
    pipeline: Pipeline, request: schemas.Effects, check_interrupt: CheckInterrupt = never_interrupt
) -> dict[str, Any]:
    """How much the output changes without each head of a layer, and without its feed-forward; measured as in `ablate`.

    A request is about one layer, so that its work is bounded and the page can show its progress.
    """
    check_layer(pipeline.config, request.layer, request.part)
    prompt, notices = prompt_from_request(pipeline, request, check_interrupt)
    known, block = tap.addresses(pipeline.model), f"{request.part}.blocks.{request.layer}"
    parts = [name for one in SWITCHABLE if (name := f"{block}.{one}") in known]
    places = _predicted_places(pipeline, prompt)
    found = measure_effects(pipeline.model, prompt.tokens, *parts, source=prompt.source, positions=places)
    has_logits = pipeline.config.head_kind in ("next", "masked", "tags")  # others have one vector for the text
    return {
        "effects": [
            {
                "part": {"part": request.part, "layer": request.layer, **_describe_part(one.address, one.head)},
                "effect": json_number(one.effect / math.log(2) if has_logits else one.effect),
            }
            for one in found
        ],
        "measure": "bits" if has_logits else "cosine",
        "notices": notices,
    }


def _describe_part(address: str, head: int | None) -> dict[str, Any]:
    """The fields of `schemas.Part` that name a head or a feed-forward."""
    if head is None:
        return {"feedforward": True}
    return {"head": head, "cross": True} if "cross_attention" in address else {"head": head}


def _find_switched_off(pipeline: Pipeline, off: Sequence[schemas.Part]) -> dict[str, list[int] | None]:
    """Address → heads to switch off, or None for the whole output at this address."""
    found: dict[str, list[int] | None] = {}
    for one in off:
        check_layer(pipeline.config, one.layer, one.part)
        if one.feedforward == (one.head is not None) or (one.feedforward and one.cross):
            raise UsageError("Each entry of 'off' must have either 'head' (optionally with 'cross') or 'feedforward'.")
        if one.cross and (one.part != "decoder" or pipeline.config.kind != "encoder-decoder"):
            raise UsageError(f"The {one.part} of a model of kind '{pipeline.config.kind}' has no cross-attention.")
        address = f"{one.part}.blocks.{one.layer}"
        if one.head is None:
            found[f"{address}.feedforward.output"] = None
            continue
        check_head(pipeline.config, one.head)
        heads = found.setdefault(f"{address}.{'cross_attention' if one.cross else 'attention'}.heads", [])
        if heads is not None:
            heads.append(one.head)
    return found


def _describe_head(trace: HeadTrace) -> dict[str, Any]:
    numbers = {key: None if part is None else json_numbers(part) for key, part in trace._asdict().items()}
    return {**numbers, "masked": trace.masked.tolist()}


def _describe_config(pipeline: Pipeline) -> dict[str, Any]:
    config = pipeline.config
    return {
        **{name: getattr(config, name) for name in ("norm", "feedforward", "position", "heads", "key_heads")},
        **{name: getattr(config, name) for name in ("width", "hidden", "kind", "layers")},
        "head_width": config.key_width,
        "norm_place": config.placement,
        "scale_embedding": config.scale_embedding,
        "experts": config.experts,
        "base": config.rotary.base,
    }


def _describe_candidates(pipeline: Pipeline, output: Tensor, place: int, prompt: LookInput) -> list[dict[str, Any]]:
    """The most likely tokens at a position of logits [1, T, V]; none of other outputs."""
    if not pipeline.config.predicts_tokens:
        return []
    return [
        {"id": token, "text": prompt.name(token), "probability": json_number(probability)}
        for token, probability in most_likely(output[0, place].float().softmax(-1).cpu())
    ]
