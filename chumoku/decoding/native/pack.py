"""Weights in the order in which step.cpp reads them: blocks of 16 outputs.

    float32   [N/16][K][16]              bf16   [N/16][K/2][16][2]
    int8      [N/16][K/4][16][4]         int4   [N/16][K/32], of each group [4][16][4] with two q a byte, s [16], m [16]

The structures below are those of step.cpp, field by field.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.models.config import ModelConfig
from chumoku.models.stack import Stack
from chumoku.nn.block import Block
from chumoku.nn.embeddings import Logits
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm
from chumoku.nn.quantised import Int4, Int8, Quantised

LANES = 16
INPUTS = 64  # products of int8 take so many at a time
KINDS = {"float32": 0, "bf16": 1, "int8": 2, "int4": 3}
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "geglu": 1, "swiglu": 3}


class Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs")),
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
    )


class Norm(ctypes.Structure):
    _fields_ = (
        *(("kind", ctypes.c_int32), ("epsilon", ctypes.c_float)),
        *(("gamma", ctypes.c_void_p), ("beta", ctypes.c_void_p)),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("attention_norm", "cross_norm", "feed_norm")),
        *((name, Product) for name in ("attention", "output", "cross_query", "cross_output", "up", "down")),
    )


class StackFields(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                *("layers", "width", "heads", "kv_heads", "head_width", "hidden"),
                *("activation", "gated", "post", "half", "cross"),
            )
        ),
        ("layer", ctypes.POINTER(Layer)),
        ("last", Norm),
        ("logits", Product),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("row", "position", "seen", "cos", "sin", "x", "store")),
        *((name, ctypes.c_int32) for name in ("rows", "capacity")),
        *((name, ctypes.c_void_p) for name in ("origin", "memory", "memory_length")),
        ("asked", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("wanted", "logits")),
    )


class Packed:
    """A stack, and the output matrix behind it where there is one, as step.cpp wants them."""

    def __init__(self, stack: Stack, config: ModelConfig, output: nn.Module | None) -> None:
        self._memory = Memory()  # what the pointers point to
        blocks = [block for block in stack.blocks if isinstance(block, Block)]
        layers = (Layer * len(blocks))(*map(self._layer, blocks))
        self.fields = StackFields(
            layers=len(blocks),
            width=config.width,
            heads=config.heads,
            kv_heads=config.key_heads,
            head_width=config.head_width,
            hidden=config.hidden,
            activation=ACTIVATIONS[config.feedforward],
            gated=config.feedforward in ("geglu", "swiglu"),
            post=config.placement == "post",
            half=config.pairing == "half",
            cross=blocks[0].cross_attention is not None,
            layer=layers,
            last=self._norm(stack.norm),
            logits=Product() if output is None else self._output(output, stack.embedding.table),
        )
        # Cross-attention's keys and values of a source, of all layers.
        self.memory = [self._product([c.key, c.value]) for b in blocks if (c := b.cross_attention) is not None]

    def _layer(self, block: Block) -> Layer:
        attention, cross, feed = block.attention, block.cross_attention, block.feedforward
        layer = Layer(
            attention_norm=self._norm(block.attention_norm),
            cross_norm=self._norm(block.cross_attention_norm),
            feed_norm=self._norm(block.feedforward_norm),
            attention=self._product([attention.query, attention.key, attention.value]),
            output=self._product([attention.output]),
        )
        if isinstance(feed, FeedForward):
            layer.up = self._product([feed.up] if feed.gate is None else [feed.gate, feed.up])
            layer.down = self._product([feed.down])
        if cross is not None:
            layer.cross_query, layer.cross_output = self._product([cross.query]), self._product([cross.output])
        return layer

    def _norm(self, norm: nn.Module | None) -> Norm:
        if isinstance(norm, LayerNorm):
            return Norm(1, norm.epsilon, self._keep(norm.gamma.float()), self._keep(norm.beta.float()))
        if isinstance(norm, RMSNorm):
            return Norm(2, norm.epsilon, self._keep(norm.gamma.float()), None)
        if isinstance(norm, BatchNorm):
            # Its averages are fixed, so it is a scale and a shift.
            by = norm.gamma.float() / (norm.variance.float() + norm.epsilon).sqrt()
            return Norm(3, 0.0, self._keep(by), self._keep(norm.beta.float() - norm.mean.float() * by))
        return Norm()

    def _output(self, output: nn.Module, table: Tensor) -> Product:
        if isinstance(output, Quantised):
            return self._product([output])
        weight, bias = (output.weight, output.bias) if isinstance(output, Logits) else (None, None)
        linear = nn.Linear(table.shape[1], table.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(table if weight is None else weight, requires_grad=False)
        linear.bias = bias  # type: ignore[assignment]
        return self._product([linear])

    def _product(self, parts: Sequence[nn.Linear | Quantised]) -> Product:
        """One product of the parts' outputs side by side."""
        first = parts[0]
        biases = [part.bias.float() for part in parts if part.bias is not None]
        bias = torch.cat(biases) if biases else None
        outputs = sum(part.out_features for part in parts)
        kind, weight, scale = packed(parts)
        pointers = [None if tensor is None else self._keep(tensor) for tensor in (weight, scale, bias)]
        return Product(KINDS[kind], outputs, first.in_features, *pointers)

    def _keep(self, tensor: Tensor) -> int:
        return self._memory.keep(tensor.detach())


