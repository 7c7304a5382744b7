"""Every combination ("cell") of kind × position × norm × placement × feed-forward × kv_heads, as small models.

Every kind × position × kv_heads also has a cell with an attention window, and every kind has cells with the other
placements and with each of EXTRAS. COVERING is enough of them that any three values of the product occur together in
one of its cells; `make laws` (CHUMOKU_CELLS=all in the environment) makes it all of them.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import NamedTuple

import torch

from chumoku.models.build import build
from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.models.model import Model

KINDS = ("encoder", "decoder", "encoder-decoder")
POSITIONS = ("sinusoidal", "learned", "relative", "relative_bias", "alibi", "rotary", "none")
NORMS = ("layer", "rms", "batch")
PLACEMENTS = ("pre", "post")
FEEDFORWARDS = ("relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu", "experts")
KV_HEADS = (3, 1)

VOCABULARY, WIDTH, HEADS, HIDDEN, CONTEXT = 29, 30, 3, 37, 23
WINDOW = 3  # shorter than the lengths of the tests
YARN = RotarySettings(scaling="yarn", factor=4.0, high=8.0, original=16, attention_factor=1.3)
LONGROPE = RotarySettings(
    scaling="longrope", factor=3.0, original=7, short_factors=[1.0] * 5, long_factors=[1.0, 1.3, 2.0, 3.7, 5.0]
)
EXTRAS: dict[str, dict[str, object]] = {
    "": {},
    "head norms": {"head_width": 14, "query_key_norm": "head", "attention_bias": "qkv", "bias": False},
    "joint norms": {"query_key_norm": "all", "attention_scale": 0.4, "attention_bias": "none"},
    "caps": {"score_cap": 3.0, "logit_cap": 5.0, "scale_logits": True},
    "unit offset": {"norm": "rms", "norm_unit_offset": True, "query_key_norm": "head"},
    "parallel": {"parallel": True, "rotary": RotarySettings(share=0.6)},
    "shared norm": {"parallel": True, "shared_norm": True, "output_bias": True},
    "shared expert": {"experts": 5, "shared_expert_width": 41, "normalize_experts": False},
    "full attention": {
        "attention_window": WINDOW,
        "full_attention_every": 2,
        "rotary": RotarySettings(local_base=77.0),
    },
    "no positions": {"no_position_every": 2},
    "yarn": {"rotary": YARN},
    "longrope": {"rotary": LONGROPE},
    "full attention first": {
        **{"attention_window": WINDOW, "full_attention_every": 2, "full_attention_first": True},
        **{"embedding_norm": True, "first_norm": False, "norm_bias": False, "norm": "layer", "placement": "pre"},
    },
}

LLAMA: dict[str, object] = {"norm": "rms", "bias": False, "pairing": "half", "kv_heads": 1}
GEMMA = {**LLAMA, "placement": "sandwich", "norm_unit_offset": True, "feedforward": "geglu_tanh", "attention_window": 5}
# Keys of public families together, of decoders unless they name another kind.
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {**LLAMA, "head_width": 64, "query_key_norm": "head"},
    "smollm3": {**LLAMA, "no_position_every": 3},
    "phi": {**LLAMA, "rotary": RotarySettings(share=0.75)},
    "phi-2": {
        **{"parallel": True, "shared_norm": True, "output_bias": True, "feedforward": "gelu_tanh", "pairing": "half"},
        "rotary": RotarySettings(share=0.5),
    },
    "gpt-neox": {"parallel": True, "rotary": RotarySettings(share=0.25), "feedforward": "gelu", "pairing": "half"},
    "gemma2": {
        **{**GEMMA, "head_width": 64, "scale_embedding": True, "full_attention_every": 2},
        **{"attention_scale": 0.11, "score_cap": 2.0, "logit_cap": 3.0},
    },
    "gemma3": {
        **{**GEMMA, "query_key_norm": "head", "full_attention_every": 3},
        "rotary": RotarySettings(base=1009.0, local_base=77.0),
    },
    "olmo2": {**LLAMA, "placement": "output", "query_key_norm": "all"},
    "ettin": {
        **{"norm_bias": False, "first_norm": False, "embedding_norm": True, "bias": False, "feedforward": "geglu"},
        **{"attention_window": 5, "full_attention_every": 3, "full_attention_first": True},
        "rotary": RotarySettings(local_base=77.0),
    },
    "bloom": {"position": "alibi", "embedding_norm": True, "feedforward": "gelu_tanh"},
    "t5": {
        **{"kind": "encoder-decoder", "position": "relative_bias", "norm": "rms", "bias": False},
        **{"feedforward": "relu", "head_width": 64, "attention_scale": 1.0, "scale_logits": True},
    },
    "no family": {
        **{"kind": "encoder-decoder", "position": "relative", "query_key_norm": "all", "placement": "sandwich"},
        **{"attention_window": 5, "score_cap": 2.0, "kv_heads": 1},
    },
}


class Cell(NamedTuple):
    kind: str
    position: str = "rotary"
    norm: str = "layer"
    placement: str = "pre"
    feedforward: str = "gelu"
    kv_heads: int = 3
    window: int | None = None
    extra: str = ""

    def __str__(self) -> str:
        return "-".join(
            [*map(str, self[:6] if self.window is None else self[:7]), *([self.extra] if self.extra else [])]
        )

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
        return ModelConfig(**{**values, **EXTRAS[self.extra], **changes})  # type: ignore[arg-type]


PRODUCT = [Cell(*values) for values in itertools.product(KINDS, POSITIONS, NORMS, PLACEMENTS, FEEDFORWARDS, KV_HEADS)]
OTHERS = [
    Cell(kind, position, kv_heads=kv_heads, window=WINDOW)
    for kind, position, kv_heads in itertools.product(KINDS, POSITIONS, KV_HEADS)
]
OTHERS += [
    Cell(kind, kv_heads=1, norm="rms" if extra == "unit offset" else "layer", extra=extra)
    for kind, extra in itertools.product(KINDS, EXTRAS)
    if extra and not (extra in ("parallel", "shared norm") and kind == "encoder-decoder")
]
OTHERS += [
    Cell(kind, norm=norm, placement=placement, feedforward="geglu_tanh")
    for kind, norm, placement in itertools.product(KINDS, NORMS, ("output", "sandwich"))
]
CELLS = PRODUCT + OTHERS


def triples_of(cell: Cell) -> set[object]:
    """Return every three values of the product that this cell has together."""
    return set(itertools.combinations(enumerate(cell[:6]), 3))


def cover_triples(cells: list[Cell]) -> list[Cell]:
    """Return few of these cells that have the triples of all: first those with the most triples not yet seen."""
    triples, seen, kept = {cell: triples_of(cell) for cell in cells}, set[object](), []
    for count in range(20, 0, -1):
        for cell in cells:
            if len(triples[cell] - seen) >= count:
                kept.append(cell)
                seen |= triples[cell]
    return sorted(kept)


COVERING = CELLS if os.environ.get("CHUMOKU_CELLS") == "all" else cover_triples(PRODUCT) + OTHERS


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
