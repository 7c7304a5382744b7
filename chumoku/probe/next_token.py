"""The most likely next tokens of a text, with their logits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from chumoku.errors import UsageError
from chumoku.models.model import EncoderModel, Model
from chumoku.nn.modules import unwrap_compiled
from chumoku.probe.forward_pass import Tokens, final_output, make_input, run_model


class NextTokens(NamedTuple):
    """Token ids and logits, largest first; `rest` is log Σ exp of the logits of all other tokens."""

    tokens: list[int]
    logits: list[float]
    rest: float
    vocabulary: int


def next_tokens(model: Model, tokens: Tokens, *, source: Tokens | None = None, count: int = 100) -> NextTokens:
    """The `count` most likely tokens after `tokens`; `source` only for an encoder-decoder."""
    model = unwrap_compiled(model)
    if isinstance(model, EncoderModel) or not model.config.predicts_tokens:
        kind, head = model.config.kind, model.config.head
        if model.config.labels is None:
            raise UsageError(f"A model of kind '{kind}' predicts no next token. Use a decoder or an encoder-decoder.")
        raise UsageError(
            f"A model of kind '{kind}' with the head '{head}' predicts no next token. Use a decoder or an "
            "encoder-decoder."
        )
    logits = final_output(run_model(model, make_input(model, tokens, source)))[0, -1].float().cpu()
    best = logits.topk(min(count, len(logits)))
    others = torch.ones(len(logits), dtype=torch.bool).index_fill(0, best.indices, False)
    rest = float(logits[others].double().logsumexp(0)) if others.any() else -math.inf
    return NextTokens(best.indices.tolist(), best.values.tolist(), rest, len(logits))
