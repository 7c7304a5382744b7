"""Adapters on a model: put on, taken off, switched, in place.

    attach(model, LoraSettings(rank=8), name="soseki")     the base is frozen; what is new trains
    switch(model, "poems")                                 another of those attached; None: the base alone
    detach(model)                                          the model as it was, the same modules and tensors

What has to be remembered about a model lies on that model, so that copies and threads have their own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import AddressError, UsageError
from chumoku.lora.settings import LoraSettings
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted, LowRank, matrix_of
from chumoku.nn.quantized import QuantisedLogits, Quantized
from chumoku.nn.tap import matches

Matrix = nn.Linear | Quantized | Adapted
STATE_ATTRIBUTE = "_lora"  # the model's attribute
FROZEN_BYTES, TRAINED_BYTES = 12, 16  # a gradient and Adam's two moments of 4 bytes; and the weight itself


@dataclass
class LoraState:
    """What a model with adapters remembers: which parameters trained before, and what merging has put aside."""

    trained: dict[str, bool]
    aside: dict[str, tuple[Adapted, nn.Parameter | None]] = field(default_factory=dict)


class MemorySavings(NamedTuple):
    """Training an adapter instead of the whole model."""

    trained: int  # numbers of the active adapter
    total: int  # numbers of the base
    bytes_saved: int  # 12 for each number of the base, less 16 for each of the adapter's


def attach(model: Model, settings: LoraSettings, *, name: str = "default", seed: int = 0) -> None:
    """Put a fresh adapter on every matrix that the settings name, and make it the active one."""
    generator = torch.Generator().manual_seed(seed)
    modules, fresh = adaptable_matrices(model), {}
    for path in match_matrices(model, settings.patterns):
        base = base_layer(modules[path])
        fresh[path] = new_low_rank(
            base,
            settings.rank,
            alpha=settings.alpha,
            stabilised=settings.stabilised,
            dropout=settings.dropout,
            magnitude=settings.dora,
        ).fill(matrix_of(base), generator)
    add_adapters(model, fresh, name=name)


def new_low_rank(base: nn.Linear | Quantized, rank: int, *, alpha: float, **choices: bool | float) -> LowRank:
    """Zeros for this matrix, where it is; never in less than 32 bits, which small steps would be lost in."""
    weight = base.weight if isinstance(base, nn.Linear) else base.stored[0]
    floats = weight.dtype if weight.is_floating_point() else torch.float32
    dtype = torch.promote_types(floats, torch.float32)
    sizes = (base.in_features, base.out_features, rank)
    return LowRank(*sizes, alpha=alpha, dtype=dtype, device=weight.device, **choices)  # type: ignore[arg-type]


def add_adapters(model: Model, adapters: Mapping[str, LowRank], *, name: str) -> None:
    """Put adapters beside the matrices at these addresses, under one name, and make them the active ones."""
    kept = get_state(model)
    if kept is not None and kept.aside:
        raise UsageError("The adapters of this model are merged into it. Call unmerge first.")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or hasattr(nn.ModuleDict(), name):
        raise UsageError(
            f"An adapter cannot be called '{name[:80]}': use up to 64 letters, digits, - and _, as in poems."
        )
    if name in list_adapters(model):
        raise UsageError(f"This model already has an adapter '{name}'. Give another name, or detach it first.")
    if kept is None:
        trained = {address: parameter.requires_grad for address, parameter in model.named_parameters()}
        setattr(model, STATE_ATTRIBUTE, LoraState(trained))
        model.requires_grad_(False)
    modules = adaptable_matrices(model)
    for path, adapter in adapters.items():
        module = modules[path]
        if not isinstance(module, Adapted):
            module = Adapted(module)
            replace_module(model, path, module)
        module.adapters[name] = adapter.train(module.training)
    set_adapter(model, name)


def detach(model: Model) -> None:
    """Take every adapter off: the base as it was, and what trained before trains again."""
    kept = get_state(model)
    if kept is None:
        return
    for path, (module, weight) in kept.aside.items():
        restore_weight(module, weight)
        replace_module(model, path, module.base)
    for path, module in _find_adapted(model).items():
        replace_module(model, path, module.base)
    delattr(model, STATE_ATTRIBUTE)
    for address, parameter in model.named_parameters():
        parameter.requires_grad_(kept.trained.get(address, True))


def set_adapter(model: Model, name: str | None) -> None:
    """Have this adapter heard and trained, and no other; None: the base alone."""
    kept = get_state(model)
    if kept is not None and kept.aside:
        raise UsageError("The adapters of this model are merged into it. Call unmerge first.")
    known = list_adapters(model)
    if name is not None and name not in known:
        there = f"It has {', '.join(known)}." if known else "It has none."
        raise UsageError(f"This model has no adapter '{name[:80]}'. {there}")
    for module in _find_adapted(model).values():
        module.active = name
        for other, adapter in module.adapters.items():
            adapter.requires_grad_(other == name)


def list_adapters(model: Model) -> list[str]:
    """The adapters attached."""
    return list(dict.fromkeys(name for module in adapted_modules(model).values() for name in module.adapters))


def active_adapter(model: Model) -> str | None:
    """The adapter that is heard."""
    return next((module.active for module in adapted_modules(model).values()), None)


def trainable_parameters(model: Model) -> dict[str, nn.Parameter]:
    """What an optimizer is to be given, by its name in the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapter_tensors(model: Model, name: str | None = None) -> dict[str, Tensor]:
    """An adapter's tensors: a, b and, for DoRA, magnitude, behind each address. The active one's, if none is named."""
    return {
        f"{path}.{key}": parameter.detach()
        for path, adapter in get_adapters(model, name).items()
        for key, parameter in adapter.named_parameters()
    }


