"""A step of one row as a single kernel (step.cu), for decoders of the usual kinds.

Five kernels a layer each take about 3 µs more than their weights need. In one kernel, the weights of the next product
are copied while blocks exchange the results of this one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.engines.gpu.tables import Tables, read_scoring
from chumoku.decoding.engines.gpu.weights import GATES, Layer, Matrix, Norm, UpDown
from chumoku.models.config import ModelConfig
from chumoku.nn.cuda import INSTRUCTIONS, Kernel, can_compile
from chumoku.nn.embeddings import Embedding
from chumoku.nn.quantized import Int4, Int8

FILES = ("step_layout", "step_weights", "step_exchange", "step_products", "step_attention", "step")
SOURCES = [INSTRUCTIONS, *(Path(__file__).with_name(f"{name}.cu") for name in FILES)]  # compiled as one
TILE, GROUP = 16, 32  # rows of a tile, and weights with one scale
SCALE_BYTES = {8: 2, 4: 4}  # of a group
ALONE = 512  # a past of up to this many keys is not divided into parts
LONGEST = 4096  # a longer past would need more parts than there are
LEAST_SHARED = 200 << 10  # bytes; with less, too few weights are on their way
MOST_STAGES = 8  # buffers of a block
# How many of them are being filled: while the block waits for words, and otherwise, by the bits of the weights.
COPIES_WHILE_WAITING, COPIES_OTHERWISE = 1, {4: 3, 8: 2, 16: 4}
COPY_BYTES = 2048  # of one copy of weights, which has at least one row
MOST_HIDDEN = 200  # elements of h that a block computes; the sums of more leave too little room for buffers
MOST_PARTS = 7  # of a row's inputs
ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
# A model with another value of one of these keys runs as several kernels.
SUPPORTED: dict[str, tuple[object, ...]] = {
    **{"kind": ("decoder",), "placement": ("pre",), "parallel": (False,), "experts": (0,), "key_width": (64, 128)},
    **{"embedding_norm": (False,)},
    **{"attention_window": (None,), "score_cap": (None,), "position": ("rotary", "learned", "sinusoidal", "none")},
}


class GpuSizes(NamedTuple):
    """What the kernel uses of a GPU."""

    blocks: int  # one for each multiprocessor
    shared_bytes: int  # of a block
    warps: int = 16  # that compute; one more copies

    @classmethod
    def of(cls, device: torch.device) -> GpuSizes:
        found = torch.cuda.get_device_properties(device)
        # PyTorch 2.6 does not know this size.
        return cls(found.multi_processor_count, getattr(found, "shared_memory_per_block_optin", 0))

    def part(self, bits: int) -> int:
        """How many inputs of a row are multiplied at once."""
        return self.warps * (64 if bits == 16 else 128)

    def tile_bytes(self, inputs: int, bits: int) -> int:
        """Bytes of a tile's part in shared memory, with space between its rows."""
        part = min(inputs, self.part(bits))
        space = 0 if part == inputs else 16 if bits == 8 else 64
        scales = 0 if bits == 16 else part // GROUP * SCALE_BYTES[bits] + 16
        return TILE * (part * bits // 8 + space + scales)


class Pointers(ctypes.Structure):
    """`Step` of step.cu."""

    _fields_ = [
        ("layers", ctypes.c_int64),
        ("logits", ctypes.c_int64 * 3),
        ("norm", ctypes.c_int64 * 2),
        *((name, ctypes.c_int64) for name in ("table", "places", "token", "length", "cosines", "sines")),
        *((name, ctypes.c_int64) for name in ("words", "counter", "finished_warps", "best", "out", "most_likely")),
        ("capacity", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("factor", "scale", "epsilon")),
    ]


class StepOutput(NamedTuple):
    logits: Tensor  # [rows, V]
    most_likely: Tensor  # [rows], the token of the largest logit, −1 if the logits are not finite


class WholeStep:
    """The kernel for one model and one store of keys and values [L, 2, rows, G, C, K]; it uses the first row."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[Layer],
        norm: Norm,
        logits: Matrix,
        config: ModelConfig,
        store: Tensor,
        tables: Tables,
    ) -> None:
        sizes, device = GpuSizes.of(store.device), store.device
        constants = kernel_constants(layers, logits, config, store.dtype, tables, sizes)
        self._kernel = Kernel(SOURCES, "run_step", constants, shared_bytes=sizes.shared_bytes)
        self._sizes, self._store, self._outputs = sizes, store, logits.outputs
        self._kept: list[Tensor] = []
        table = [self._layer(layer, cached) for layer, cached in zip(layers, store, strict=True)]
        head, parts = config.key_width, constants["PARTS"]
        words = (config.heads + 2 * config.key_heads) * head // 2 + config.heads * parts * (head // 2 + 1)
        words += config.width + config.hidden // 2
        cos, sin, _ = tables.rotation or (store, store, "none")
        counters = torch.tensor([1, 0], dtype=torch.int32, device=device)
        self._pointers = Pointers(
            layers=self._keep(torch.tensor(table, device=device)),
            logits=self._matrix(logits),
            norm=self._norm(norm),
            table=self._keep(embedding.table),
            places=0 if tables.places is None else self._keep(tables.places),
            cosines=self._keep(cos),
            sines=self._keep(sin),
            words=self._keep(torch.zeros(words, dtype=torch.int64, device=device)),
            counter=self._keep(counters),
            finished_warps=self._keep(counters[1:]),
            best=self._keep(torch.zeros(1, dtype=torch.int64, device=device)),
            capacity=store.shape[4],
            factor=embedding.factor,
            scale=read_scoring(config).scale,
            epsilon=norm.epsilon,
        )

    def run(self, tokens: Tensor, lengths: Tensor) -> StepOutput:
        """One token for the first row, whose length grows by one."""
        output = StepOutput(self._store.new_empty(1, self._outputs), torch.empty_like(tokens))
        pointers = Pointers.from_buffer_copy(self._pointers)
        pointers.token, pointers.length = tokens.data_ptr(), lengths.data_ptr()
        pointers.out, pointers.most_likely = output.logits.data_ptr(), output.most_likely.data_ptr()
        self._kernel.launch(self._sizes.blocks, 32 * (self._sizes.warps + 1), pointers, together=True)
        return output

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor, which stays allocated."""
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _layer(self, layer: Layer, cache: Tensor) -> list[int]:
        norms = [norm for norm in (layer.attention_norms.input, layer.feedforward_norms.input) if norm is not None]
        addresses = [address for matrix in matrices_of(layer) for address in self._matrix(matrix)]
        addresses += [address for norm in norms for address in self._norm(norm)]
        return [*addresses, cache[0].data_ptr(), cache[1].data_ptr()]

    def _matrix(self, matrix: Matrix) -> tuple[int, ...]:
        codes, *scales = tensors_of(matrix)
        # A second copy of the scales, in the order of the kernel: in int4, a fifth of the memory of the weights.
        in_parts = self._keep(self._scales_in_parts(torch.stack(scales, -1), bits_of(matrix))) if scales else 0
        return self._keep(codes), in_parts, 0 if matrix.bias is None else self._keep(matrix.bias.float())

    def _scales_in_parts(self, scales: Tensor, bits: int) -> Tensor:
        """Scales [rows, groups, n] as [parts, rows, n numbers of each group and 16 bytes of space]."""
        rows, groups, numbers = scales.shape
        part_groups = min(groups, self._sizes.part(bits) // GROUP)
        padded = F.pad(scales, (0, 0, 0, -groups % part_groups))
        parts = padded.reshape(rows, -1, part_groups * numbers).transpose(0, 1)
        return F.pad(parts, (0, 8)).contiguous()

    def _norm(self, norm: Norm) -> tuple[int, ...]:
        return self._keep(norm.gamma.float().contiguous()), self._keep(norm.beta.float().contiguous())


def prepare(
    embedding: Embedding,
    layers: Sequence[Layer],
    norm: Norm | None,
    logits: Matrix,
    config: ModelConfig,
    store: Tensor,
    tables: Tables,
) -> Callable[[], WholeStep] | None:
    """A function that compiles the kernel when it is first called; None if the kernel cannot run this model."""
    if norm is None or embedding.table.dtype != store.dtype or not can_run(layers, logits, norm, config, store):
        return None
    return cache(partial(WholeStep, embedding, layers, norm, logits, config, store, tables))


def can_run(layers: Sequence[Layer], logits: Matrix, norm: Norm, config: ModelConfig, store: Tensor) -> bool:
    """Whether the kernel can run this model on this GPU."""
    if store.device.type != "cuda" or not can_compile():
        return False
    if torch.cuda.get_device_capability(store.device)[0] < 9 or store.dtype not in (torch.bfloat16, torch.float16):
        return False
    if any(getattr(config, key) not in values for key, values in SUPPORTED.items()):
        return False
    sizes = GpuSizes.of(store.device)
    norms = [found for layer in layers for found in (layer.attention_norms.input, layer.feedforward_norms.input)]
    matrices = [matrix for layer in layers for matrix in matrices_of(layer)]
    return (
        sizes.shared_bytes >= LEAST_SHARED
        and 2 * config.heads <= sizes.blocks
        # Each block has outputs of each layer: no block may be a layer behind, where words are written again.
        and 2 * sizes.blocks <= config.width <= 32 * sizes.warps * sizes.blocks
        and config.hidden <= MOST_HIDDEN * sizes.blocks
        and config.width % 64 == config.hidden % 64 == 0  # int8 pads rows of weights, and the constants do not
        and all(found is not None and found.epsilon == norm.epsilon for found in norms)
        and all(layer.query_norm is None and layer.key_norm is None for layer in layers)
        and len({layer.rotated for layer in layers}) == 1
        and len({bits_of(matrix) for matrix in matrices}) == 1
        and all(fits(matrix, sizes) for matrix in [*matrices, logits])
    )


def fits(matrix: Matrix, sizes: GpuSizes) -> bool:
    """Whether rows can be copied to shared memory, in multiples of 16 bytes, and their inputs are not too many."""
    tensors, bits = tensors_of(matrix), bits_of(matrix)
    inputs = tensors[0][0].nbytes * 8 // bits
    aligned = all(tensor[0].nbytes % 16 == 0 and tensor.data_ptr() % 16 == 0 for tensor in tensors)
    return aligned and inputs % 64 == 0 and inputs <= MOST_PARTS * sizes.part(bits)


def matrices_of(layer: Layer) -> list[Matrix]:
    """In the order of their use."""
    feed = layer.feedforward
    return [layer.projection, layer.output, *(feed if isinstance(feed, UpDown) else ())]


def tensors_of(matrix: Matrix) -> tuple[Tensor, ...]:
    return (matrix.weight,) if isinstance(matrix.weight, Tensor) else tuple(matrix.weight)


def bits_of(matrix: Matrix) -> int:
    return 4 if isinstance(matrix.weight, Int4) else 8 if isinstance(matrix.weight, Int8) else 16


def kernel_constants(
    layers: Sequence[Layer],
    logits: Matrix,
    config: ModelConfig,
    dtype: torch.dtype,
    tables: Tables,
    sizes: GpuSizes,
) -> dict[str, int]:
    """The constants of step.cu."""
    gated, kind = config.feedforward in GATES, GATES.get(config.feedforward, config.feedforward)
    cos, _, pairing = tables.rotation if tables.rotation and layers[0].rotated else (torch.empty(0), None, "none")
    bits, logits_bits = bits_of(layers[0].projection), bits_of(logits)
    float16, layer_norm = dtype == torch.float16, config.norm == "layer"
    inputs = {config.width: bits, config.heads * config.key_width: bits, config.hidden: bits}
    stage = max(sizes.tile_bytes(count, bits) for count in inputs)
    stage = max(stage, sizes.tile_bytes(config.width, logits_bits), 4 * TILE * config.key_width)
    return {
        **{"WIDTH": config.width, "HEADS": config.heads, "KV_HEADS": config.key_heads, "HEAD": config.key_width},
        **{"HIDDEN": config.hidden, "GATED": int(gated), "VOCABULARY": logits.outputs, "LAYERS": len(layers)},
        **{"LAYER_BITS": bits, "LOGITS_BITS": logits_bits, "FLOAT16": int(float16)},
        **{"LAYER_NORM": int(layer_norm), "EARLY_NORM": int(layer_norm or float16), "ACTIVATION": ACTIVATIONS[kind]},
        **{"ROTATED": 2 * cos.shape[-1], "HALF_PAIRING": int(pairing == "half"), "BLOCKS": sizes.blocks},
        **{"PARTS": 4 if 4 * config.heads <= sizes.blocks else 2, "ALONE": ALONE, "WARPS": sizes.warps},
        **{"COPIES_WHILE_WAITING": COPIES_WHILE_WAITING, "COPIES_OTHERWISE": COPIES_OTHERWISE[bits]},
        # Wide layers are mostly weights; in narrow ones the words that blocks exchange would wait behind faster copies.
        **{"COPY_BYTES": COPY_BYTES, "COPIES_UNROLLED": 4 if bits == 4 and config.width > sizes.part(bits) else 1},
        **{"STAGE": stage, "MOST_STAGES": MOST_STAGES, "SHARED_BYTES": sizes.shared_bytes},
    }
