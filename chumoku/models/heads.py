"""Output heads: hidden vectors → logits or one vector per text.

next token     logits = h Eᵀ                            (nn.Logits)
masked token   logits = norm(f(h W + b)) Eᵀ + b         as in BERT
vector         mean over all tokens except padding, or the first token; optionally scaled to length 1
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
    """Hidden vectors [B, T, D] → logits [B, T, V] of the masked tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.feedforward].function
        self.transform = nn.Linear(config.width, config.width, bias=config.bias)
        self.norm = make_norm(config)
        self.logits = make_logits(config)

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        return self.logits(self.norm(self.activation(self.transform(hidden))), table)  # type: ignore[no-any-return]


def pool(hidden: Tensor, mask: Tensor | None, *, kind: str, normalize: bool) -> Tensor:
    """Return one vector per row, [B, T, D] → [B, D]; `mask` [B, T] is False for padding. `kind`: "mean" or "first"."""
    if kind == "first":
        vector = hidden[:, 0]
    elif mask is None:
        vector = hidden.mean(1)
    else:
        real = mask[..., None].to(hidden.dtype)
        vector = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
    return F.normalize(vector, dim=-1) if normalize else vector
