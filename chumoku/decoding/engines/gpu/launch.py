"""Each kernel as a function of tensors: the sizes of blocks, the grids, and for many rows the library's products.

    rows ≤ FEW     `product` reads each weight once for all rows, norm and activation inside
    more           norm, the matrix library's product (of whole numbers made floats first), activation

Sizes are those that were fastest on an H200 for a Llama of 1.1 B and for GPT-2 124M (docs/log.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

from chumoku.decoding.engines.gpu import attention, kernels
from chumoku.decoding.engines.gpu.weights import Matrix, Norm
from chumoku.nn.quantized import GROUP, Int4, Int8

FEW = 2
PAST = 64  # keys looked at together
LANES = (256, 8)  # the same for a query head alone, and its warps
ALONE = 512  # a past of up to so many keys is not cut into parts: joining them takes longer than looking at them
PROGRAMS, MOST_PARTS = 264, 32  # parts of all pasts together: two for each of an H200's processors
PART = 4096  # logits compared by one program
INT4_BYTES = 16384  # of the weights of one program, at most


class Launcher(NamedTuple):
    """How kernels start on this device: `early` lets one start while the one before it ends (Hopper and later)."""

    early: bool

    @classmethod
    def on(cls, device: torch.device) -> Launcher:
        return cls(device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9)

    def options(self, *, warps: int = 4, first: bool = False) -> dict[str, object]:
        early = self.early and not first
        return {"EARLY": early, "num_warps": warps, **({"launch_pdl": True} if early else {})}


def power(size: float) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, int(-(-size // 1)) - 1).bit_length()


def tile(outputs: int, inputs: int, *, gated: bool, normed: bool) -> tuple[int, int, int]:
    """Outputs and inputs of one program of `product`, and its warps.

    A program with a norm inside computes it for its few outputs alone, so it has more threads for them.
    """
    width = power(inputs)
    if gated:
        block = max(1, 4096 // width)
        return block, width, warps(2 * block * width / 64)
    weights, programs = (8192, 1024) if normed else (16384, 256)
    block = max(1, min(weights // width, power(outputs / programs + 1) // 2))
    return block, width, warps(width / 8 if normed else block * width / 128)


def warps(threads: float) -> int:
    return min(16, max(2, power(threads / 32)))


def embed(
    start: Launcher,
    tokens: Tensor,
    positions: Tensor,
    *,
    table: Tensor,
    places: Tensor | None,
    factor: float,
    counted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The vectors that enter the first block [n, D].

    Where they stand is read from `positions`; or it is the lengths in `counted`, which then grow by its second part
    and are left in `positions`.
    """
    width = table.shape[1]
    x = table.new_empty(len(tokens), width)
    lengths, advance = counted or (positions, positions)
    kernels.embed[(len(tokens),)](
        tokens, positions, lengths, advance, table, table if places is None else places, x, factor,
        WIDTH=width, PLACES=places is not None, COUNT=counted is not None, BLOCK=power(width),
        **start.options(first=True),
    )  # fmt: skip
    return x


def normalize(start: Launcher, x: Tensor, norm: Norm) -> Tensor:
    out = torch.empty_like(x)
    kernels.norm[(len(x),)](
        x, norm.gamma, norm.beta, out, norm.epsilon,
        WIDTH=x.shape[1], NORM=norm.kind, BLOCK=power(x.shape[1]), **start.options(),
    )  # fmt: skip
    return out