class Memory:
    """Tensors one behind the other, in large pages where the system has them: a step reads all of them once."""

    REGION = 1 << 26

    def __init__(self) -> None:
        self._regions: list[mmap.mmap] = []
        self._used = self.REGION

    def keep(self, tensor: Tensor) -> int:
        """Copy a tensor here, and say where it lies."""
        size = -(-tensor.nbytes // 64) * 64
        if not self._regions or self._used + size > len(self._regions[-1]):
            self._regions.append(mmap.mmap(-1, max(size, self.REGION)))
            self._used = 0
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    self._regions[-1].madvise(mmap.MADV_HUGEPAGE)
        place = torch.frombuffer(self._regions[-1], dtype=tensor.dtype, count=tensor.numel(), offset=self._used)
        place.view(tensor.shape).copy_(tensor)
        self._used += size
        return place.data_ptr()


def packed(parts: Sequence[nn.Linear | Quantised]) -> tuple[str, Tensor, Tensor | None]:
    """The kind of the parts' weights, these in blocks, and a scale for each output where there is one."""
    if isinstance(parts[0], Quantised):
        stored = [part.stored for part in parts if isinstance(part, Quantised)]
        joined = type(stored[0])(*(torch.cat(tensors) for tensors in zip(*stored, strict=True)))
        return _int8(joined) if isinstance(joined, Int8) else _int4(joined)
    weight = torch.cat([part.weight for part in parts if isinstance(part, nn.Linear)])
    if weight.dtype == torch.bfloat16:
        return "bf16", _blocks(_parts(_filled(weight, 2), 2)), None
    return "float32", _blocks(weight[..., None]), None


def _int8(stored: Int8) -> tuple[str, Tensor, Tensor]:
    shifted = (_filled(stored.q, INPUTS).to(torch.int16) + 128).to(torch.uint8)
    return "int8", _blocks(_parts(shifted, 4)), F.pad(stored.scale, (0, -len(stored.scale) % LANES))


def _int4(stored: Int4) -> tuple[str, Tensor, None]:
    parts = _blocks(_parts(stored.unpacked(), 4))  # [N/16, K/4, 16, 4]
    halves = parts.view(len(parts), -1, 2, 4, LANES, 4)
    q = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(2)
    scales = [_blocks(part[..., None]).flatten(2).view(torch.uint8) for part in (stored.scale, stored.low)]
    return "int4", torch.cat([q, *scales], dim=-1), None


def _blocks(x: Tensor) -> Tensor:
    """[N, K, …] → [N/16, K, 16, …], with outputs of zeros where 16 do not divide N."""
    pad = (0, 0) * (x.ndim - 1) + (0, -len(x) % LANES)
    x = F.pad(x, pad)
    return x.view(-1, LANES, *x.shape[1:]).transpose(1, 2).contiguous()


def _parts(weight: Tensor, size: int) -> Tensor:
    """[N, K] → [N, K/size, size]"""
    return weight.view(len(weight), -1, size)


def _filled(weight: Tensor, to: int) -> Tensor:
    return F.pad(weight, (0, -weight.shape[1] % to))
