"""A Python function for each kernel, with its block sizes and grid; for many rows, PyTorch's matrix products.

Those of attention and of its cache are in `launch_attention`.

    rows ≤ FEW_ROWS     the kernel `product` reads each weight once for all rows, with norm and activation fused
    more           norm, PyTorch's product (with dequantized weights), activation

Sizes were tuned on an H200 for a 1.1 B Llama and GPT-2 124M (docs/log.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

from chumoku.decoding.engines.gpu import experts, kernels
from chumoku.decoding.engines.gpu.weights import Matrix, Norm
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.quantized import GROUP, Int4, Int8

PROCESSORS = 132  # multiprocessors of an H200
FEW_ROWS = 2
PART = 4096  # logits compared by one program
EXPERT_ROWS, EXPERT_OUTPUTS = 8, 2  # rows for which experts are computed one by one, and outputs of one program
WIDE = 4096  # a matrix with more inputs has blocks of its own


class Launcher(NamedTuple):
    """Launch options of a device.

    early    a kernel may start while the previous one ends (Hopper and later)
    dp4a     there is an instruction for the products of four bytes (NVIDIA)
    """

    early: bool
    dp4a: bool

    @classmethod
    def on(cls, device: torch.device) -> Launcher:
        nvidia = device.type == "cuda" and torch.version.hip is None
        return cls(nvidia and torch.cuda.get_device_capability(device)[0] >= 9, nvidia)

    def options(self, *, warps: int = 4, first: bool = False) -> dict[str, object]:
        early = self.early and not first
        return {"EARLY": early, "num_warps": warps, **({"launch_pdl": True} if early else {})}


def next_power_of_two(size: float) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, int(-(-size // 1)) - 1).bit_length()


class Tile(NamedTuple):
    """Work of one program of `product`: outputs at a time, threads, and the number of programs for a row."""

    outputs: int
    warps: int
    programs: int


def tile_for(matrix: Matrix, outputs: int, inputs: int, *, gated: bool) -> Tile:
    """The sizes for a matrix, which reads `outputs` rows (twice as many if `gated`) of `inputs` weights.

    A block has at most so many bytes of weights as a program can hold twice, in use and on their way. There are at
    least as many programs as multiprocessors, and at most so many as run at the same time: each computes the norm.
    """
    wide = inputs > WIDE  # then only two programs run on a multiprocessor
    if isinstance(matrix.weight, Tensor):
        row = next_power_of_two(inputs) * matrix.weight.itemsize
        size, many, each = (32768, 8, 2) if wide else (8192, 4, 22) if gated else (16384, 4, 4)
    elif isinstance(matrix.weight, Int8):
        row = inputs
        size, many, each = 16384 if gated else 24576, 4, 2 if wide else 4
    else:
        row = inputs // 2
        size, many, each = 8192 if gated else 16384, 8 if wide else 4, 2 if wide else 5
    fitting = power_below(size / (row * (2 if gated else 1)))
    block = max(1, min(fitting, power_below(outputs / PROCESSORS)))
    return Tile(block, many, min(each * PROCESSORS, triton.cdiv(outputs, block)))


def power_below(size: float) -> int:
    """The largest power of two that is at most `size`, at least 1."""
    return 1 << max(0, int(size).bit_length() - 1)


def embed(
    launcher: Launcher,
    tokens: Tensor,
    positions: Tensor,
    *,
    table: Tensor,
    places: Tensor | None,
    factor: float,
    counted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The input vectors of the first block [n, D].

    Positions are read from `positions`; or with `counted` = (lengths, advance) they are the lengths, which are written
    to `positions` and then incremented by `advance`.
    """
    width = table.shape[1]
    x = table.new_empty(len(tokens), width)
    lengths, advance = counted or (positions, positions)
    kernels.embed[(len(tokens),)](
        tokens, positions, lengths, advance, table, table if places is None else places, x, factor,
        WIDTH=width, PLACES=places is not None, COUNT=counted is not None, BLOCK=next_power_of_two(width),
        **launcher.options(first=True),
    )  # fmt: skip
    return x


