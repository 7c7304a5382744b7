"""LoRA adapters in the memory layout of low_rank.h. The structures must have the same fields as those in structs.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.models.stack import Stack
from chumoku.nn.lora import Adapter

LANES = 16  # of the widest registers: A has zeros up to a multiple of this many rows


class LowRankFields(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rank", "inputs", "first", "outputs")),
        *((name, ctypes.c_void_p) for name in ("a", "b")),
    )


class LayerAdapter(ctypes.Structure):
    _fields_ = (
        *(("attention", LowRankFields * 3), ("output", LowRankFields * 1)),
        *(("up", LowRankFields * 2), ("down", LowRankFields * 1)),
    )


# The matrices of a layer, by the products that compute them side by side.
PARTS = {
    "attention": ("attention.query", "attention.key", "attention.value"),
    "output": ("attention.output",),
    "up": ("feedforward.gate", "feedforward.up"),
    "down": ("feedforward.down",),
}


class PackedAdapter:
    """An adapter of a decoder as structures for step.cpp."""

    def __init__(self, stack: Stack, adapter: Adapter) -> None:
        self._tensors: list[Tensor] = []  # memory that the pointers refer to
        remaining = set(adapter)
        self._layers = (LayerAdapter * len(stack.blocks))()
        for number, (block, layer) in enumerate(zip(stack.blocks, self._layers, strict=True)):
            matrices = dict(block.named_modules())
            for part, names in PARTS.items():
                present = [name for name in names if name in matrices]
                addresses = [f"decoder.blocks.{number}.{name}" for name in present]
                self._fill(getattr(layer, part), addresses, [matrices[name].out_features for name in present], adapter)
                remaining.difference_update(addresses)
        if remaining:
            raise UsageError(f"The native engine cannot run an adapter of {min(remaining)}.")
        self.address = ctypes.addressof(self._layers)

    def _fill(
        self, fields: ctypes.Array[LowRankFields], addresses: Sequence[str], outputs: Sequence[int], adapter: Adapter
    ) -> None:
        """Describe the adapted ones of these matrices, whose outputs are side by side."""
        for place, address in enumerate(addresses):
            if (one := adapter.get(address)) is not None:
                a = torch.nn.functional.pad(one.a.detach().float(), (0, 0, 0, -one.rank % LANES)).contiguous()
                b = (one.b.detach().float() * one.scale).T.contiguous()
                self._tensors += [a, b]
                sizes = (one.rank, a.shape[1], sum(outputs[:place]), outputs[place])
                fields[place] = LowRankFields(*sizes, a.data_ptr(), b.data_ptr())
