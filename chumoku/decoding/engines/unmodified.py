"""Check that a model is exactly what its config builds. Only then may an engine compute from its weights alone.

An engine that does not call the model's modules would silently ignore changes to them. So it accepts a model only if
every module has the class and settings that the config gives it (a linear layer may be quantized), no module has a
hook or an own method, and no function or method of the model's code was replaced. Dropout is not compared, because
decoding has none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from chumoku.models import heads, model, stack
from chumoku.models.build import CLASSES
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn import (
    attention,
    block,
    cache,
    embeddings,
    feedforward,
    gguf_blocks,
    masks,
    moe,
    norms,
    positions,
    quantized,
    soft_cap,
)
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.modules import named_parts
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear, QuantizedLogits

SOURCES = (
    *(attention, block, cache, embeddings, feedforward, gguf_blocks, heads, masks, model, moe, norms, positions),
    *(quantized, soft_cap, stack),
)
QUANTIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: QuantizedLinear,
    Embedding: QuantizedEmbedding,
    Logits: QuantizedLogits,
}
IGNORED = {"training", "dropout", "config"}


class Part(NamedTuple):
    """The class and settings that a config gives to one module."""

    kind: type[nn.Module]
    settings: Mapping[str, Any]


def modification(model: Model) -> str | None:
    """What differs first, such as "attend was replaced" or a result of `changed_module`; None if nothing does."""
    if replaced := next((name for place, name, code in _CODE if place.get(name) is not code), None):
        return f"{replaced} was replaced"
    return changed_module(model)


def changed_module(model: Model) -> str | None:
    """What differs first, such as "decoder.norm has a forward hook"; None if nothing does."""
    if _hooks(vars(torch_module)["_global_forward_hooks"]) or _hooks(vars(torch_module)["_global_forward_pre_hooks"]):
        return "a forward hook for all modules is registered"
    expected, found = parts(model.config), dict(named_parts(model))
    for path, module in found.items():
        if path not in expected:
            return f"it has a module {path} that its config does not have"
        if difference := _difference(path or "the model", module, expected[path]):
            return difference
    missing = next((path for path in expected if path not in found), None)
    return None if missing is None else f"it has no module {missing}"


@functools.lru_cache(maxsize=64)
def parts(config: ModelConfig) -> dict[str, Part]:
    """The modules that a config builds, by path."""
    with torch.device("meta"):
        built = CLASSES[config.kind](config)
    return {path: Part(type(module), _settings(module)) for path, module in built.named_modules(remove_duplicate=False)}


def _difference(name: str, module: nn.Module, part: Part) -> str | None:
    if type(module) is not part.kind and type(module) is not QUANTIZED.get(part.kind):
        return f"{name} is of class {type(module).__name__}, not {part.kind.__name__}"
    if _hooks(module._forward_hooks) or _hooks(module._forward_pre_hooks):
        return f"{name} has a forward hook"
    for key, value in vars(module).items():
        if key[0] == "_" or key in IGNORED:
            continue
        if key not in part.settings:
            if hasattr(part.kind, key):
                return f"{name} has a {key} of its own"
        elif value != part.settings[key]:
            return f"{name} has {key} = {value!r}, not {part.settings[key]!r}"
    return None


def _settings(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name[0] != "_" and name not in IGNORED}


def _hooks(hooks: Mapping[int, Any]) -> bool:
    """Whether any hook may change a result; those of `record` (which compare) and `interruptible` do not."""
    return bool(hooks) and any(not getattr(hook, "changes_nothing", False) for hook in hooks.values())


def _code() -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """Every function of the parts and every method of their classes: where it is defined, its name, and itself."""
    for source in SOURCES:
        for name, value in _own(source):
            yield vars(source), name, value
            if inspect.isclass(value):
                yield from (
                    (vars(value), method, code) for method, code in vars(value).items() if inspect.isfunction(code)
                )


def _own(source: ModuleType) -> list[tuple[str, Any]]:
    own = (inspect.isfunction, inspect.isclass)
    return [
        (name, value)
        for name, value in vars(source).items()
        if any(is_one(value) for is_one in own) and value.__module__ == source.__name__
    ]


_CODE = list(_code())