def normalize(launcher: Launcher, x: Tensor, norm: Norm) -> Tensor:
    out = torch.empty_like(x)
    kernels.norm[(len(x),)](
        x, norm.gamma, norm.beta, out, norm.epsilon,
        WIDTH=x.shape[1], NORM=norm.kind, BLOCK=next_power_of_two(x.shape[1]), **launcher.options(),
    )  # fmt: skip
    return out


def normalize_part(launcher: Launcher, x: Tensor, first: int, end: int, norm: Norm | None) -> None:
    """Normalize columns first … end − 1 of x in place, in parts as wide as the norm."""
    if norm is not None:
        part = x[:, first:end].contiguous().view(-1, len(norm.gamma))
        x[:, first:end] = normalize(launcher, part, norm).view(len(x), -1)


def multiply(
    launcher: Launcher,
    x: Tensor,
    matrix: Matrix,
    *,
    norm: Norm | None = None,
    activation: str = "none",
    gated: bool = False,
    residual: Tensor | None = None,
    first: bool = False,
) -> Tensor:
    """residual + f(W norm(x) + b) for every row of x [rows, K].

    The `first` kernel waits until all previous ones are complete, so that later kernels may read their results at once.
    """
    if len(x) > FEW_ROWS:
        return multiply_many(launcher, x, matrix, norm=norm, activation=activation, gated=gated, residual=residual)
    outputs = matrix.outputs // (2 if gated else 1)
    out = x.new_empty(len(x), outputs)
    tile = tile_for(matrix, outputs, x.shape[1], gated=gated)
    kernel, weights, sizes = read_weights(launcher, matrix, x.shape[1])
    kernel[(tile.programs, len(x))](
        x,
        *weights,
        x if matrix.bias is None else matrix.bias,
        x if norm is None else norm.gamma,
        x if norm is None else norm.beta,
        x if residual is None else residual,
        out,
        0.0 if norm is None else norm.epsilon,
        INPUTS=x.shape[1],
        OUTPUTS=outputs,
        NORM="none" if norm is None else norm.kind,
        KIND=activation,
        GATED=gated,
        BIAS=matrix.bias is not None,
        RESIDUAL=residual is not None,
        BLOCK_N=tile.outputs,
        **sizes,
        **launcher.options(warps=tile.warps, first=first),
    )
    return out


