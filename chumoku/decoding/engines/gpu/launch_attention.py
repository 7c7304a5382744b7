"""A Python function for each kernel of attention and of its cache, with its block sizes and grid, as in `launch`."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

from chumoku.decoding.engines.gpu import attention, kernels
from chumoku.decoding.engines.gpu.launch import PROCESSORS, Launcher, next_power_of_two
from chumoku.decoding.engines.gpu.tables import ScoreBias, Scoring

KEY_BLOCK = 64  # keys in one block
LANES = (256, 8)  # keys in one block, and warps, when each query head has its own program
LANE_NUMBERS = 256 * 64  # of these keys: more do not fit into registers
SOURCE_LANES = (64, 4)  # the same for the keys of a source
ALONE = 512  # a past of up to this many keys is not split into parts, because joining them takes longer
PROGRAMS, MOST_PARTS = 2 * PROCESSORS, 32  # programs of all parts together
MOVED, MOST_MOVES = 4096, 1024  # numbers that one program moves, and rows that can be moved at once


class Workspace(NamedTuple):
    """Buffers for the results of the parts of a long past."""

    outputs: Tensor
    logs: Tensor
    arrived: Tensor  # number of finished parts of each row and head; zero between steps
    parts: int
    alone: bool  # a program for each query head, not for each key head

    @classmethod
    def empty(cls, rows: int, heads: int, kv_heads: int, width: int, *, device: torch.device) -> Workspace:
        """Buffers for `rows` tokens per step."""
        alone = rows * heads <= PROGRAMS
        places = rows * (heads if alone else kv_heads)
        parts = min(MOST_PARTS, next_power_of_two(max(1, PROGRAMS // places) + 1) // 2)  # a power of two
        shape = (places, parts, 1 if alone else max(16, next_power_of_two(heads // kv_heads)))
        outputs = torch.empty(*shape, max(16, next_power_of_two(width)), device=device)
        arrived = torch.zeros(places, dtype=torch.int32, device=device)
        return cls(outputs, torch.empty(shape, device=device), arrived, parts, alone)


class TokenPlaces(NamedTuple):
    """Rows and positions of n new tokens in the cache, and the rotation of all positions."""

    rows: Tensor  # [n]
    positions: Tensor  # [n]
    rotation: tuple[Tensor, Tensor, str] | None = None  # cos, sin [C, R / 2] and the pairing

    def kernel_rotation(self, unused: Tensor) -> tuple[Tensor, Tensor, dict[str, object]]:
        """cos and sin, and the kernels' constants; without rotation `unused` stands for cos and sin."""
        cos, sin, pairing = self.rotation or (unused, unused, "none")
        return cos, sin, {"ROTATED": 2 * cos.shape[-1], "PAIRING": pairing}


def attend(
    launcher: Launcher,
    projected: Tensor,
    store: Tensor,
    where: TokenPlaces,
    workspace: Workspace,
    *,
    heads: int,
    scoring: Scoring,
    first: bool = False,
) -> Tensor:
    """Attention of new tokens; `store` [2, rows, G, C, K] is one layer of the cache.

    As the `first` it waits before it reads the past, because a previous kernel may still be writing it.
    """
    kv_heads, capacity, width = store.shape[2:]
    out = projected.new_empty(len(projected), heads * width)
    cos, sin, rotation = where.kernel_rotation(workspace.logs)
    padded = workspace.outputs.shape[3]
    block, many = (min(LANES[0], max(16, LANE_NUMBERS // padded)), LANES[1]) if workspace.alone else (KEY_BLOCK, 4)
    tensors = projected, cos, sin, store[0], store[1], where.rows, where.positions
    bias = scoring.bias or ScoreBias("none", workspace.logs)
    left = out, workspace.outputs, workspace.logs, workspace.arrived, bias.numbers, scoring.scale, capacity
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "PARTS": workspace.parts, **rotation}
    sizes |= {"WINDOW": scoring.window or 0, "BIAS": bias.kind, "CLIP": bias.clip, "CAP": scoring.cap or 0.0}
    sizes |= {"ALONE": max(1, ALONE // block), "BLOCK": block, "BLOCK_K": padded}
    sizes |= launcher.options(warps=many, first=first)
    if workspace.alone:
        attention.attend_alone[(len(projected), heads, workspace.parts)](*tensors, *left, **sizes)
    else:
        sizes |= {"BLOCK_S": next_power_of_two(heads // kv_heads), "BLOCK_H": workspace.outputs.shape[2]}
        attention.attend[(len(projected), kv_heads, workspace.parts)](*tensors, *left, **sizes)
    return out


def attend_source(
    launcher: Launcher,
    queries: Tensor,
    memory: Tensor,
    where: TokenPlaces,
    lengths: Tensor,
    *,
    heads: int,
    scoring: Scoring,
) -> Tensor:
    """Cross-attention of new tokens; `memory` [2, rows, G, S, K] is one layer, of sources of these lengths [rows]."""
    kv_heads, capacity, width = memory.shape[2:]
    out, (block, many) = torch.empty_like(queries), SOURCE_LANES
    attention.attend_source[(len(queries), heads)](
        queries, memory[0], memory[1], where.rows, lengths, out, scoring.scale, capacity,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, CAP=scoring.cap or 0.0, BLOCK=block,
        BLOCK_K=max(16, next_power_of_two(width)), **launcher.options(warps=many),
    )  # fmt: skip
    return out


def write_cache(launcher: Launcher, projected: Tensor, store: Tensor, where: TokenPlaces, *, heads: int) -> None:
    """Write the keys and values of new tokens to the cache, so that tokens of one row can attend to each other."""
    kv_heads, capacity, width = store.shape[2:]
    cos, sin, rotation = where.kernel_rotation(projected)
    attention.write_cache[(len(projected), kv_heads)](
        projected, cos, sin, store[0], store[1], where.rows, where.positions, capacity,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, BLOCK_K=next_power_of_two(width), **rotation,
        **launcher.options(warps=1),
    )  # fmt: skip


def move(store: Tensor, moves: Tensor, used: int) -> None:
    """Copy the first `used` positions of row moves[i, 1] to row moves[i, 0] of the cache, as if all at once."""
    layers, _, rows, kv_heads, capacity, width = store.shape
    count, block = next_power_of_two(len(moves)), max(16, MOVED // next_power_of_two(len(moves)))
    kernels.move[(2 * layers, kv_heads, triton.cdiv(used * width, block))](
        store, moves, len(moves), rows, used * width, capacity * width, MOVES=count, BLOCK=block
    )
