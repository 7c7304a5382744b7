"""Attention maps, and what can be said of them in one number or one picture.

    entropy   −Σⱼ aᵢⱼ log₂ aᵢⱼ                  bits: 0 looks at one place, log₂ S at all S alike; 2^entropy places
    rollout   R ← ½ (Ā + I) R                    Ā the mean over heads, half for the path beside (Abnar, Zuidema, 2020)

A decoder that also looks at an encoder holds two of them, of its own places and of the source's, and together they
stay shares of one whole:

    self     R ← ½ (Ā + I) R,   C ← ½ (Ā + I) C
    cross    R ← ½ R,           C ← ½ C + ½ Ā_cross R_encoder
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.models.model import Model
from chumoku.nn.tap import Tape
from chumoku.probe.forward_pass import Tokens, plain, watch

WEIGHTS = "*.blocks.*.{attention,cross_attention}.weights"


class Rollout(NamedTuple):
    """How much of each input token is in each place at the top [B, T, T]; `cross` [B, T, S] of the source's."""

    encoder: Tensor | None = None
    decoder: Tensor | None = None
    cross: Tensor | None = None


def all_weights(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, Tensor]:
    """All maps [L, B, H, T, S], under "encoder", "decoder" and "cross"."""
    _, tape = watch(model, tokens, WEIGHTS, source=source, debug=debug)
    return maps_of(plain(model), tape)


def maps_of(model: Model, tape: Tape) -> dict[str, Tensor]:
    """The maps of a tape: those of all layers, or of the ones it holds."""
    found = {}
    for name, stack, part in (
        ("encoder", "encoder", "attention"),
        ("decoder", "decoder", "attention"),
        ("cross", "decoder", "cross_attention"),
    ):
        depth = len(getattr(model, stack).blocks) if hasattr(model, stack) else 0
        places = (f"{stack}.blocks.{layer}.{part}.weights" for layer in range(depth))
        if there := [tape[place] for place in places if place in tape]:
            found[name] = torch.stack(there)
    return found


def entropy(weights: Tensor) -> Tensor:
    """The entropy in bits of each row of weights [..., S]; a row that may see nothing has none."""
    surprise: Tensor = torch.special.entr(weights.float()).sum(-1) / math.log(2)
    return surprise


def attention_entropy(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> dict[str, Tensor]:
    """The mean entropy of every head [L, H] in bits, under "encoder", "decoder" and "cross"."""
    maps = all_weights(model, tokens, source=source, debug=debug)
    return {name: entropy(weights).mean((1, 3)) for name, weights in maps.items()}


def attention_rollout(
    model: Model, tokens: Tokens, *, source: Tokens | None = None, debug: bool | None = None
) -> Rollout:
    """Attention followed through all layers, the path beside it counted as much as what it adds."""
    return rolled(all_weights(model, tokens, source=source, debug=debug))


def rolled(maps: dict[str, Tensor]) -> Rollout:
    """The rollout of maps [L, B, H, T, S]."""
    encoder = _through(maps["encoder"]) if "encoder" in maps else None
    if "decoder" not in maps:
        return Rollout(encoder=encoder)
    if encoder is None or "cross" not in maps:
        return Rollout(decoder=_through(maps["decoder"]))
    own = _identity(maps["decoder"])
    of_source = torch.zeros_like(maps["cross"][0].float().mean(1))
    for looks, crosses in zip(maps["decoder"], maps["cross"], strict=True):
        own, of_source = _half(looks) @ own, _half(looks) @ of_source
        own, of_source = own / 2, of_source / 2 + crosses.float().mean(1) @ encoder / 2
    return Rollout(encoder, own, of_source)


def _through(maps: Tensor) -> Tensor:
    whole = _identity(maps)
    for weights in maps:
        whole = _half(weights) @ whole
    return whole


def _half(weights: Tensor) -> Tensor:
    """½ (Ā + I) of [B, H, T, T]."""
    mean = weights.float().mean(1)
    return (mean + torch.eye(mean.shape[-1], device=mean.device)) / 2


def _identity(maps: Tensor) -> Tensor:
    return torch.eye(maps.shape[-1], device=maps.device).expand(maps.shape[1], -1, -1)