def read_weights(launcher: Launcher, matrix: Matrix, inputs: int) -> tuple[Any, tuple[Tensor, ...], dict[str, object]]:
    """The kernel for a matrix, its tensors, and its constants; four bytes of a quantized matrix are one integer."""
    weight = matrix.weight
    if isinstance(weight, Tensor):
        return kernels.product, (weight,), {"BLOCK_K": next_power_of_two(inputs)}
    bits = 4 if isinstance(weight, Int4) else 8
    groups = next_power_of_two(-(-inputs // GROUP))
    tensors = weight[0].view(torch.int32), weight.scale, weight.low if isinstance(weight, Int4) else weight.scale
    return kernels.product_codes, tensors, {"BITS": bits, "BLOCK_G": groups, "DP4A": launcher.dp4a}


def multiply_many(
    launcher: Launcher,
    x: Tensor,
    matrix: Matrix,
    *,
    norm: Norm | None,
    activation: str,
    gated: bool,
    residual: Tensor | None,
) -> Tensor:
    if norm is not None:
        x = normalize(launcher, x, norm)
    weight = float_weight(matrix, x)
    if residual is not None and matrix.bias is None:
        return torch.addmm(residual, x, weight.T)
    y = F.linear(x, weight, matrix.bias)
    if residual is not None:
        y += residual
    return y if activation == "none" else activate(launcher, y, activation, gated=gated)


def float_weight(matrix: Matrix, x: Tensor) -> Tensor:
    """The weights in the dtype of the inputs x [rows, K]."""
    weight = matrix.weight
    if isinstance(weight, Tensor):
        return weight
    groups = weight.scale.numel()
    out = x.new_empty(matrix.outputs, groups // matrix.outputs * GROUP)
    low = weight.low if isinstance(weight, Int4) else weight.scale
    sizes = {"BITS": 4 if isinstance(weight, Int4) else 8, "BLOCK": 256}
    kernels.dequantize[(triton.cdiv(groups, 256),)](weight[0], weight.scale, low, out, groups, **sizes)
    return out[:, : x.shape[1]]


def activate(launcher: Launcher, x: Tensor, kind: str, *, gated: bool) -> Tensor:
    rows, hidden = len(x), x.shape[1] // (2 if gated else 1)
    out = x.new_empty(rows, hidden)
    block = min(1024, next_power_of_two(hidden))
    kernels.activate[(rows, triton.cdiv(hidden, block))](
        x, out, HIDDEN=hidden, KIND=kind, GATED=gated, BLOCK=block, **launcher.options()
    )
    return out


def run_experts(launcher: Launcher, x: Tensor, logits: Tensor, module: MixtureOfExperts, *, activation: str) -> Tensor:
    """Σ g_i FFN_i(x) for every row of x [rows, D], from the router's logits [rows, E]."""
    weights, (rows, width), per_token = module.experts, x.shape, module.per_token
    count, hidden_width = weights.up.shape[:2]
    shares, totals = torch.empty(rows, per_token, device=x.device), torch.empty(rows, device=x.device)
    chosen = torch.empty(rows, per_token, dtype=torch.int32, device=x.device)
    experts.route[(rows,)](
        logits, shares, totals, chosen, EXPERTS=count, PER_TOKEN=per_token, NORMALIZE=module.normalize,
        BLOCK=next_power_of_two(count), **launcher.options(warps=1),
    )  # fmt: skip
    gated, biased = weights.gate is not None, weights.up_bias is not None
    first, first_bias = (weights.gate, weights.gate_bias) if gated else (weights.up, weights.up_bias)
    biases = (first_bias, weights.up_bias, weights.down_bias) if biased else (x, x, x)  # without biases none is read
    hidden, out = x.new_empty(rows * per_token, hidden_width), torch.empty_like(x)
    sizes = {"PER_TOKEN": per_token, "BIAS": biased, "BLOCK_N": EXPERT_OUTPUTS, **launcher.options()}
    experts.up[(triton.cdiv(hidden_width, EXPERT_OUTPUTS), rows * per_token)](
        x, first, weights.up, *biases[:2], chosen, hidden, INPUTS=width, OUTPUTS=hidden_width,
        KIND=activation, GATED=gated, BLOCK_K=next_power_of_two(width), **sizes,
    )  # fmt: skip
    experts.down[(triton.cdiv(width, EXPERT_OUTPUTS), rows)](
        hidden, weights.down, biases[2], shares, totals, chosen, out, INPUTS=hidden_width, OUTPUTS=width,
        BLOCK_K=next_power_of_two(hidden_width), **sizes,
    )  # fmt: skip
    return out


def argmax(launcher: Launcher, logits: Tensor) -> Tensor:
    """The token of the largest logit of each row [rows], −1 where the logits are not finite."""
    rows, vocabulary = logits.shape
    block = min(PART, next_power_of_two(vocabulary))
    parts = triton.cdiv(vocabulary, block)
    largest = torch.empty(rows, parts, device=logits.device)
    places = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    sizes = {"VOCABULARY": vocabulary, "PARTS": parts, "BLOCK": block}
    kernels.argmax[(rows, parts)](logits, largest, places, **sizes, **launcher.options())
    kernels.argmax_of_parts[(rows,)](
        largest, places, tokens, PARTS=parts, BLOCK=next_power_of_two(parts), **launcher.options(warps=1)
    )
    return tokens
