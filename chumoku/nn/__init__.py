"""The building blocks of a Transformer. They need only torch, and take sizes and modules instead of a config.

Shape letters: B batch, T target length, S source length, D model width, H heads, G key/value heads, K head width,
F feed-forward width, V vocabulary, E experts, L layers, C cache capacity.
"""

import chumoku.nn.after_fork  # noqa: F401 - registers itself
from chumoku.nn.attention import Attention, AttentionContext, attend, attend_fused
from chumoku.nn.block import Block
from chumoku.nn.cache import Cache, KeyValue
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.html_view import show_mask, show_matrix
from chumoku.nn.moe import MixtureOfExperts, RouterLosses
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm
from chumoku.nn.positions import (
    AlibiPositions,
    LearnedPositions,
    RelativeBias,
    RelativePositions,
    RotaryPositions,
    RotaryScaling,
    SinusoidalPositions,
    sinusoidal,
)
from chumoku.nn.tap import addresses, record

__all__ = [
    "AlibiPositions",
    "Attention",
    "AttentionContext",
    "BatchNorm",
    "Block",
    "Cache",
    "Embedding",
    "FeedForward",
    "KeyValue",
    "LayerNorm",
    "LearnedPositions",
    "Logits",
    "MixtureOfExperts",
    "RMSNorm",
    "RelativeBias",
    "RelativePositions",
    "RotaryPositions",
    "RotaryScaling",
    "RouterLosses",
    "SinusoidalPositions",
    "addresses",
    "attend",
    "attend_fused",
    "record",
    "show_mask",
    "show_matrix",
    "sinusoidal",
]
