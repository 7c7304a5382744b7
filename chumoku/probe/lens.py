"""Logit lens: the prediction of each layer, if it were the last (nostalgebraist, 2020).

    logits_l = head(norm(x_l))      x_0 is the embedding, x_{l+1} the output of block l; logits_L are the model's own

Post-norm models have no final norm, so there x_l goes directly into the head. The lens needs a head over the
vocabulary: it works for decoders, for encoder-decoders, and for encoders with a masked-token head.
`residual_norms` works for every model: the norm ‖x_l‖ at every position, and of what attention and feed-forward add.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.modules import eval_mode, unwrap_compiled
from chumoku.nn.quantized import QuantizedLogits
from chumoku.nn.tap import Tape
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import Tokens, run_and_record


class Lens(NamedTuple):
    """The k most likely tokens after each of L + 1 layers, best first."""

    addresses: list[str]  # the embedding, then the blocks
    tokens: Tensor  # [L + 1, B, T, k]
    probabilities: Tensor  # [L + 1, B, T, k]
    final: Tensor  # [L + 1, B, T] each layer's probability of the token that the last layer predicts


class StreamNorms(NamedTuple):
    """Norms of the vectors of a stack's residual stream."""

    x: Tensor  # [L + 1, B, T] the stream itself: the embedding, and after each block
    attention: Tensor  # [L, B, T] what attention adds
    feedforward: Tensor  # [L, B, T]
    cross: Tensor | None = None


def logit_lens(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, best: int = 5, debug: bool | None = None
) -> Lens:
    """The `best` most likely tokens that each layer predicts at each position.

    tokens: ids [T] or [B, T]; for an encoder-decoder the target, starting with the begin token.
    source: the source ids of an encoder-decoder.
    debug: also check that recording does not change the output.
    """
    model = unwrap_compiled(model)
    find_head(model)
    _, tape = run_and_record(model, tokens, *lens_addresses(model), source=source, debug=debug)
    return apply_lens(model, tape, best=best)


def apply_lens(model: Model, tape: Tape, *, best: int = 5, check_interrupt: CheckInterrupt = never_interrupt) -> Lens:
    """The lens of a recorded stream; `check_interrupt` is called before each layer."""
    addresses = lens_addresses(model)
    if not 1 <= best <= model.config.vocabulary:
        raise UsageError(f"best={best} is out of range: use 1 to {model.config.vocabulary:,} (the vocabulary size).")
    # This reference keeps the dequantized head alive, so that it is dequantized once and not for every layer.
    floats = [part.float_weight() for part in find_head(model)[1].modules() if isinstance(part, QuantizedLogits)]
    last: Tensor | None = None
    tops, finals = [], []
    for address in reversed(addresses):  # one layer at a time: together they have (L + 1) · V numbers per token
        check_interrupt()
        logits = compute_logits(model, tape[address])
        last = logits.argmax(-1, keepdim=True) if last is None else last
        probabilities = logits.float().softmax(-1)
        tops.append(probabilities.topk(best))
        finals.append(probabilities.gather(-1, last)[..., 0])
    del floats
    values, tokens = zip(*reversed(tops), strict=True)
    return Lens(addresses, torch.stack(tokens), torch.stack(values), torch.stack(finals[::-1]))


def compute_logits(model: Model, states: Tensor) -> Tensor:
    """The logits [B, T, V] of the head for a block's output [B, T, D]."""
    stack, head = find_head(model)
    with eval_mode(model.modules()), torch.no_grad():
        hidden = states if stack.norm is None else stack.norm(states)
        return model.compute_logits(head, hidden, stack.embedding.table)


def lens_addresses(model: Model) -> list[str]:
    """The addresses of x_0 … x_L in the stack below the head."""
    name = "encoder" if isinstance(model, EncoderModel) else "decoder"
    return stream_addresses(name, len(model.get_submodule(name).blocks))  # type: ignore[arg-type]


def stream_addresses(stack: str, depth: int) -> list[str]:
    return [f"{stack}.embedding", *(f"{stack}.blocks.{layer}.output" for layer in range(depth))]


def find_head(model: Model) -> tuple[Stack, nn.Module]:
    """The output head over the vocabulary, with the stack below it."""
    if model.config.predicts_tokens and isinstance(model, DecoderModel | EncoderDecoderModel):
        return model.decoder, model.head
    if model.config.predicts_tokens and isinstance(model, EncoderModel) and model.head is not None:
        return model.encoder, model.head
    raise UsageError(
        "This model has no head over the vocabulary, so the logit lens does not apply. "
        "Use residual_norms or attention_rollout instead."
    )


def residual_norms(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, StreamNorms]:
    """The norms of the residual stream of each stack: "encoder", "decoder", or both."""
    model = unwrap_compiled(model)
    _, tape = run_and_record(model, tokens, *stream_patterns(), source=source, debug=debug)
    return compute_norms(model, tape)


def stream_patterns() -> tuple[str, ...]:
    return "*.embedding", "*.blocks.*.output", "*.blocks.*.{*attention,feedforward}.output"


def compute_norms(model: Model, tape: Tape) -> dict[str, StreamNorms]:
    """The norms from a tape that was recorded with `stream_patterns`."""
    found = {}
    for name in ("encoder", "decoder"):
        if isinstance(stack := getattr(model, name, None), Stack):
            depth = len(stack.blocks)
            cross = "cross_attention" if f"{name}.blocks.0.cross_attention.output" in tape else None
            parts = [_part_norms(tape, name, depth, part) for part in ("attention", "feedforward", cross) if part]
            x = torch.stack([vector_norms(tape[address]) for address in stream_addresses(name, depth)])
            found[name] = StreamNorms(x, *parts)
    return found


def _part_norms(tape: Tape, stack: str, depth: int, part: str) -> Tensor:
    return torch.stack([vector_norms(tape[f"{stack}.blocks.{layer}.{part}.output"]) for layer in range(depth)])


def vector_norms(vectors: Tensor) -> Tensor:
    """‖x‖ of each vector [..., D]."""
    norms: Tensor = torch.linalg.vector_norm(vectors.float(), dim=-1)
    return norms
