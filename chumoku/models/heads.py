"""Heads: from the last vectors to what is asked for.

next token     logits = h Eᵀ                            (nn.Logits)
masked token   logits = norm(f(h W + b)) Eᵀ + b         BERT's
vector         mean over real tokens, or the first one; divided by its length when normalized
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.models.config import ModelConfig
from chumoku.models.stack import make_norm
from chumoku.nn.embeddings import Logits
from chumoku.nn.feedforward import ACTIVATIONS


def make_logits(config: ModelConfig) -> Logits:
    return Logits(config.vocabulary, config.width, tied=config.tie_output, bias=config.output_bias)


class MaskedHead(nn.Module):
    """Guesses the token behind each mask."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.feedforward].function
        self.transform = nn.Linear(config.width, config.width, bias=config.bias)
        self.norm = make_norm(config)
        self.logits = make_logits(config)

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        return self.logits(self.norm(self.activation(self.transform(hidden))), table)  # type: ignore[no-any-return]


def pool(hidden: Tensor, mask: Tensor | None, *, kind: str, normalize: bool) -> Tensor:
    """One vector [B, D] for each row of [B, T, D]; `mask` [B, T] is True where a token is real."""
    if kind == "first":
        vector = hidden[:, 0]
    elif mask is None:
        vector = hidden.mean(1)
    else:
        real = mask[..., None].to(hidden.dtype)
        vector = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
    return F.normalize(vector, dim=-1) if normalize else vector
