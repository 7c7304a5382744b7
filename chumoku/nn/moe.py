"""Mixture of experts: many feed-forwards, of which each token uses a few.

    MoE(x) = Σᵢ gᵢ(x) · FFNᵢ(x)        g = softmax(x W_router); only the k largest, scaled to sum to 1 if `normalize`
             + sigmoid(x w) · FFN(x)   with a shared expert, which every token uses

`plain` computes that sum over all experts; `forward` uses it inside `chumoku.plain()`. Otherwise `forward` sorts the
tokens by expert and multiplies each group once, at the cost of k experts per token. No token is dropped.

    balance   E · Σᵢ fᵢ Pᵢ            fᵢ share of tokens sent to i, Pᵢ mean probability of i; 1 when balanced
    z         mean (log Σᵢ exp zᵢ)²   keeps the router's logits z small
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.nn.feedforward import ACTIVATIONS, FeedForward, Kind
from chumoku.nn.plain import plain_formulas
from chumoku.nn.tap import is_recorded, tap


class RouterLosses:
    """Collects the router losses of one forward pass; tokens where `real` [B, T] is False do not count."""

    def __init__(self, real: Tensor | None = None) -> None:
        self.real = real
        self._balance: list[Tensor] = []
        self._z: list[Tensor] = []

    def for_tokens(self, real: Tensor | None) -> RouterLosses:
        """Return a view that adds to the same losses, for a stack with other padding."""
        other = RouterLosses(real)
        other._balance, other._z = self._balance, self._z
        return other

    def add(self, logits: Tensor, chosen: Tensor) -> None:
        """Add the losses of one router, from its logits [N, E] and the indices of the chosen experts [N, k]."""
        experts = logits.shape[-1]
        real = torch.ones_like(logits[:, 0]) if self.real is None else self.real.flatten().to(logits.dtype)
        tokens = real.sum().clamp(min=1)
        sent = F.one_hot(chosen, experts).to(logits.dtype).mean(1)
        share = (sent * real[:, None]).sum(0) / tokens
        probability = (logits.softmax(-1) * real[:, None]).sum(0) / tokens
        self._balance.append(experts * (share * probability).sum())
        self._z.append((logits.logsumexp(-1).square() * real).sum() / tokens)

    @property
    def balance(self) -> Tensor:
        return torch.stack(self._balance).mean()

    @property
    def z(self) -> Tensor:
        return torch.stack(self._z).mean()


class Experts(nn.Module):
    """E feed-forwards of the same kind, with stacked weights. `expert` and `ends` are those of `grouped_linear`."""

    def __init__(self, experts: int, width: int, hidden: int, *, kind: Kind, bias: bool) -> None:
        super().__init__()
        self.kind, self.activation = kind, ACTIVATIONS[kind]
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.gate = nn.Parameter(torch.empty(experts, hidden, width)) if self.activation.gated else None
        self.down = nn.Parameter(torch.empty(experts, width, hidden))
        self.up_bias = nn.Parameter(torch.empty(experts, hidden)) if bias else None
        self.gate_bias = nn.Parameter(torch.empty(experts, hidden)) if bias and self.activation.gated else None
        self.down_bias = nn.Parameter(torch.empty(experts, width)) if bias else None

    def hidden(self, x: Tensor, expert: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the activation and the hidden units."""
        up = grouped_linear(x, self.up, self.up_bias, expert, ends)
        if self.gate is None:
            return up, self.activation.function(up)
        gate = grouped_linear(x, self.gate, self.gate_bias, expert, ends)
        return gate, self.activation.function(gate) * up

    def output(self, hidden: Tensor, expert: Tensor, ends: Tensor) -> Tensor:
        return grouped_linear(hidden, self.down, self.down_bias, expert, ends)

    def apply_expert(self, index: int, x: Tensor) -> Tensor:
        """Return FFNᵢ(x) for expert i = `index`."""
        return self._linear(index, self.expert_hidden(index, x)[1], self.down, self.down_bias)

    def expert_hidden(self, index: int, x: Tensor) -> tuple[Tensor, Tensor]:
        up = self._linear(index, x, self.up, self.up_bias)
        if self.gate is None:
            return up, self.activation.function(up)
        gate = self._linear(index, x, self.gate, self.gate_bias)
        return gate, self.activation.function(gate) * up

    @staticmethod
    def _linear(index: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight[index], None if bias is None else bias[index])

    def extra_repr(self) -> str:
        experts, hidden, width = self.up.shape
        return f"experts={experts}, width={width}, hidden={hidden}, kind={self.kind}, bias={self.up_bias is not None}"


