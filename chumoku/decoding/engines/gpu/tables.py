"""What attention needs besides queries, keys and values: tables of positions, and how scores are computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.positions import RotaryPositions, alibi_slopes


class ScoreBias(NamedTuple):
    """What is added to the scores of keys for their distance (the kinds are those of `attention`)."""

    kind: str
    numbers: Tensor

    @property
    def clip(self) -> int:
        """The largest distance with a vector of its own."""
        return len(self.numbers) // 2 if self.kind == "vectors" else 0


class Scoring(NamedTuple):
    """How a layer computes scores from queries and keys."""

    scale: float
    window: int | None = None
    bias: ScoreBias | None = None
    cap: float | None = None


class Tables(NamedTuple):
    """Tensors that depend only on positions, for all positions of the cache.

    Places and rotations have one position more: a graph also computes rows that are not in use, which may be full.
    """

    places: Tensor | None  # [C + 1, D] learned or sinusoidal
    rotation: tuple[Tensor, Tensor, str] | None  # cos and sin [C + 1, R / 2], and the pairing
    local_rotation: tuple[Tensor, Tensor, str] | None  # of layers with a window
    bias: ScoreBias | None  # what is added to the scores, unless each layer has its own vectors

    @classmethod
    def of(cls, model: DecoderModel | EncoderDecoderModel, capacity: int) -> Tables:
        stack = model.decoder
        positions = torch.arange(capacity, device=model.device)
        places = None if stack.position is None else one_more(stack.position(positions, capacity, model.dtype))

        def rotation(rotary: RotaryPositions | None) -> tuple[Tensor, Tensor, str] | None:
            if rotary is None:
                return None
            cos, sin, pairing = rotary(positions, torch.float32)
            return one_more(cos), one_more(sin), pairing

        bias = None
        if stack.alibi is not None:
            bias = ScoreBias("alibi", alibi_slopes(model.config.heads, device=model.device))
        elif stack.relative_bias is not None:
            numbers = stack.relative_bias(positions[None], torch.float32)[0, :, 0]  # of all distances [H, C]
            bias = ScoreBias("table", numbers.contiguous())
        return cls(places, rotation(stack.rotary), rotation(stack.local_rotary or stack.rotary), bias)


def one_more(table: Tensor) -> Tensor:
    """A table [C, n] with a row of zeros at its end."""
    return F.pad(table, (0, 0, 0, 1))


def read_scoring(config: ModelConfig) -> Scoring:
    """The scores of cross-attention, which depend on no position."""
    scale = config.key_width**-0.5 if config.attention_scale is None else config.attention_scale
    return Scoring(scale, cap=config.score_cap)
