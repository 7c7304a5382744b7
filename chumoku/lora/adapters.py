"""Attach adapters to a model, select one, and detach them, in place.

    attach(model, LoraSettings(rank=8), name="soseki")     freezes the base; the new adapter is active and trains
    set_adapter(model, "poems")                            makes another attached adapter active; None: none of them
    detach(model)                                          restores the original modules and tensors

The state is an attribute of the model, so that each copy has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.errors import AddressError, UsageError, did_you_mean
from chumoku.lora.settings import LoraSettings
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.nn.lora import Adapted, LowRank, dense_weight
from chumoku.nn.modules import replace_module
from chumoku.nn.quantized import QuantizedLinear, QuantizedLogits
from chumoku.nn.tap import matches

Matrix = nn.Linear | QuantizedLinear | Adapted
STATE_ATTRIBUTE = "_lora"
FROZEN_BYTES, TRAINED_BYTES = 12, 16  # gradient and Adam's two moments, 4 bytes each; with the weight itself


@dataclass
class LoraState:
    """Which parameters trained before adapters were attached, and what `merge` replaced."""

    required_grad: dict[str, bool]
    merged: dict[str, tuple[Adapted, nn.Parameter | None]] = field(default_factory=dict)


class MemorySavings(NamedTuple):
    """What training an adapter saves, compared with training the full model."""

    trained: int  # parameters of the active adapter
    total: int  # parameters of the base
    bytes_saved: int  # 12 for each parameter of the base, minus 16 for each of the adapter


def attach(model: Model, settings: LoraSettings, *, name: str = "default", seed: int = 0) -> None:
    """Attach a new adapter to the matrices that the settings select, make it active and freeze the base."""
    generator = torch.Generator().manual_seed(seed)
    modules, adapters = adaptable_matrices(model), {}
    for path in match_matrices(model, settings.patterns):
        base = base_layer(modules[path])
        adapters[path] = new_low_rank(
            base,
            settings.rank,
            alpha=settings.alpha,
            stabilized=settings.stabilized,
            dropout=settings.dropout,
            magnitude=settings.dora,
        ).initialize(dense_weight(base), generator)
    add_adapters(model, adapters, name=name)


def new_low_rank(base: nn.Linear | QuantizedLinear, rank: int, *, alpha: float, **options: bool | float) -> LowRank:
    """An adapter of zeros for this matrix, on its device, in at least 32 bits so that small updates are not lost."""
    weight = base.weight if isinstance(base, nn.Linear) else base.stored_weight[0]
    floats = weight.dtype if weight.is_floating_point() else torch.float32
    dtype = torch.promote_types(floats, torch.float32)
    sizes = (base.in_features, base.out_features, rank)
    return LowRank(*sizes, alpha=alpha, dtype=dtype, device=weight.device, **options)  # type: ignore[arg-type]


def add_adapters(model: Model, adapters: Mapping[str, LowRank], *, name: str) -> None:
    """Attach adapters to the matrices at these addresses under one name, and make it active."""
    state = get_state(model)
    if state is not None and state.merged:
        raise UsageError("The adapters of this model are merged into it. Call unmerge first.")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or hasattr(nn.ModuleDict(), name):
        raise UsageError(
            f"'{name[:80]}' is not a valid adapter name. Use up to 64 letters, digits, - and _, as in poems."
        )
    if name in list_adapters(model):
        raise UsageError(f"This model already has an adapter '{name}'. Choose another name, or detach it first.")
    if state is None:
        required_grad = {address: parameter.requires_grad for address, parameter in model.named_parameters()}
        setattr(model, STATE_ATTRIBUTE, LoraState(required_grad))
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
    """Remove all adapters, and restore the base model and which of its parameters train."""
    state = get_state(model)
    if state is None:
        return
    for path, (module, weight) in state.merged.items():
        restore_weight(module, weight)
        replace_module(model, path, module.base)
    for path, module in _find_adapted(model).items():
        replace_module(model, path, module.base)
    delattr(model, STATE_ATTRIBUTE)
    for address, parameter in model.named_parameters():
        parameter.requires_grad_(state.required_grad.get(address, True))


def set_adapter(model: Model, name: str | None) -> None:
    """Make one adapter active and trainable, and no other; None: use the base model alone."""
    state = get_state(model)
    if state is not None and state.merged:
        raise UsageError("The adapters of this model are merged into it. Call unmerge first.")
    known = list_adapters(model)
    if name is not None and name not in known:
        hint = f"It has {', '.join(known)}." if known else "It has no adapters."
        raise UsageError(f"This model has no adapter '{name[:80]}'. {hint}")
    for module in _find_adapted(model).values():
        module.active = name
        for other, adapter in module.adapters.items():
            adapter.requires_grad_(other == name)


@contextmanager
def without_adapter(model: Model) -> Iterator[None]:
    """Use the base model alone inside the block, for example as the reference of a preference objective."""
    active = [(module, module.active) for module in _find_adapted(model).values()]
    for module, _ in active:
        module.active = None
    try:
        yield
    finally:
        for module, name in active:
            module.active = name


def list_adapters(model: Model) -> list[str]:
    """The names of all attached adapters."""
    return list(dict.fromkeys(name for module in adapted_modules(model).values() for name in module.adapters))


def active_adapter(model: Model) -> str | None:
    """The name of the active adapter, or None."""
    return next((module.active for module in adapted_modules(model).values()), None)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to give to an optimizer, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapter_tensors(model: Model, name: str | None = None) -> dict[str, Tensor]:
    """An adapter's tensors as ADDRESS.a, .b and, for DoRA, .magnitude; by default of the active adapter."""
    return {
        f"{path}.{key}": parameter.detach()
        for path, adapter in get_adapters(model, name).items()
        for key, parameter in adapter.named_parameters()
    }