class MixtureOfExperts(nn.Module):
    """A router and `experts` feed-forwards of inner width `hidden`; each token uses `per_token` of them.

    shared: the inner width of the shared expert, or None without one.
    """

    TAPS = ("router", "chosen", "pre_activation", "hidden", "output")

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        experts: int,
        per_token: int,
        kind: Kind = "swiglu",
        bias: bool = False,
        normalize: bool = True,
        shared: int | None = None,
    ) -> None:
        super().__init__()
        self.per_token, self.normalize = per_token, normalize
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, hidden, kind=kind, bias=bias)
        self.shared = None if shared is None else FeedForward(width, shared, kind=kind, bias=bias)
        self.shared_router = None if shared is None else nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, losses: RouterLosses | None = None) -> Tensor:
        tokens = x.flatten(0, -2)
        logits, weights, chosen = self._route(tokens)
        if losses is not None:
            losses.add(logits, chosen)
        if plain_formulas():
            output = self.plain(x)
            if is_recorded(self, *self.TAPS):
                self._record(x, logits, chosen, *self._chosen_hidden(tokens, chosen))
        else:
            grouped, hidden, order = self._compute_grouped(tokens, weights, chosen)
            output = self._add_shared(grouped.view_as(x), x)
            if is_recorded(self, *self.TAPS):
                self._record(x, logits, chosen, *(_ungroup(part, order) for part in hidden))
        return tap(self, "output", output)

    def plain(self, x: Tensor) -> Tensor:
        """Return MoE(x) as a sum over all experts, with gᵢ = 0 for experts that are not chosen."""
        logits, weights, chosen = self._route(x.flatten(0, -2))
        gates = torch.zeros_like(logits).scatter(-1, chosen, weights).view(*x.shape[:-1], -1)
        parts = [gates[..., i, None].to(x.dtype) * self.experts.apply_expert(i, x) for i in range(gates.shape[-1])]
        return self._add_shared(torch.stack(parts).sum(0), x)

    def _add_shared(self, output: Tensor, x: Tensor) -> Tensor:
        if self.shared is None or self.shared_router is None:
            return output
        return output + self.shared_router(x).sigmoid() * self.shared(x)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"per_token={self.per_token}, normalize={self.normalize}"

    def _compute_grouped(
        self, tokens: Tensor, weights: Tensor, chosen: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Return the sum [N, D] over the chosen experts, their `hidden` sorted by expert, and that order."""
        order = chosen.flatten().argsort(stable=True)
        expert = chosen.flatten()[order]
        ends = (expert[:, None] == torch.arange(len(self.experts.up), device=tokens.device)).sum(0).cumsum(0)
        hidden = self.experts.hidden(tokens[order // self.per_token], expert, ends)
        outputs = _ungroup(self.experts.output(hidden[1], expert, ends), order).view(
            -1, self.per_token, tokens.shape[-1]
        )
        return (outputs * weights[..., None].to(outputs.dtype)).sum(1), hidden, order

    def _chosen_hidden(self, tokens: Tensor, chosen: Tensor) -> Iterator[Tensor]:
        """Return pre-activations and hidden units of the chosen experts [N, k, F], to record them inside `plain()`."""
        pairs = [self.experts.expert_hidden(i, tokens) for i in range(len(self.experts.up))]
        for parts in zip(*pairs, strict=True):
            every = torch.stack(parts, dim=1)
            yield every.gather(1, chosen[..., None].expand(-1, -1, every.shape[-1]))

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the router logits [N, E], and the weights and indices [N, k] of the chosen experts."""
        logits = self.router(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = logits.softmax(-1).topk(self.per_token)
        return logits, weights / weights.sum(-1, keepdim=True) if self.normalize else weights, chosen

    def _record(self, x: Tensor, logits: Tensor, chosen: Tensor, pre_activation: Tensor, hidden: Tensor) -> None:
        batch = x.shape[:-1]
        tap(self, "router", logits.softmax(-1).view(*batch, -1))
        tap(self, "chosen", chosen.view(*batch, -1))
        tap(self, "pre_activation", pre_activation.view(*batch, self.per_token, -1))
        tap(self, "hidden", hidden.view(*batch, self.per_token, -1))


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: Tensor, ends: Tensor) -> Tensor:
    """Return x[n] weight[expert[n]]ᵀ + bias[expert[n]] for rows sorted by expert; rows of expert e end at ends[e]."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if can_group(x, weight):
        y = F.grouped_mm(x, weight.transpose(-2, -1), offs=ends.to(torch.int32))
    else:
        groups = x.tensor_split(ends[:-1].cpu())
        y = torch.cat([F.linear(group, one) for group, one in zip(groups, weight, strict=True)])
    return y if bias is None else y + bias[expert]


def can_group(x: Tensor, weight: Tensor) -> bool:
    """Whether all experts can be multiplied at once, without the host knowing which tokens each has.

    F.grouped_mm (PyTorch 2.10 and newer) needs rows of a multiple of 16 bytes; on a CPU the loop is as fast.
    """
    unit = 16 // x.element_size()
    return (
        x.device.type == "cuda"
        and x.dtype == torch.bfloat16 == weight.dtype
        and hasattr(F, "grouped_mm")
        and weight.shape[-1] % unit == 0
        and weight.shape[-2] % unit == 0
    )


def _ungroup(grouped: Tensor, order: Tensor) -> Tensor:
    """Return rows in the order they had before sorting."""
    return torch.empty_like(grouped).index_copy(0, order, grouped)
