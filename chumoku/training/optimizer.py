"""Optimizers: how a gradient g changes a weight w, at learning rate r.

    sgd     w ← w − r·v,                       v = μ v + g                          with momentum μ
    adamw   w ← w − r (m̂ / (√v̂ + ε) + λ w),    m, v: running means of g and g²      λ for matrices only
    muon    w ← w − r (orthogonal(v) + λ w)    for the matrices inside blocks; adamw for the rest

The updates are PyTorch's. `Optimizer` assigns each parameter to its group and stores the state by parameter name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chumoku.errors import UsageError
from chumoku.nn.tap import matches
from chumoku.training.settings import OptimizerSettings

# Matrices decay; biases, norm gains and position tables do not.
NOT_DECAYING = (
    "**.{bias,gamma,beta,up_bias,gate_bias,down_bias}",
    "**.{position,segment,relative,relative_bias}.table",
)
MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq", "step"), "SGD": ("momentum_buffer",), "Muon": ("momentum_buffer",)}


def decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and not any(matches(pattern, name) for pattern in NOT_DECAYING)


def uses_muon(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates this parameter: matrices inside blocks, but not routers and stacked (3-d) experts."""
    return parameter.ndim == 2 and decays(name, parameter) and ".blocks." in name and "router." not in name


class Optimizer:
    """One or two of PyTorch's optimizers over the named parameters of a model."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings) -> None:
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.parameters = list(parameters.values())
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._inner = _build(parameters, settings)

    def step(self, rate: float, *, skip: Tensor | None = None) -> None:
        """Update the parameters with learning rate `rate`, or leave everything as it is if `skip` is 1.0.

        AdamW's fused kernel reads `skip` on the device, so that a GPU does not wait for the CPU to look at it.
        """
        for inner in self._inner:
            for group in inner.param_groups:
                group["lr"] = rate
            if isinstance(inner, torch.optim.AdamW):
                inner.found_inf = skip  # type: ignore[attr-defined]
                inner.step()
            elif skip is None or not skip.item():
                inner.step()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def grad_norm(self) -> Tensor:
        """The norm of the gradient of all parameters."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        found = torch.nn.utils.get_total_norm(gradients)
        return found.full_tensor() if hasattr(found, "full_tensor") else found

    def unscale_and_clip(self, norm: Tensor, max_norm: float, loss_scale: float = 1.0) -> None:
        """Divide gradients by the loss scale, then clip them to `max_norm`; `norm` is their unscaled norm."""
        if loss_scale != 1:
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, 1 / loss_scale)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)

    def state(self) -> dict[str, Tensor]:
        """All optimizer state by parameter and kind, as in `decoder.norm.gamma:exp_avg`."""
        return {
            f"{self._names[id(parameter)]}:{kind}": value
            for inner in self._inner
            for parameter, memory in inner.state.items()
            for kind, value in memory.items()
            if isinstance(value, Tensor)
        }

    def empty_state(self) -> dict[str, Tensor]:
        """Meta tensors with the name, shape and type of everything that `state` can return."""
        found = {}
        for inner in self._inner:
            for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
                moment = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                step = torch.empty((), dtype=torch.float32, device="meta")
                for kind in MOMENTS[type(inner).__name__]:
                    found[f"{self._names[id(parameter)]}:{kind}"] = step if kind == "step" else moment
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, kind = key.rpartition(":")
            by_name.setdefault(name, {})[kind] = value
        for inner in self._inner:
            ordered = [parameter for group in inner.param_groups for parameter in group["params"]]
            found = {
                number: by_name[self._names[id(parameter)]]
                for number, parameter in enumerate(ordered)
                if self._names[id(parameter)] in by_name
            }
            inner.load_state_dict({"state": found, "param_groups": inner.state_dict()["param_groups"]})


def _build(parameters: Mapping[str, Tensor], settings: OptimizerSettings) -> list[torch.optim.Optimizer]:
    if settings.kind == "sgd":
        return [torch.optim.SGD(_groups(parameters, settings), lr=0.0, momentum=settings.momentum)]
    if settings.kind == "adamw":
        return [_adamw(parameters, settings)]
    if not hasattr(torch.optim, "Muon"):
        raise UsageError(f"muon needs PyTorch 2.9 or newer; this is {torch.__version__}. Choose adamw, or update.")
    matrices = {name: parameter for name, parameter in parameters.items() if uses_muon(name, parameter)}
    rest = {name: parameter for name, parameter in parameters.items() if name not in matrices}
    muon = torch.optim.Muon(
        list(matrices.values()),
        lr=0.0,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        adjust_lr_fn="match_rms_adamw",  # one learning rate for both optimizers
    )
    return [muon, _adamw(rest, settings)]


def _adamw(parameters: Mapping[str, Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(_groups(parameters, settings), lr=0.0, betas=betas, eps=settings.epsilon, fused=True)


def _groups(parameters: Mapping[str, Tensor], settings: OptimizerSettings) -> list[dict[str, object]]:
    groups = []
    for decaying in (True, False):
        group = [parameter for name, parameter in parameters.items() if decays(name, parameter) == decaying]
        if group:
            groups.append({"params": group, "weight_decay": settings.weight_decay if decaying else 0.0})
    return groups
