"""Values of config keys that each fast engine supports; models with other values are left to the PyTorch engine."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal

from chumoku.models.config import ModelConfig

# An engine supports every value of a key that is not named here.
SUPPORTED: dict[Literal["native", "gpu"], dict[str, tuple[Any, ...]]] = {
    "native": {"labels": (None,), "experts": (0,)},
    "gpu": {
        "labels": (None,),
        "norm": ("layer", "rms"),
    },
}


def find_unsupported(engine: Literal["native", "gpu"], config: ModelConfig) -> str | None:
    """A setting of this config that this engine does not support, such as "parallel = True", if it has one."""
    for key, supported in SUPPORTED[engine].items():
        if (value := attrgetter(key)(config)) not in supported:
            return f"{key} = {value!r}"
    return None
