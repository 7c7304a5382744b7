"""Attention weights of all layers, their entropy, and attention rollout.

    entropy   −Σⱼ aᵢⱼ log₂ aᵢⱼ                  bits: 0 for one position, log₂ S for all S positions equally
    rollout   R ← ½ (Ā + I) R                    Ā is the mean over heads, I the residual path (Abnar, Zuidema, 2020)

The decoder of an encoder-decoder has two rollouts, over its own tokens (R) and over the source tokens (C). Each row of
both together sums to 1:

    self     R ← ½ (Ā + I) R,   C ← ½ (Ā + I) C
    cross    R ← ½ R,           C ← ½ C + ½ Ā_cross R_encoder
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.models.model import Model
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.tap import Tape
from chumoku.probe.forward_pass import Tokens, run_and_record

WEIGHTS = "*.blocks.*.{attention,cross_attention}.weights"


class Rollout(NamedTuple):
    """The share of each input token in each output position: [B, T, T], and `cross` [B, T, S] for source tokens."""

    encoder: Tensor | None = None
    decoder: Tensor | None = None
    cross: Tensor | None = None


def record_attention(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, Tensor]:
    """All attention weights [L, B, H, T, S], under "encoder", "decoder" and "cross"."""
    _, tape = run_and_record(model, tokens, WEIGHTS, source=source, debug=debug)
    return stack_attention(unwrap_compiled(model), tape)


def stack_attention(model: Model, tape: Tape) -> dict[str, Tensor]:
    """The attention weights on a tape, stacked over the layers that were recorded."""
    found = {}
    for name, stack, part in (
        ("encoder", "encoder", "attention"),
        ("decoder", "decoder", "attention"),
        ("cross", "decoder", "cross_attention"),
    ):
        depth = len(getattr(model, stack).blocks) if hasattr(model, stack) else 0
        addresses = (f"{stack}.blocks.{layer}.{part}.weights" for layer in range(depth))
        if recorded := [tape[address] for address in addresses if address in tape]:
            found[name] = torch.stack(recorded)
    return found


def entropy(weights: Tensor) -> Tensor:
    """The entropy in bits of each row of weights [..., S]; 0 for a row that is masked completely."""
    bits: Tensor = torch.special.entr(weights.float()).sum(-1) / math.log(2)
    return bits


def attention_entropy(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, Tensor]:
    """The mean entropy of every head [L, H] in bits, under "encoder", "decoder" and "cross"."""
    maps = record_attention(model, tokens, source=source, debug=debug)
    return {name: entropy(weights).mean((1, 3)) for name, weights in maps.items()}


def attention_rollout(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> Rollout:
    """Attention multiplied through all layers, with equal weight for attention and the residual path.

    tokens: ids [T] or [B, T]; for an encoder-decoder the target, with `source` the source ids.
    debug: also check that recording does not change the output.
    """
    return compute_rollout(record_attention(model, tokens, source=source, debug=debug))


def compute_rollout(maps: dict[str, Tensor]) -> Rollout:
    """The rollout of attention weights [L, B, H, T, S]."""
    encoder = _roll_out(maps["encoder"]) if "encoder" in maps else None
    if "decoder" not in maps:
        return Rollout(encoder=encoder)
    if encoder is None or "cross" not in maps:
        return Rollout(decoder=_roll_out(maps["decoder"]))
    own = _identity(maps["decoder"])
    from_source = torch.zeros_like(maps["cross"][0].float().mean(1))
    for weights, cross_weights in zip(maps["decoder"], maps["cross"], strict=True):
        layer = _with_residual(weights)
        own, from_source = layer @ own, layer @ from_source
        own, from_source = own / 2, from_source / 2 + cross_weights.float().mean(1) @ encoder / 2
    return Rollout(encoder, own, from_source)


def _roll_out(maps: Tensor) -> Tensor:
    rollout = _identity(maps)
    for weights in maps:
        rollout = _with_residual(weights) @ rollout
    return rollout


def _with_residual(weights: Tensor) -> Tensor:
    """½ (Ā + I) of [B, H, T, T]."""
    mean = weights.float().mean(1)
    return (mean + torch.eye(mean.shape[-1], device=mean.device)) / 2


def _identity(maps: Tensor) -> Tensor:
    return torch.eye(maps.shape[-1], device=maps.device).expand(maps.shape[1], -1, -1)
