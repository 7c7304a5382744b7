"""Phi-3 and Phi-4: Llama with one matrix for query, key and value, one for gate and up, and a sliding window.

Models for long texts have longrope: other rotary frequencies for texts of more than the original length. transformers
chooses them for each text, chumoku once for a model, by its context.
"""

from __future__ import annotations

from typing import Any

from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, read_number
from chumoku.weights.families.llama import Variant, joined_rows, make_family
from chumoku.weights.families.rotary import ORIGINAL, write_rotary
from chumoku.weights.families.window import read_window


def read(values: Values) -> dict[str, Any]:
    dropout = {
        "embedding": read_number(values, "embd_pdrop", 0.0),
        "attention": read_number(values, "attention_dropout", 0.0),
        "sublayer": read_number(values, "resid_pdrop", 0.0),
    }
    return {**read_window(values, "Phi-3", local=[True]), "dropout": dropout}


def write(config: ModelConfig) -> dict[str, Any]:
    dropout = {"embd_pdrop": config.dropout.embedding, "resid_pdrop": config.dropout.sublayer}
    rope = {**write_rotary(config.rotary), "partial_rotary_factor": config.rotary.share}
    original = {ORIGINAL: config.rotary.original} if config.rotary.scaling == "longrope" else {}
    return {"sliding_window": config.attention_window, **dropout, **original, "rope_parameters": rope}


PHI3 = make_family(
    Variant(
        "phi3",
        "Phi-3",
        "Phi3ForCausalLM",
        {"attention_window": None, "rotary.scaling": ("none", "longrope"), "rotary.share": None},
        read,
        write,
        defaults={"rms_norm_eps": 1e-5, ORIGINAL: 4096},
        rows=joined_rows,
        partial=True,
    )
)
