"""Every combination ("cell") of kind × position × norm × placement × feed-forward × kv_heads, as small models.

Every kind × position × kv_heads also has a cell with an attention window.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch

from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model

KINDS = ("encoder", "decoder", "encoder-decoder")
POSITIONS = ("sinusoidal", "learned", "relative", "relative_bias", "alibi", "rotary", "none")
NORMS = ("layer", "rms", "batch")
PLACEMENTS = ("pre", "post")
FEEDFORWARDS = ("relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu", "experts")
KV_HEADS = (3, 1)

VOCABULARY, WIDTH, HEADS, HIDDEN, CONTEXT = 29, 30, 3, 37, 23
WINDOW = 3  # shorter than the lengths of the tests


class Cell(NamedTuple):
    kind: str
    position: str = "rotary"
    norm: str = "layer"
    placement: str = "pre"
    feedforward: str = "gelu"
    kv_heads: int = 3
    window: int | None = None

    def __str__(self) -> str:
        return "-".join(map(str, self[:6] if self.window is None else self))

    def config(self, **changes: object) -> ModelConfig:
        expert = self.feedforward == "experts"
        values: dict[str, object] = {
            "kind": self.kind,
            "vocabulary": VOCABULARY,
            "context": CONTEXT,
            "width": WIDTH,
            "layers": 2,
            "heads": HEADS,
            "kv_heads": self.kv_heads,
            "feedforward": "swiglu" if expert else self.feedforward,
            "feedforward_width": HIDDEN,
            "experts": 5 if expert else 0,
            "position": self.position,
            "relative_clip": 4,
            "relative_buckets": 7,
            "relative_max_distance": 11,
            "attention_window": self.window,
            "norm": self.norm,
            "placement": self.placement,
            "initialization": "xavier",
        }
        return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


CELLS = [Cell(*values) for values in itertools.product(KINDS, POSITIONS, NORMS, PLACEMENTS, FEEDFORWARDS, KV_HEADS)]
CELLS += [
    Cell(kind, position, kv_heads=kv_heads, window=WINDOW)
    for kind, position, kv_heads in itertools.product(KINDS, POSITIONS, KV_HEADS)
]


@functools.lru_cache(maxsize=16)
def model_of(cell: Cell, dtype: torch.dtype = torch.float64, **changes: object) -> Model:
    """Return a model of this cell with random parameters and running averages, none of them 0 or 1."""
    model = build(cell.config(**changes), dtype=dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.ndim == 1:
                noise = torch.rand(tensor.shape, generator=generator, dtype=dtype)
                tensor.copy_(0.5 + noise if name.endswith(("gamma", "variance")) else noise - 0.5)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
