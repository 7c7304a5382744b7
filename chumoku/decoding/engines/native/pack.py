"""Weights in the memory layout of step.cpp: blocks of n outputs, where n is the number of lanes of a register.

    float32   [N/n][K][n]              int8   [N/n][K/32], of each group [8][n][4], s [n]
    bf16      [N/n][K/2][n][2]         int4   [N/n][K/32], of each group [4][n][4], s [n], m [n]
    blocks of GGUF files: alike, with as many bits for q as in the file (groups.h)

In bf16, K is a multiple of 32: the rest are zeros.

This module only describes sources and targets; packing.h copies, all matrices in one call (`call.Weights`).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.decoding.engines.native.structs import Layer, Norm, Norms, Packing, Product, Source, StackFields
from chumoku.models.config import ModelConfig
from chumoku.models.stack import Stack
from chumoku.nn.block import Block
from chumoku.nn.embeddings import Embedding, Logits
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.gguf_blocks import BLOCK_KINDS, TYPES_BY_NAME
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm
from chumoku.nn.quantized import GROUP, Bf16, QuantizedLinear, StoredWeight

KINDS = {kind: number for number, kind in enumerate(("float32", "bf16", "int8", "int4", *BLOCK_KINDS))}
SIGNS = 0x80808080  # the sign bits of four int8; inverting them gives q + 128, which some processors need
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "geglu": 1, "geglu_tanh": 2, "swiglu": 3}
NO_WINDOW = 1 << 30  # larger than any distance

Weight = Tensor | StoredWeight


class Packed:
    """A stack, and its output matrix if it has one, as structures for step.cpp.

    The matrices are filled when the `packings` have been executed.
    """

    def __init__(self, stack: Stack, config: ModelConfig, output: nn.Module | None, *, lanes: int) -> None:
        self._lanes = lanes
        # Memory that the pointers refer to. Small tensors are separate, because the first write to a huge page is slow.
        self._memory, self._small = Memory(), Memory()
        self.packings: list[Packing] = []
        self.table = embedding_table(stack)
        self._sources: list[Tensor] = []  # kept alive until they are packed
        blocks = [block for block in stack.blocks if isinstance(block, Block)]
        layers = (Layer * len(blocks))(*map(self._layer, blocks))
        for layer, (local, rotated) in zip(layers, stack.layer_kinds, strict=True):
            layer.window = stack.window if local and stack.window is not None else NO_WINDOW
            layer.base = (local and stack.local_rotary is not None) if rotated else -1
        self.fields = StackFields(
            layers=len(blocks),
            width=config.width,
            heads=config.heads,
            kv_heads=config.key_heads,
            head_width=config.key_width,
            hidden=config.hidden,
            activation=ACTIVATIONS[config.feedforward],
            gated=config.feedforward in ("geglu", "geglu_tanh", "swiglu"),
            parallel=config.parallel,
            half=config.pairing == "half",
            cross=blocks[0].cross_attention is not None,
            joint_norms=config.query_key_norm == "all",
            rotated=config.rotated_width,
            clip=config.relative_clip,
            scale=config.key_width**-0.5 if config.attention_scale is None else config.attention_scale,
            score_cap=config.score_cap or 0.0,
            layer=layers,
            last=self._norm(stack.norm),
            logits=Product() if output is None else self._output(output, stack.embedding),
        )
        # Of the cross-attention of all layers, the projections of keys and values and the norm of keys.
        self.memory = [
            (self._products([cross.key, cross.value]), cross.key_norm)
            for block in blocks
            if (cross := block.cross_attention) is not None
        ]

    def _layer(self, block: Block) -> Layer:
        attention, cross, feed = block.attention, block.cross_attention, block.feedforward
        layer = Layer(
            attention_norms=self._norms(block, "attention"),
            cross_norms=self._norms(block, "cross_attention"),
            feed_norms=self._norms(block, "feedforward"),
            query_norm=self._norm(attention.query_norm),
            key_norm=self._norm(attention.key_norm),
            relative=None if attention.relative is None else self._copy(attention.relative.table),
            attention=(Product * 3)(*self._products([attention.query, attention.key, attention.value])),
            output=self._product([attention.output]),
        )
        if isinstance(feed, FeedForward):
            parts = [feed.up] if feed.gate is None else [feed.gate, feed.up]
            layer.up = (Product * 2)(*self._products(parts))
            layer.down = self._product([feed.down])
        if cross is not None:
            layer.cross_query, layer.cross_output = self._product([cross.query]), self._product([cross.output])
            layer.cross_query_norm = self._norm(cross.query_norm)
        return layer

    def _norms(self, block: Block, sublayer: str) -> Norms:
        module = getattr(block, f"{sublayer}_norm")
        # Without a norm of its own, a parallel feed-forward has that of the attention.
        shares_norm = module is None and sublayer == "feedforward"
        norm = self._norm(block.attention_norm if shares_norm else module)
        match block.placement:
            case "pre":
                return Norms(input=norm)
            case "post":
                return Norms(sum=norm)
            case "output":
                return Norms(output=norm)
            case "sandwich":
                return Norms(input=norm, output=self._norm(getattr(block, f"{sublayer}_output_norm")))

    def _norm(self, norm: nn.Module | None) -> Norm:
        if isinstance(norm, LayerNorm):
            beta = None if norm.beta is None else self._copy(norm.beta.float())
            return Norm(1, norm.epsilon, self._copy(norm.gamma.float()), beta)
        if isinstance(norm, RMSNorm):
            return Norm(2, norm.epsilon, self._copy(norm.factor().float()), None)
        if isinstance(norm, BatchNorm):
            # Its statistics are fixed, so it is a scale and a shift.
            by = norm.gamma.float() / (norm.variance.float() + norm.epsilon).sqrt()
            return Norm(3, 0.0, self._copy(by), self._copy(norm.beta.float() - norm.mean.float() * by))
        return Norm()

    def _output(self, output: nn.Module, embedding: Embedding) -> Product:
        if isinstance(output, QuantizedLinear):
            return self._product([output])
        weight, bias = (output.weight, output.bias) if isinstance(output, Logits) else (None, None)
        weight = embedding.table if weight is None else weight
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = bias  # type: ignore[assignment]
        return self._product([linear])

    def _products(self, parts: Sequence[nn.Linear | QuantizedLinear]) -> list[Product]:
        """Products of the same input with outputs side by side; consecutive parts of one kind become one product."""
        return [self._product(list(alike)) for _, alike in itertools.groupby(parts, key=kind_of)]

    def _product(self, parts: Sequence[nn.Linear | QuantizedLinear]) -> Product:
        """One product for parts of one kind, with their outputs side by side."""
        kind, inputs = kind_of(parts[0]), parts[0].in_features
        biases = [torch.zeros(part.out_features) if part.bias is None else part.bias.detach().float() for part in parts]
        biased = any(part.bias is not None for part in parts)
        outputs = sum(part.out_features for part in parts)
        weights = [part.stored_weight if isinstance(part, QuantizedLinear) else part.weight.detach() for part in parts]
        weights = [weight.weight if isinstance(weight, Bf16) else weight for weight in weights]
        return Product(
            KINDS[kind],
            outputs,
            inputs,
            self._weight(weights, KINDS[kind], layout_of(kind, inputs), outputs),
            self._copy(torch.cat(biases)) if biased else None,
        )

    def _weight(self, weights: Sequence[Weight], kind: int, layout: Layout, outputs: int) -> int:
        """The address where these weights will be, concatenated; adds the packing that puts them there."""
        lanes = self._lanes
        to = self._memory.allocate(
            -(-outputs // lanes) * layout.groups * (layout.words * 4 + layout.halves * 2) * lanes
        )
        sources = (Source * len(weights))(*map(self._source, weights))
        blocks = sum(-(-packing.outputs // lanes) for packing in self.packings[-1:])
        before = blocks + sum(packing.first for packing in self.packings[-1:])
        self.packings.append(Packing(sources, kind, len(sources), outputs, *layout, before, to))
        return to

    def _source(self, weight: Weight) -> Source:
        q, *scales = [weight] if isinstance(weight, Tensor) else [part for part in weight if part.ndim > 1]
        fields = [q if q.stride(-1) == 1 else q.contiguous(), *scales]
        self._sources += fields
        steps = [step * field.itemsize for field in fields for step in field.stride()[:2]]
        pointers = [field.data_ptr() for field in fields]
        return Source(*pointers, *[None] * (3 - len(fields)), *steps, *[0] * (6 - len(steps)), len(q))

    def clear_packings(self) -> None:
        """Release the sources after packing."""
        self.packings, self._sources = [], []

    def _copy(self, tensor: Tensor) -> int:
        return self._small.copy(tensor.detach())


class Memory:
    """Allocates tensors in huge pages if the system has them, because a step reads all of them once."""

    REGION = 1 << 26
    # The default, shared memory, has no huge pages.
    OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}

    def __init__(self) -> None:
        self._regions: list[mmap.mmap] = []
        self._used = self.REGION

    def copy(self, tensor: Tensor) -> int:
        """Copy a tensor here and return its address."""
        place = self.allocate(tensor.nbytes)
        ctypes.memmove(place, tensor.contiguous().data_ptr(), tensor.nbytes)
        return place

    def allocate(self, size: int) -> int:
        """The address of `size` zero bytes."""
        size = -(-size // 64) * 64
        if not self._regions or self._used + size > len(self._regions[-1]):
            self._regions.append(mmap.mmap(-1, max(size, self.REGION), **self.OWN))
            self._used = 0
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # the kernel has none
                    self._regions[-1].madvise(mmap.MADV_HUGEPAGE)
        place = torch.frombuffer(self._regions[-1], dtype=torch.uint8, offset=self._used).data_ptr()
        self._used += size
        return place


class Layout(NamedTuple):
    """Layout of a row: groups; of each group, bytes as stored, packed words and 16-bit numbers; bits to invert."""

    groups: int
    bytes: int
    words: int
    halves: int = 0
    flip: int = 0


# Of a block of a GGUF file: bits of q, and 16-bit numbers: d, e, and two of the 8-bit s and t in each.
BLOCK_LAYOUTS = {
    **{"q5_0": (5, 1), "q5_1": (5, 2), "iq4_nl": (4, 1), "q2_k": (2, 2 + 16), "q3_k": (3, 1 + 8)},
    **{"q4_k": (4, 2 + 8), "q5_k": (5, 2 + 8), "q6_k": (6, 1 + 8)},
}


def embedding_table(stack: Stack) -> Tensor | None:
    """The table [V, D] whose rows are the embeddings of tokens; None if more than that is computed."""
    added = (stack.position, stack.segment, stack.embedding_norm)
    if type(stack.embedding) is not Embedding or stack.embedding.factor != 1.0 or any(one is not None for one in added):
        return None
    return stack.embedding.table.detach().contiguous()


def layout_of(kind: str, inputs: int) -> Layout:
    if kind == "float32":
        return Layout(1, 4 * inputs, inputs)
    if kind == "bf16":
        return Layout(1, 2 * inputs, -(-inputs // GROUP) * GROUP // 2)
    if kind == "int8":
        return Layout(-(-inputs // GROUP), GROUP, GROUP // 4, 1, SIGNS)
    if kind == "int4":
        return Layout(inputs // GROUP, GROUP // 2, GROUP // 8, 2)
    (bits, halves), stored = BLOCK_LAYOUTS[kind], TYPES_BY_NAME[kind.upper()]
    return Layout(inputs // stored.block_values, stored.block_bytes, bits * stored.block_values // 32, halves)


def kind_of(part: nn.Linear | QuantizedLinear) -> str:
    return part.kind if isinstance(part, QuantizedLinear) else "float32"
