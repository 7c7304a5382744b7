"""Output heads: hidden vectors → logits or one vector per text.

next token     logits = h Eᵀ                            (nn.Logits)
masked token   logits = norm(f(h W + b)) Eᵀ + b         as in BERT
vector         mean over all tokens except padding, or the first or last token; optionally scaled to length 1
classes        logits = norm(f(v W₁ + b₁)) W + b, v the vector of the text; W₁ only with classifier_activation f, the
               norm only with classifier_norm
tags           the same of every token's h instead of v
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.models.config import ModelConfig
from chumoku.models.stack import make_norm
from chumoku.nn.dropout import dropout
from chumoku.nn.embeddings import Logits
from chumoku.nn.feedforward import ACTIVATIONS

CLASSIFIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    **{name: ACTIVATIONS[name].function for name in ("relu", "gelu", "gelu_tanh", "silu")},
}


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
        return self.logits(self.before_logits(hidden), table)  # type: ignore[no-any-return]

    def before_logits(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.transform(hidden)))  # type: ignore[no-any-return]


class LabelHead(nn.Module):
    """Hidden vectors [B, T, D] → logits of the classes of each text [B, C], or of the tags of each token [B, T, C]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooling = config.pooling if config.head_kind == "classes" else None
        self.dropout = config.dropout.sublayer
        self.activation = None if config.classifier_activation is None else CLASSIFIERS[config.classifier_activation]
        layer = partial(nn.Linear, config.width)
        self.transform = None if self.activation is None else layer(config.width, bias=config.classifier_bias)
        self.norm = make_norm(config) if config.classifier_norm else None
        self.output = layer(config.label_count, bias=config.label_bias)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` [B, T] is False for padding."""
        if self.pooling is not None:
            hidden = pool(hidden, mask, kind=self.pooling, normalize=False)
        if self.transform is not None and self.activation is not None:
            hidden = self.activation(self.transform(dropout(hidden, self.dropout, self.training)))
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.output(dropout(hidden, self.dropout, self.training))  # type: ignore[no-any-return]


def pool(hidden: Tensor, mask: Tensor | None, *, kind: str, normalize: bool) -> Tensor:
    """Return one vector per row, [B, T, D] → [B, D].

    mask: [B, T], False for padding.
    kind: "mean", "first" or "last".
    """
    if kind == "first":
        vector = hidden[:, 0]
    elif kind == "last" and mask is None:
        vector = hidden[:, -1]
    elif kind == "last" and mask is not None:
        places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
        last = (mask * places).argmax(1)
        vector = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
    elif mask is None:
        vector = hidden.mean(1)
    else:
        real = mask[..., None].to(hidden.dtype)
        vector = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
    return F.normalize(vector, dim=-1) if normalize else vector
