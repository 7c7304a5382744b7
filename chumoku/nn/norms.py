"""Normalization layers.

    LayerNorm   γ (x − μ) / √(σ² + ε) + β     μ, σ² over the features of one token; without bias, β = 0
    RMSNorm     γ x / √(mean(x²) + ε)          the same without μ and β; with unit_offset, 1 + γ instead of γ
    BatchNorm   as LayerNorm, but μ, σ² over all tokens of the batch, one pair per feature

The functions are the formulas. The modules call PyTorch's fused kernels; inside `chumoku.plain()` they call the
formulas, in float32 or better as the kernels do. ε is inside the root; some notes divide by σ² or by σ + ε instead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.errors import ShapeError
from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.plain import plain_formulas


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return gamma * (x - mean) / (variance + epsilon).sqrt() + (0 if beta is None else beta)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    return gamma * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, *, moments: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Normalize x with the given `moments` (μ, σ²), or with those of this batch."""
    mean, variance = batch_moments(x) if moments is None else moments
    return gamma * (x - mean) / (variance + epsilon).sqrt() + beta


def batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return μ and σ² of each feature over all tokens of the batch."""
    tokens = x.flatten(0, -2)
    mean = tokens.mean(0)
    return mean, (tokens - mean).square().mean(0)


def upcast(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if it is float64: 16 bits are too few for a mean of squares."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    def __init__(self, width: int, *, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))
        if not bias:
            self.beta = None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        if plain_formulas():
            return layer_norm(upcast(x), self.gamma, self.beta, self.epsilon).to(x.dtype)
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.epsilon)

    def extra_repr(self) -> str:
        return f"{len(self.gamma)}, epsilon={self.epsilon}"


class RMSNorm(nn.Module):
    """RMS norm over the last dimension. With `unit_offset` it multiplies by 1 + γ, and γ starts at 0."""

    def __init__(self, width: int, *, epsilon: float = 1e-5, unit_offset: bool = False) -> None:
        super().__init__()
        self.epsilon, self.unit_offset = epsilon, unit_offset
        self.gamma = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if plain_formulas():
            return rms_norm(upcast(x), self.factor(), self.epsilon).to(x.dtype)
        if self.unit_offset:
            return F.rms_norm(upcast(x), self.gamma.shape, self.factor(), self.epsilon).to(x.dtype)
        if torch.compiler.is_compiling() and torch.is_grad_enabled() and has_kernels(x):
            from chumoku.nn.norm_kernel import rms_norm_rows

            rows: Tensor = rms_norm_rows(x.flatten(0, -2), self.gamma, self.epsilon)[0]
            return rows.view(x.shape)
        return F.rms_norm(x, self.gamma.shape, self.gamma, self.epsilon)

    def factor(self) -> Tensor:
        """Return γ, or 1 + γ in float32 or better: 16 bits would round a small γ away."""
        return 1 + upcast(self.gamma) if self.unit_offset else self.gamma

    def extra_repr(self) -> str:
        return f"{len(self.gamma)}, epsilon={self.epsilon}{', unit_offset' if self.unit_offset else ''}"


class BatchNorm(nn.Module):
    """Batch norm, for comparison. In training it mixes all tokens of the batch, padding included; in evaluation it uses
    running averages."""

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[:-1].numel() < 2:
            raise ShapeError("Batch norm needs at least two tokens in training; this batch has one.")
        if plain_formulas():
            return self._plain(upcast(x)).to(x.dtype)
        tokens = F.batch_norm(
            x.flatten(0, -2),
            self.mean,
            self.variance,
            self.gamma,
            self.beta,
            training=self.training,
            momentum=self.momentum,
            eps=self.epsilon,
        )
        return tokens.view_as(x)

    def _plain(self, x: Tensor) -> Tensor:
        """Compute the formula; in training with the moments of the batch, which also update the running averages."""
        if not self.training:
            return batch_norm(x, self.gamma, self.beta, self.epsilon, moments=(self.mean, self.variance))
        mean, variance = moments = batch_moments(x)
        count = x.shape[:-1].numel()
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean.dtype), self.momentum)
            # The running average holds the unbiased estimate of σ², as in PyTorch: n − 1.
            self.variance.lerp_((variance * (count / (count - 1))).to(self.variance.dtype), self.momentum)
        return batch_norm(x, self.gamma, self.beta, self.epsilon, moments=moments)

    def extra_repr(self) -> str:
        return f"{len(self.gamma)}, epsilon={self.epsilon}, momentum={self.momentum}"
