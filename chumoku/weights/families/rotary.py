"""Rotary positions in config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chumoku.errors import UsageError
from chumoku.models.config import RotarySettings
from chumoku.weights.families.family import Values, read_number


def read_rotary(values: Values, *, base: float = 10000.0) -> dict[str, Any]:
    """Our rotary settings; `base` is the family's default."""
    parameters = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping) or not isinstance(scaling, Mapping):
        raise UsageError("The config's rope_parameters must be an object.")
    outer = {"rope_theta": base, **values}
    own: dict[str, Any] = {key: outer[key] for key in ("rope_theta", "partial_rotary_factor") if key in outer}
    original = {} if values.get(ORIGINAL) is None else {ORIGINAL: values[ORIGINAL]}  # has priority in transformers
    return read_scaling({**own, **scaling, **parameters, **original}, length=values.get("max_position_embeddings"))


def read_scaling(rope: Values, *, length: Any) -> dict[str, Any]:
    """The settings of one `rope_parameters` object; `length` is the model's context."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    rotary = {"base": read_number(rope, "rope_theta")}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        rotary["share"] = read_number(rope, "partial_rotary_factor")
    match kind:
        case "default":
            return rotary
        case "linear":
            return {**rotary, "scaling": "linear", "factor": read_number(rope, "factor")}
        case "llama3":
            return {
                **rotary,
                "scaling": "llama3",
                "factor": read_number(rope, "factor"),
                "low": read_number(rope, "low_freq_factor"),
                "high": read_number(rope, "high_freq_factor"),
                "original": read_number(rope, "original_max_position_embeddings"),
            }
        case "yarn":
            return {
                **rotary,
                "scaling": "yarn",
                "factor": read_number(rope, "factor"),
                "low": read_number({"beta_slow": rope.get("beta_slow") or 1.0}, "beta_slow"),
                "high": read_number({"beta_fast": rope.get("beta_fast") or 32.0}, "beta_fast"),
                "original": read_number({"original_max_position_embeddings": length, **rope}, ORIGINAL),
                **_read_attention_factor(rope),
            }
        case "longrope" | "su":  # "su" in older files
            return {**rotary, **_read_longrope(rope, length=length)}
    raise UsageError(
        f"Rotary positions of type '{str(kind)[:40]}' are not supported; linear, llama3, yarn and longrope are."
    )


ORIGINAL = "original_max_position_embeddings"


def _read_attention_factor(rope: Values) -> dict[str, float]:
    if rope.get("truncate", True) is not True:
        raise UsageError("Yarn positions with truncate = false are not supported.")
    if rope.get("attention_factor") is not None:
        return {"attention_factor": read_number(rope, "attention_factor")}
    if not rope.get("mscale") or not rope.get("mscale_all_dim"):
        return {}
    growth = 0.1 * math.log(max(1, read_number(rope, "factor")))
    one, all_dims = (growth * read_number(rope, key) + 1 for key in ("mscale", "mscale_all_dim"))
    return {"attention_factor": one / (all_dims or 1)}


def _read_longrope(rope: Values, *, length: Any) -> dict[str, Any]:
    original = read_number({ORIGINAL: length, **rope}, ORIGINAL)
    factors = {"short_factors": _read_numbers(rope, "short_factor"), "long_factors": _read_numbers(rope, "long_factor")}
    known = rope.get("factor") is not None
    factor = read_number(rope, "factor") if known else read_number({"context": length}, "context") / max(1, original)
    return {
        "scaling": "longrope",
        "factor": max(1.0, factor),
        "original": original,
        **factors,
        **({} if rope.get("attention_factor") is None else {"attention_factor": read_number(rope, "attention_factor")}),
    }


def _read_numbers(rope: Values, key: str) -> list[float]:
    numbers = rope.get(key)
    if not isinstance(numbers, list) or not all(isinstance(number, int | float) for number in numbers):
        raise UsageError(f"The {key} of longrope must be a list of numbers.")
    return list(map(float, numbers))


def write_rotary(rotary: RotarySettings) -> dict[str, Any]:
    """The `rope_parameters` object of these settings."""
    values: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    if rotary.scaling == "none":
        return values
    values |= {"rope_type": rotary.scaling, "factor": rotary.factor}
    if rotary.scaling == "llama3":
        values |= {"low_freq_factor": rotary.low, "high_freq_factor": rotary.high, ORIGINAL: rotary.original}
    if rotary.scaling == "longrope":
        factors = {"short_factor": rotary.short_factors, "long_factor": rotary.long_factors}
        values |= {**{key: list(numbers or ()) for key, numbers in factors.items()}, ORIGINAL: rotary.original}
    if rotary.scaling == "yarn":
        values |= {"beta_slow": rotary.low, "beta_fast": rotary.high, ORIGINAL: rotary.original}
    if rotary.attention_factor is not None:
        values |= {"attention_factor": rotary.attention_factor}
    return values
