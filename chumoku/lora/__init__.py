"""LoRA: small adapters beside a model's matrices, trained, saved, switched and merged.

settings   the keys of [lora]                       adapters   on, off, switched; what trains
merging    into the matrices and out again          peft       PEFT's files, both ways, by the names in `layout`

The names below are imported when first used, so that settings cost no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chumoku.lora.adapter_config import Described, describe
    from chumoku.lora.adapters import Saving, active, attach, detach, names, saving, switch, tensors, trainable
    from chumoku.lora.layout import RowLike
    from chumoku.lora.merge_weights import merge, merged, unmerge
    from chumoku.lora.peft import load, save
    from chumoku.lora.settings import LoraSettings

_HOME = {
    **dict.fromkeys(
        ("Saving", "active", "attach", "detach", "names", "saving", "switch", "tensors", "trainable"), "adapters"
    ),
    **dict.fromkeys(("merge", "merged", "unmerge"), "merge_weights"),
    **dict.fromkeys(("Described", "describe"), "adapter_config"),
    **dict.fromkeys(("load", "save"), "peft"),
    "LoraSettings": "settings",
    "RowLike": "layout",
}
__all__ = [
    "Described",
    "LoraSettings",
    "RowLike",
    "Saving",
    "active",
    "attach",
    "describe",
    "detach",
    "load",
    "merge",
    "merged",
    "names",
    "save",
    "saving",
    "switch",
    "tensors",
    "trainable",
    "unmerge",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'chumoku.lora' has no attribute '{name}'; it offers {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"chumoku.lora.{_HOME[name]}"), name)
