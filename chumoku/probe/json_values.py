"""Numbers for JSON, which has no NaN and no infinities.

finite numbers    six digits       others    "NaN", "Infinity", "-Infinity"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def replace_non_finite(value: Any) -> Any:
    """The same value with NaN and infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: replace_non_finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(each) for each in value]
    return value


def json_number(value: float) -> float | str:
    """Six digits of a number; NaN and infinities as strings."""
    rounded: float | str = replace_non_finite(float(f"{value:.6g}"))
    return rounded


def json_numbers(tensor: Tensor) -> Any:
    """A vector or matrix as (nested) lists of `json_number`s."""
    if tensor.ndim == 1:
        return [json_number(value) for value in tensor.tolist()]
    return [[json_number(value) for value in row] for row in tensor.tolist()]