def memory_savings(model: Model) -> MemorySavings:
    """How many numbers train, and the memory that leaves free in training with Adam in 32 bits."""
    name, total = active_adapter(model), count(model.config).parameters
    trained = 0 if name is None else sum(tensor.numel() for tensor in adapter_tensors(model, name).values())
    return MemorySavings(trained, total, FROZEN_BYTES * total - TRAINED_BYTES * trained)


def adaptable_matrices(model: Model) -> dict[str, Matrix]:
    """Every matrix that an adapter can stand beside, by its address."""
    found: dict[str, Matrix] = {}
    for path, module in model.named_modules():
        inside = path.rpartition(".")[0] in found  # an Adapted's own base
        if isinstance(module, Matrix) and not isinstance(module, QuantisedLogits) and not inside:
            found[path] = module
    return found


def match_matrices(model: Model, patterns: tuple[str, ...]) -> list[str]:
    """The addresses of the matrices that any pattern fits; a pattern that fits none is an error that says why."""
    known, wanted = list(adaptable_matrices(model)), set()
    others = {path for path, _ in (*model.named_modules(), *model.named_parameters())} - set(known)
    for pattern in patterns:
        fitting = [path for path in known if matches(pattern, path)]
        if not fitting:
            raise AddressError(_no_match_message(pattern, known, others))
        wanted.update(fitting)
    return [path for path in known if path in wanted]


def _no_match_message(pattern: str, known: list[str], others: set[str]) -> str:
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if any(matches(pattern, path) for path in others):
        return (
            f"{pattern} names no matrix that an adapter can stand beside; embedding tables, norms, logits and experts "
            f"have none.{hint}"
        )
    return f"No matrix of this model has an address like {pattern}.{hint}"


def adapted_modules(model: Model) -> dict[str, Adapted]:
    """Every matrix with adapters by its address, merged or not."""
    kept = get_state(model)
    if kept is not None and kept.aside:
        return {path: module for path, (module, _) in kept.aside.items()}
    return _find_adapted(model)


def get_adapters(model: Model, name: str | None = None) -> dict[str, LowRank]:
    """One adapter's parts by their addresses."""
    name = active_adapter(model) or "" if name is None else name
    found = {path: module.adapters[name] for path, module in adapted_modules(model).items() if name in module.adapters}
    if not found:
        there = ", ".join(list_adapters(model)) or "none"
        raise UsageError(f"This model has no adapter '{name}' to take; it has {there}. Attach one first.")
    return found  # type: ignore[return-value]


def replace_module(model: Model, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def restore_weight(module: Adapted, weight: nn.Parameter | None) -> None:
    """Give a base its own weight back, and bring it where the base is now."""
    if isinstance(module.base, nn.Linear) and weight is not None:
        weight.data = weight.data.to(module.base.weight.device)
        module.base.weight = weight


def _find_adapted(model: Model) -> dict[str, Adapted]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}


def base_layer(module: Matrix) -> nn.Linear | Quantized:
    return module.base if isinstance(module, Adapted) else module


def get_state(model: Model) -> LoraState | None:
    return vars(model).get(STATE_ATTRIBUTE)
