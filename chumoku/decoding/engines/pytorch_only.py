"""Config keys whose other values only the PyTorch engine supports; the fast engines leave such models to it."""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "placement": ("pre", "post"),
    "parallel": (False,),
    "shared_norm": (False,),
    "norm_unit_offset": (False,),
    "query_key_norm": ("none",),
    "attention_scale": (None,),
    "score_cap": (None,),
    "logit_cap": (None,),
    "scale_logits": (False,),
    "norm_bias": (True,),
    "first_norm": (True,),
    "no_position_every": (None,),
}


def find_pytorch_only(config: ModelConfig) -> str | None:
    """A setting of this config that only the PyTorch engine supports, such as "parallel = True", if it has one."""
    for key, supported in SUPPORTED.items():
        if (value := getattr(config, key)) not in supported:
            return f"{key} = {value!r}"
    if config.heads * config.key_width != config.width:
        return f"head_width = {config.key_width}"
    return None if config.rotary.share == 1 else f"rotary.share = {config.rotary.share}"