def multiply(
    start: Launcher,
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

    The `first` one waits for all before it to be over: later kernels may then read what those wrote before waiting.
    """
    if len(x) > FEW:
        return multiply_many(start, x, matrix, norm=norm, activation=activation, gated=gated, residual=residual)
    if isinstance(matrix.weight, Int4):
        x = x if norm is None else normalize(start, x, norm)
        return multiply_int4(start, x, matrix, activation=activation, gated=gated, residual=residual, first=first)
    weight, scale = matrix.weight if isinstance(matrix.weight, Int8) else (matrix.weight, matrix.weight)
    outputs = matrix.outputs // (2 if gated else 1)
    out = x.new_empty(len(x), outputs)
    block, inputs, many = tile(outputs, x.shape[1], gated=gated, normed=norm is not None)
    kernels.product[(triton.cdiv(outputs, block),)](
        x,
        weight,
        scale,
        x if matrix.bias is None else matrix.bias,
        x if norm is None else norm.gamma,
        x if norm is None else norm.beta,
        x if residual is None else residual,
        out,
        0.0 if norm is None else norm.epsilon,
        INPUTS=x.shape[1],
        OUTPUTS=outputs,
        ROWS=len(x),
        SCALED=isinstance(matrix.weight, Int8),
        NORM="none" if norm is None else norm.kind,
        KIND=activation,
        GATED=gated,
        BIAS=matrix.bias is not None,
        RESIDUAL=residual is not None,
        BLOCK_N=block,
        BLOCK_K=inputs,
        **start.options(warps=many, first=first),
    )
    return out


def multiply_int4(
    start: Launcher,
    x: Tensor,
    matrix: Matrix,
    *,
    activation: str,
    gated: bool,
    residual: Tensor | None,
    first: bool,
) -> Tensor:
    outputs = matrix.outputs // (2 if gated else 1)
    out = x.new_empty(len(x), outputs)
    groups = x.shape[1] // GROUP
    size = min(INT4_BYTES, 256 * power(groups))
    block = max(1, size // (16 * power(groups) * (2 if gated else 1)))
    kernels.product_int4[(triton.cdiv(outputs, block),)](
        x,
        *matrix.weight,
        x if matrix.bias is None else matrix.bias,
        x if residual is None else residual,
        out,
        GROUPS=groups,
        OUTPUTS=outputs,
        ROWS=len(x),
        KIND=activation,
        GATED=gated,
        BIAS=matrix.bias is not None,
        RESIDUAL=residual is not None,
        BLOCK_N=block,
        BLOCK_G=power(groups),
        **start.options(warps=max(1, size // 2048), first=first),
    )
    return out


def multiply_many(
    start: Launcher,
    x: Tensor,
    matrix: Matrix,
    *,
    norm: Norm | None,
    activation: str,
    gated: bool,
    residual: Tensor | None,
) -> Tensor:
    if norm is not None:
        x = normalize(start, x, norm)
    if residual is not None and matrix.bias is None:
        return torch.addmm(residual, x, matrix.floats(x.dtype).T)
    y = F.linear(x, matrix.floats(x.dtype), matrix.bias)
    if residual is not None:
        y += residual
    return y if activation == "none" else activate(start, y, activation, gated=gated)


def activate(start: Launcher, x: Tensor, kind: str, *, gated: bool) -> Tensor:
    rows, hidden = len(x), x.shape[1] // (2 if gated else 1)
    out = x.new_empty(rows, hidden)
    block = min(1024, power(hidden))
    kernels.activate[(rows, triton.cdiv(hidden, block))](
        x, out, HIDDEN=hidden, KIND=kind, GATED=gated, BLOCK=block, **start.options()
    )
    return out


class Desk(NamedTuple):
    """Where the parts of a long past leave what they found."""

    outputs: Tensor
    logs: Tensor
    arrived: Tensor  # how many parts of a row and head are there; zero between steps
    parts: int
    alone: bool  # a program for each query head, not for each key head

    @classmethod
    def empty(cls, rows: int, heads: int, kv_heads: int, width: int, *, device: torch.device) -> Desk:
        """For `rows` tokens a step."""
        alone = rows * heads <= PROGRAMS
        places = rows * (heads if alone else kv_heads)
        parts = min(MOST_PARTS, power(max(1, PROGRAMS // places) + 1) // 2)  # a power of two
        shape = (places, parts, 1 if alone else max(16, power(heads // kv_heads)))
        outputs = torch.empty(*shape, max(16, power(width)), device=device)
        arrived = torch.zeros(places, dtype=torch.int32, device=device)
        return cls(outputs, torch.empty(shape, device=device), arrived, parts, alone)


class Sight(NamedTuple):
    """Where n new tokens stand: in which rows of the cache, at which positions, and how far those turn."""

    rows: Tensor  # [n]
    positions: Tensor  # [n]
    rotation: tuple[Tensor, Tensor, str] | None  # cos, sin [C, K / 2] and the pairing


def look(
    start: Launcher, projected: Tensor, store: Tensor, sight: Sight, desk: Desk, *, heads: int, first: bool = False
) -> Tensor:
    """Attention of new tokens; `store` [2, rows, G, C, K] is one layer of the cache.

    As the `first` it waits before it reads the past, which another kernel may just be writing.
    """
    kv_heads, capacity, width = store.shape[2:]
    out = projected.new_empty(len(projected), heads * width)
    cos, sin, pairing = sight.rotation or (desk.logs, desk.logs, "none")
    block, many = LANES if desk.alone else (PAST, 4)
    tensors = projected, cos, sin, store[0], store[1], sight.rows, sight.positions
    left = out, desk.outputs, desk.logs, desk.arrived
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "PAIRING": pairing, "PARTS": desk.parts}
    sizes |= {"ALONE": max(1, ALONE // block), "BLOCK": block, "BLOCK_K": desk.outputs.shape[3]}
    sizes |= start.options(warps=many, first=first)
    if desk.alone:
        attention.attend_alone[(len(projected), heads, desk.parts)](*tensors, *left, width**-0.5, capacity, **sizes)
    else:
        sizes |= {"BLOCK_S": power(heads // kv_heads), "BLOCK_H": desk.outputs.shape[2]}
        attention.attend[(len(projected), kv_heads, desk.parts)](*tensors, *left, width**-0.5, capacity, **sizes)
    return out


def keep(start: Launcher, projected: Tensor, store: Tensor, sight: Sight, *, heads: int) -> None:
    """The keys and values of new tokens into the cache, for those of one row to see each other."""
    kv_heads, capacity, width = store.shape[2:]
    cos, sin, pairing = sight.rotation or (projected, projected, "none")
    attention.keep[(len(projected), kv_heads)](
        projected, cos, sin, store[0], store[1], sight.rows, sight.positions, capacity,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, PAIRING=pairing, BLOCK_K=power(width), **start.options(warps=1),
    )  # fmt: skip


def move(store: Tensor, moves: Tensor, used: int) -> None:
    """Row moves[i, 0] of the cache becomes what row moves[i, 1] is, its first `used` positions; no row is in both."""
    layers, _, rows, kv_heads, capacity, width = store.shape
    kernels.move[(2 * layers, kv_heads, len(moves))](store, moves, rows, used * width, capacity * width, BLOCK=1024)


def likeliest(start: Launcher, logits: Tensor) -> Tensor:
    """The token of the largest logit of each row [rows]."""
    rows, vocabulary = logits.shape
    block = min(PART, power(vocabulary))
    parts = triton.cdiv(vocabulary, block)
    largest = torch.empty(rows, parts, device=logits.device)
    places = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    sizes = {"VOCABULARY": vocabulary, "PARTS": parts, "BLOCK": block}
    kernels.likeliest[(rows, parts)](logits, largest, places, **sizes, **start.options())
    kernels.likeliest_of_parts[(rows,)](
        largest, places, tokens, PARTS=parts, BLOCK=power(parts), **start.options(warps=1)
    )
    return tokens
