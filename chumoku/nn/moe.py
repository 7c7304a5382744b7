"""Mixture of experts: many feed-forwards, each token uses a few.

    MoE(x) = Σᵢ gᵢ(x) · FFNᵢ(x)        g = softmax(x W_router), kept for the k largest and made to sum to 1

`plain` is that sum over all experts, and runs inside `chumoku.plain()`. Otherwise `forward` sorts the tokens by
expert and multiplies each group once, so the cost is that of k experts; every token reaches all of its k, none is
dropped.

    balance   E · Σᵢ fᵢ Pᵢ            fᵢ share of tokens sent to i, Pᵢ mean probability of i; 1 when even
    z         mean (log Σᵢ exp zᵢ)²   keeps the router's numbers z small
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.nn.feedforward import ACTIVATIONS, Kind
from chumoku.nn.plain import plain_formulas
from chumoku.nn.tap import is_recorded, tap


class RouterLosses:
    """Collects the routers' losses of one forward pass; `real` [B, T] says which tokens count."""

    def __init__(self, real: Tensor | None = None) -> None:
        self.real = real
        self._balance: list[Tensor] = []
        self._z: list[Tensor] = []

    def for_tokens(self, real: Tensor | None) -> RouterLosses:
        """The same collection, for a stack with other real tokens."""
        other = RouterLosses(real)
        other._balance, other._z = self._balance, self._z
        return other

    def add(self, logits: Tensor, chosen: Tensor) -> None:
        """One router's logits [N, E] and choices [N, k]."""
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
    """E feed-forwards of one kind, their weights stacked."""

    def __init__(self, experts: int, width: int, hidden: int, *, kind: Kind, bias: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[kind]
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.gate = nn.Parameter(torch.empty(experts, hidden, width)) if self.activation.gated else None
        self.down = nn.Parameter(torch.empty(experts, width, hidden))
        self.up_bias = nn.Parameter(torch.empty(experts, hidden)) if bias else None
        self.gate_bias = nn.Parameter(torch.empty(experts, hidden)) if bias and self.activation.gated else None
        self.down_bias = nn.Parameter(torch.empty(experts, width)) if bias else None

    def hidden(self, x: Tensor, expert: Tensor, ends: Tensor) -> Tensor:
        up = grouped_linear(x, self.up, self.up_bias, expert, ends)
        if self.gate is None:
            return self.activation.function(up)
        return self.activation.function(grouped_linear(x, self.gate, self.gate_bias, expert, ends)) * up

    def output(self, hidden: Tensor, expert: Tensor, ends: Tensor) -> Tensor:
        return grouped_linear(hidden, self.down, self.down_bias, expert, ends)

    def apply_expert(self, index: int, x: Tensor) -> Tensor:
        """FFNᵢ(x), for the plain sum."""
        return self._linear(index, self.expert_hidden(index, x), self.down, self.down_bias)

    def expert_hidden(self, index: int, x: Tensor) -> Tensor:
        up = self._linear(index, x, self.up, self.up_bias)
        if self.gate is None:
            return self.activation.function(up)
        return self.activation.function(self._linear(index, x, self.gate, self.gate_bias)) * up

    @staticmethod
    def _linear(index: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight[index], None if bias is None else bias[index])


class MixtureOfExperts(nn.Module):
    TAPS = ("router", "chosen", "hidden", "output")

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        experts: int,
        per_token: int,
        kind: Kind = "swiglu",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, hidden, kind=kind, bias=bias)

    def forward(self, x: Tensor, losses: RouterLosses | None = None) -> Tensor:
        tokens = x.flatten(0, -2)
        logits, weights, chosen = self._route(tokens)
        if losses is not None:
            losses.add(logits, chosen)
        if plain_formulas():
            output = self.plain(x)
            if is_recorded(self, *self.TAPS):
                self._show(x, logits, chosen, self._hidden(tokens, chosen))
        else:
            grouped, hidden, order = self._grouped(tokens, weights, chosen)
            output = grouped.view_as(x)
            if is_recorded(self, *self.TAPS):
                self._show(x, logits, chosen, _ungroup(hidden, order))
        return tap(self, "output", output)

    def plain(self, x: Tensor) -> Tensor:
        """Σᵢ gᵢ(x) · FFNᵢ(x) over all experts, gᵢ = 0 for those not chosen."""
        logits, weights, chosen = self._route(x.flatten(0, -2))
        gates = torch.zeros_like(logits).scatter(-1, chosen, weights).view(*x.shape[:-1], -1)
        return torch.stack(
            [gates[..., i, None].to(x.dtype) * self.experts.apply_expert(i, x) for i in range(gates.shape[-1])]
        ).sum(0)

    def _grouped(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same sum [N, D] over the chosen experts alone; also their hidden rows, and how these are sorted."""
        order = chosen.flatten().argsort(stable=True)
        expert = chosen.flatten()[order]
        ends = (expert[:, None] == torch.arange(len(self.experts.up), device=tokens.device)).sum(0).cumsum(0)
        hidden = self.experts.hidden(tokens[order // self.per_token], expert, ends)
        answers = _ungroup(self.experts.output(hidden, expert, ends), order).view(-1, self.per_token, tokens.shape[-1])
        return (answers * weights[..., None].to(answers.dtype)).sum(1), hidden, order

    def _hidden(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """What the chosen experts hold inside [N, k, F], for those who record the plain sum."""
        every = torch.stack([self.experts.expert_hidden(i, tokens) for i in range(len(self.experts.up))], dim=1)
        return every.gather(1, chosen[..., None].expand(-1, -1, every.shape[-1]))

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The router's numbers [N, E], and weights and indices [N, k] of the experts chosen."""
        logits = self.router(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = logits.softmax(-1).topk(self.per_token)
        return logits, weights / weights.sum(-1, keepdim=True), chosen

    def _show(self, x: Tensor, logits: Tensor, chosen: Tensor, hidden: Tensor) -> None:
        batch = x.shape[:-1]
        tap(self, "router", logits.softmax(-1).view(*batch, -1))
        tap(self, "chosen", chosen.view(*batch, -1))
        tap(self, "hidden", hidden.view(*batch, self.per_token, -1))


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: Tensor, ends: Tensor) -> Tensor:
    """x[n] weight[expert[n]]ᵀ + bias[expert[n]] for rows sorted by expert; expert e's rows end before ends[e]."""
    if torch.is_autocast_enabled(x.device.type):
        lower = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(lower), weight.to(lower)
    if _kernel_takes(x, weight):
        y = F.grouped_mm(x, weight.transpose(-2, -1), offs=ends.to(torch.int32))
    else:
        groups = x.tensor_split(ends[:-1].cpu())
        y = torch.cat([F.linear(group, one) for group, one in zip(groups, weight, strict=True)])
    return y if bias is None else y + bias[expert]


def _kernel_takes(x: Tensor, weight: Tensor) -> bool:
    """PyTorch's grouped product (2.10 and newer) wants rows of whole 16-byte units; on a CPU the loop is as good."""
    unit = 16 // x.element_size()
    return (
        x.device.type == "cuda"
        and x.dtype == torch.bfloat16 == weight.dtype
        and hasattr(F, "grouped_mm")
        and weight.shape[-1] % unit == 0
        and weight.shape[-2] % unit == 0
    )


def _ungroup(grouped: Tensor, order: Tensor) -> Tensor:
    """Rows back in the order before sorting."""
    return torch.empty_like(grouped).index_copy(0, order, grouped)
