"""LoRA: train small low-rank adapters instead of a model's own matrices.

settings         the keys of [lora]                 adapters        attach, detach and select adapters
merge_weights    merge into the matrices, undo      peft, layout    read and write PEFT's files

Names are imported on first use, so that reading settings does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chumoku.lora.adapter_config import AdapterConfig, read_adapter_config
    from chumoku.lora.adapters import (
        MemorySavings,
        active_adapter,
        adapter_tensors,
        attach,
        detach,
        list_adapters,
        memory_savings,
        set_adapter,
        trainable_parameters,
        without_adapter,
    )
    from chumoku.lora.layout import RowLike
    from chumoku.lora.merge_weights import merge, merged_copy, unmerge
    from chumoku.lora.peft import load, read_adapter, save
    from chumoku.lora.settings import LoraSettings

_MODULES = {
    **dict.fromkeys(("MemorySavings", "active_adapter", "adapter_tensors", "attach", "detach"), "adapters"),
    **dict.fromkeys(("list_adapters", "memory_savings", "set_adapter", "trainable_parameters"), "adapters"),
    "without_adapter": "adapters",
    **dict.fromkeys(("merge", "merged_copy", "unmerge"), "merge_weights"),
    **dict.fromkeys(("AdapterConfig", "read_adapter_config"), "adapter_config"),
    **dict.fromkeys(("load", "read_adapter", "save"), "peft"),
    "LoraSettings": "settings",
    "RowLike": "layout",
}
__all__ = [
    "AdapterConfig",
    "LoraSettings",
    "MemorySavings",
    "RowLike",
    "active_adapter",
    "adapter_tensors",
    "attach",
    "detach",
    "list_adapters",
    "load",
    "memory_savings",
    "merge",
    "merged_copy",
    "read_adapter",
    "read_adapter_config",
    "save",
    "set_adapter",
    "trainable_parameters",
    "unmerge",
    "without_adapter",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'chumoku.lora' has no attribute '{name}'; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(f"chumoku.lora.{_MODULES[name]}"), name)
