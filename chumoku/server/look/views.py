"""What the page sees inside a model: plain functions from a question to what JSON can say.

    look          tokens, maps, entropy, streams, lens, words, positions      probe.page's data
    tokens        the tokens of the texts                     addresses      all that has one
    tensor        the first 64 × 64 numbers at an address     next_tokens    the likeliest to follow, with their logits
    block         one head's arithmetic at one place          ablate         what is said with parts switched off

Each makes its pass when called; whoever serves calls them where computing is allowed, and is asked whether to go on
(`going`) before each token that is written and each layer of the lens. No answer has more than about 8 MB, and numbers
that are none are said in words: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import difflib
import math
from typing import Any

import torch
from torch import Tensor

from chumoku.errors import AddressError, UsageError
from chumoku.inspect_prompt import Notice, longest, said, source_tokens
from chumoku.models.model import EncoderModel
from chumoku.nn import tap
from chumoku.pipeline import Speaker
from chumoku.probe import page
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import final_output, make_input, run_and_record, run_model
from chumoku.probe.snapshot import LookInput, take_snapshot
from chumoku.server.look import schemas as schemas
from chumoku.server.look.ablate import ablate as ablate
from chumoku.server.look.block import block as block
from chumoku.server.look.shared import (
    MOST,
    MOST_ONE,
    ROOM,
    asking,
    check_head,
    check_layer,
    holes,
    number,
    numbers,
)
from chumoku.server.streaming import worded
from chumoku.server.token_text import named

SIDE = 64  # rows and columns of a tensor that are shown


def look(speaker: Speaker, request: schemas.Look, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """All that is drawn of one look."""
    if request.layer is None:
        room = longest(speaker, most=MOST, room=ROOM)
    else:
        check_layer(speaker, request.layer)
        room = longest(speaker, most=MOST_ONE, room=ROOM, layers=1)
    asked, notices = asking(speaker, request, going, most=room)
    seen = take_snapshot(speaker.model, asked, layer=request.layer, with_lens=request.lens, check_interrupt=going)
    data = page.to_json(seen)
    data["maps"] = [
        {**drawn, "first_layer": request.layer or 0, "nan": holes(one)}
        for one, drawn in zip(seen.maps, data["maps"], strict=True)
        if request.maps is None or one.key in request.maps
    ]
    then = None if asked.next_token is None else {"id": asked.next_token, "text": asked.name(asked.next_token)}
    names = {"model": request.model, "text": request.text, "said": said(speaker.tokenizer, asked)}
    return {**names, "then": then, "notices": notices, **worded(data)}


def tokens(speaker: Speaker, request: schemas.Question, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """The tokens of the text, and of what is said of it; nothing is computed."""
    own, other = speaker.tokenizer, speaker.source_tokenizer
    notices: list[Notice] = []
    most = min(MOST_ONE, speaker.config.context)
    if speaker.config.kind == "encoder-decoder":
        source = source_tokens(other, request.text, most, notices)
        asked = request.model_copy(update={"new": 0})
        target = [] if request.target is None else asking(speaker, asked, most=most)[0].tokens[1:]
        return {"tokens": named(target, own), "source": named(source, other), "notices": notices}
    found, notices = asking(speaker, request.model_copy(update={"new": 0}), most=most)
    return {"tokens": named(found.tokens, own), "source": [], "notices": notices}


def addresses(speaker: Speaker, request: schemas.Question, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    return {"addresses": tap.addresses(speaker.model)}


def tensor(speaker: Speaker, request: schemas.Tensor, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """The numbers at an address, as many as can be shown."""
    known = tap.addresses(speaker.model)
    if request.address not in known:
        near = difflib.get_close_matches(request.address, known, n=1, cutoff=0.3)
        hint = f"Did you mean {near[0]}?" if near else f"It has {len(known)} addresses."
        raise AddressError(f"Nothing in this model is at {request.address}. {hint}")
    asked, notices = asking(speaker, request, going)
    _, tape = run_and_record(speaker.model, asked.tokens, request.address, source=asked.source)
    if request.address not in tape:
        raise AddressError(f"{request.address} was not passed through in this look.")
    whole = tape[request.address][0].float().cpu()
    table = _table(speaker, whole, request)
    rows, columns = _axes(request.address, asked, table)
    if request.row is not None:
        if request.row >= len(table):
            raise UsageError(f"There is no row {request.row} at {request.address}: it has {len(table)}.")
        table, rows = table[request.row : request.row + 1], rows and rows[request.row : request.row + 1]
    finite = table[table.isfinite()]
    spread = [float(part) for part in (finite.min(), finite.max(), finite.mean())] if len(finite) else [math.nan] * 3
    return {
        "address": request.address,
        "shape": list(whole.shape),
        "shown": numbers(table[:SIDE, :SIDE]),
        "rows": rows and rows[:SIDE],
        "columns": columns and columns[:SIDE],
        **{name: number(part) for name, part in zip(("least", "most", "mean"), spread, strict=True)},
        "odd": int(table.numel() - len(finite)),
        "notices": notices,
    }


def next_tokens(speaker: Speaker, request: schemas.Next, going: CheckInterrupt = never_interrupt) -> dict[str, Any]:
    """The likeliest tokens to follow; `rest` is log Σ exp of the logits of all others."""
    kind = speaker.config.kind
    if isinstance(speaker.model, EncoderModel):
        raise UsageError(f"This model is of kind '{kind}': nothing follows its text. Ask a decoder or a translator.")
    quiet = request if request.target is not None else request.model_copy(update={"new": 0})
    asked, notices = asking(speaker, quiet, going, most=min(MOST_ONE, speaker.config.context))
    logits = (
        final_output(run_model(speaker.model, make_input(speaker.model, asked.tokens, asked.source)))[0, -1]
        .float()
        .cpu()
    )
    best = logits.topk(min(request.count, len(logits)))
    others = torch.ones(len(logits), dtype=torch.bool).index_fill(0, best.indices, False)
    return {
        "candidates": [
            {"id": int(one), "text": asked.name(int(one)), "logit": number(float(logit))}
            for logit, one in zip(*best, strict=True)
        ],
        "rest": number(float(logits[others].double().logsumexp(0))) if others.any() else "-Infinity",
        "vocabulary": len(logits),
        "notices": notices,
    }


def _table(speaker: Speaker, whole: Tensor, request: schemas.Tensor) -> Tensor:
    """Two axes of what may have three, or one: those of one head, places by numbers."""
    if whole.ndim == 1:
        return whole[None]
    if whole.ndim == 2:
        return whole
    if "attention." not in request.address:  # experts: what each of a token's chosen ones has hidden
        return whole.flatten(1)
    check_head(speaker, request.head)
    return whole[request.head * len(whole) // speaker.config.heads]  # query heads share those of keys and values


def _axes(address: str, asked: LookInput, table: Tensor) -> tuple[list[str] | None, list[str] | None]:
    """The names of a table's rows, and of its columns where those are tokens too."""
    own = [asked.name(token) for token in asked.tokens]
    source = [(asked.source_name or asked.name)(token) for token in asked.source or ()]
    reads = source if source and address.startswith("encoder") else own
    looked = source if "cross_attention" in address else reads
    part = address.rpartition(".")[2]
    if part == "vector":
        return None, None
    rows = looked if "attention." in address and part in ("keys", "values") else reads
    return rows, looked if part in ("scores", "weights") and "attention." in address else None
