"""The logit lens: what each layer would say, were it the last (nostalgebraist, 2020).

    said_l = head(norm(x_l))        x_0 the embedding, x_l the output of block l; said_L is what the model says

Models with post-norm blocks have no last norm, and x_l goes to the head as it is. What a layer would say is a word only
where there is a head for words: after a decoder's blocks, and after those of an encoder that guesses masked tokens.
The stream itself can be followed in every model: `residual_norms` is its length ‖x_l‖ at every place, and the lengths
of what attention and feed-forward add to it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.quantized import QuantizedLogits
from chumoku.nn.tap import Tape
from chumoku.probe.cancellation import Going, on
from chumoku.probe.forward_pass import Tokens, plain, still, watch


class Lens(NamedTuple):
    """What each of L + 1 layers would say; k best first."""

    addresses: list[str]  # the embedding, then the blocks
    tokens: Tensor  # [L + 1, B, T, k]
    probabilities: Tensor  # [L + 1, B, T, k]
    final: Tensor  # [L + 1, B, T] how likely each layer finds what the last one says


class Stream(NamedTuple):
    """Lengths of the vectors of a stack."""

    x: Tensor  # [L + 1, B, T] the stream: embedded, and after each block
    attention: Tensor  # [L, B, T] what attention (and cross-attention) add
    feedforward: Tensor  # [L, B, T]
    cross: Tensor | None = None


def logit_lens(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, best: int = 5, debug: bool | None = None
) -> Lens:
    """The `best` tokens that each layer would say at each place; a translator's `tokens` are its target, with begin."""
    model = plain(model)
    speaking(model)
    _, tape = watch(model, tokens, *stream_of(model), source=source, debug=debug)
    return through(model, tape, best=best)


def through(model: Model, tape: Tape, *, best: int = 5, going: Going = on) -> Lens:
    """The lens held over a stream that was recorded; `going` is asked before each layer's words."""
    addresses = stream_of(model)
    if not 1 <= best <= model.config.vocabulary:
        raise UsageError(f"The {best} best tokens were asked for; there are 1 to {model.config.vocabulary:,}.")
    # Kept here, so that a quantized head is dequantized once and not for every layer.
    floats = [part.float_weight() for part in speaking(model)[1].modules() if isinstance(part, QuantizedLogits)]
    last: Tensor | None = None
    tops, finals = [], []
    for address in reversed(addresses):  # one at a time: all of them are (L + 1) · V numbers a token
        going()
        logits = said(model, tape[address])
        last = logits.argmax(-1, keepdim=True) if last is None else last
        likely = logits.float().softmax(-1)
        tops.append(likely.topk(best))
        finals.append(likely.gather(-1, last)[..., 0])
    del floats
    chances, tokens = zip(*reversed(tops), strict=True)
    return Lens(addresses, torch.stack(tokens), torch.stack(chances), torch.stack(finals[::-1]))


def said(model: Model, states: Tensor) -> Tensor:
    """The logits [B, T, V] that the head makes of a block's output [B, T, D]."""
    stack, head = speaking(model)
    with still(model), torch.no_grad():
        hidden = states if stack.norm is None else stack.norm(states)
        logits: Tensor = head(hidden, stack.embedding.table)
    return logits


def stream_of(model: Model) -> list[str]:
    """The addresses of x_0 … x_L before the head."""
    name = "encoder" if isinstance(model, EncoderModel) else "decoder"
    return stream_addresses(name, len(model.get_submodule(name).blocks))  # type: ignore[arg-type]


def stream_addresses(stack: str, depth: int) -> list[str]:
    return [f"{stack}.embedding", *(f"{stack}.blocks.{layer}.output" for layer in range(depth))]


def speaking(model: Model) -> tuple[Stack, nn.Module]:
    """The stack whose output becomes words, and what makes them."""
    if isinstance(model, DecoderModel | EncoderDecoderModel):
        return model.decoder, model.head
    if isinstance(model, EncoderModel) and model.head is not None:
        return model.encoder, model.head
    raise UsageError(
        "This encoder makes vectors and has no head for words, so none of its layers would say any. Look at "
        "residual_norms or attention_rollout instead."
    )


def residual_norms(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, Stream]:
    """The lengths of the residual stream of each stack: "encoder", "decoder", or both."""
    model = plain(model)
    _, tape = watch(model, tokens, *added_patterns(), source=source, debug=debug)
    return streams(model, tape)


def added_patterns() -> tuple[str, ...]:
    return "*.embedding", "*.blocks.*.output", "*.blocks.*.{*attention,feedforward}.output"


def streams(model: Model, tape: Tape) -> dict[str, Stream]:
    """The same of a tape that holds the addresses of `added_patterns`."""
    found = {}
    for name in ("encoder", "decoder"):
        if isinstance(stack := getattr(model, name, None), Stack):
            depth = len(stack.blocks)
            cross = "cross_attention" if f"{name}.blocks.0.cross_attention.output" in tape else None
            parts = [_lengths(tape, name, depth, part) for part in ("attention", "feedforward", cross) if part]
            x = torch.stack([length(tape[address]) for address in stream_addresses(name, depth)])
            found[name] = Stream(x, *parts)
    return found


def _lengths(tape: Tape, stack: str, depth: int, part: str) -> Tensor:
    return torch.stack([length(tape[f"{stack}.blocks.{layer}.{part}.output"]) for layer in range(depth)])


def length(vectors: Tensor) -> Tensor:
    """‖x‖ of each vector [..., D]."""
    lengths: Tensor = torch.linalg.vector_norm(vectors.float(), dim=-1)
    return lengths