def memory_savings(model: Model) -> MemorySavings:
    """How many parameters train, and how much memory this saves when training with Adam in float32."""
    name, total = active_adapter(model), count(model.config).parameters
    trained = 0 if name is None else sum(tensor.numel() for tensor in adapter_tensors(model, name).values())
    return MemorySavings(trained, total, FROZEN_BYTES * total - TRAINED_BYTES * trained)


def adaptable_matrices(model: Model) -> dict[str, Matrix]:
    """All matrices that can have an adapter, by address."""
    found: dict[str, Matrix] = {}
    for path, module in model.named_modules():
        inside = path.rpartition(".")[0] in found  # an Adapted's own base
        if isinstance(module, Matrix) and not isinstance(module, QuantizedLogits) and not inside:
            found[path] = module
    return found


def match_matrices(model: Model, patterns: tuple[str, ...]) -> list[str]:
    """The addresses of the matrices that match any pattern; a pattern without a match is an error."""
    known, selected = list(adaptable_matrices(model)), set()
    others = {path for path, _ in (*model.named_modules(), *model.named_parameters())} - set(known)
    for pattern in patterns:
        matching = [path for path in known if matches(pattern, path)]
        if not matching:
            raise AddressError(_no_match_message(pattern, known, others))
        selected.update(matching)
    return [path for path in known if path in selected]


def _no_match_message(pattern: str, known: list[str], others: set[str]) -> str:
    hint = did_you_mean(pattern, known, f"A matrix is called, for example, {known[0]}.", cutoff=0.3)
    if any(matches(pattern, path) for path in others):
        return (
            f"{pattern} matches no matrix that can have an adapter; embedding tables, norms, logits and experts "
            f"cannot. {hint}"
        )
    return f"{pattern} matches no matrix of this model. {hint}"


def adapted_modules(model: Model) -> dict[str, Adapted]:
    """All matrices with adapters by address, merged or not."""
    state = get_state(model)
    if state is not None and state.merged:
        return {path: module for path, (module, _) in state.merged.items()}
    return _find_adapted(model)


def get_adapters(model: Model, name: str | None = None) -> dict[str, LowRank]:
    """One adapter's low-rank matrices by address; by default of the active adapter."""
    name = active_adapter(model) or "" if name is None else name
    found = {path: module.adapters[name] for path, module in adapted_modules(model).items() if name in module.adapters}
    if not found:
        known = ", ".join(list_adapters(model)) or "(none)"
        raise UsageError(f"This model has no adapter '{name}'; it has {known}. Attach one first.")
    return found  # type: ignore[return-value]


def restore_weight(module: Adapted, weight: nn.Parameter | None) -> None:
    """Restore the weight that `merge` replaced, on the base's current device."""
    if isinstance(module.base, nn.Linear) and weight is not None:
        weight.data = weight.data.to(module.base.weight.device)
        module.base.weight = weight


def _find_adapted(model: Model) -> dict[str, Adapted]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}


def base_layer(module: Matrix) -> nn.Linear | QuantizedLinear:
    return module.base if isinstance(module, Adapted) else module


def get_state(model: Model) -> LoraState | None:
    return vars(model).get(STATE_ATTRIBUTE)
