"""Calls into the library: one pass through a stack for tokens of any rows and positions.

A token is (row, position, visible): its row, its position, and how many positions it attends to. One new token for each
of many rows, a prompt, or a whole source in an encoder are all tokens of one call.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.engines.native import build
from chumoku.decoding.engines.native.pack import Packed
from chumoku.decoding.engines.native.pack_adapter import PackedAdapter
from chumoku.decoding.engines.native.positions import PositionTables, make_tables
from chumoku.decoding.engines.native.structs import Batch, Packing
from chumoku.decoding.engines.supported_settings import find_unsupported
from chumoku.errors import ChumokuError, TooLargeError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.embeddings import check_bounds
from chumoku.nn.modules import named_parts
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear

CHUNK = 1 << 22  # bytes that one thread hashes at a time


class Weights:
    """A model's matrices, packed for the library. `wait` returns when packing is complete."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel) -> None:
        lanes = _library().lanes()
        self.decoder = Packed(model.decoder, model.config, model.head, lanes=lanes)
        self.encoder: Packed | None = None
        if isinstance(model, EncoderDecoderModel):
            self.encoder = Packed(model.encoder, model.config, None, lanes=lanes)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Pack in another thread; returns when that thread is running."""
        started = threading.Event()

        def pack() -> None:
            started.set()
            with contextlib.suppress(ChumokuError):  # raised again by `wait`
                self._pack()

        self._thread = threading.Thread(target=pack, daemon=True)
        self._thread.start()
        started.wait()

    def wait(self) -> Weights:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._pack()  # the rest, for example after a fork while packing
        return self

    def _pack(self) -> None:
        pack_all(self.decoder)
        if self.encoder is not None:
            pack_all(self.encoder)


def pack_all(packed: Packed) -> Packed:
    """Pack all matrices that are not packed yet, in one call."""
    if packed.packings:
        call_library("pack", len(packed.packings), (Packing * len(packed.packings))(*packed.packings))
        packed.clear_packings()
    return packed


class Store:
    """Keys and values of each layer [2, R, G, C, K] in R slots; C may differ between layers."""

    def __init__(self, layers: Sequence[Tensor]) -> None:
        self.layers = layers
        self.rows = layers[0].shape[1]
        self.nbytes = sum(layer.nbytes for layer in layers)
        self.addresses = (ctypes.c_void_p * len(layers))(*(layer.data_ptr() for layer in layers))
        self.sizes = (ctypes.c_int32 * len(layers))(*(layer.shape[3] for layer in layers))


class CacheTensors(NamedTuple):
    """Keys and values, the slot of each position of each row, and the encoded sources."""

    store: Store
    origin: Tensor  # [R, C], int32
    memory: Sequence[Tensor] = ()  # cross-attention keys and values of each row [L, 2, S, G·K]


class Tokens(NamedTuple):
    """New tokens: ids, rows, positions, number of visible positions, and slots for their keys and values."""

    tokens: Sequence[int]
    row: Sequence[int]
    position: Sequence[int]
    visible: Sequence[int]
    slot: Sequence[int]


class TensorIdentity:
    """Compares a tensor by identity, and keeps it alive, so that its id is not reused."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorIdentity) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


_weights: weakref.WeakKeyDictionary[Model, tuple[object, Weights]] = weakref.WeakKeyDictionary()
_pool: tuple[tuple[int, int], int] | None = None
_lock = threading.Lock()  # the thread pool executes one call at a time


def weights(model: DecoderModel | EncoderDecoderModel) -> Weights:
    """The model's packed matrices; they are packed again only if they have changed."""
    known, state = _weights.get(model), fingerprint(model)
    if known is None or known[0] != state:
        known = _weights[model] = (state, Weights(model))
    return known[1].wait()


def prepare(model: Model) -> None:
    """Start packing the matrices of a model in the background, if the library can run it."""
    if isinstance(model, DecoderModel | EncoderDecoderModel) and model not in _weights and unsupported(model) is None:
        packed = Weights(model)
        _weights[model] = (fingerprint(model), packed)
        packed.start()


def fingerprint(model: Model) -> list[object]:
    """Hashes of all tensors. (PyTorch's version counter misses the changes of its fused optimizers.)

    Quantized weights are not trained: for them, identity and version counter are enough.
    """
    fixed: dict[int, Tensor] = {}
    others: dict[int, Tensor] = {}
    for _, part in named_parts(model):
        stored = part._weight_type._fields if isinstance(part, QuantizedLinear | QuantizedEmbedding) else ()
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                (fixed if name in stored and not tensor.is_inference() else others)[id(tensor)] = tensor
    tensors = [tensor.detach().contiguous() for tensor in others.values()]
    chunks = [(t.data_ptr() + at, min(CHUNK, t.nbytes - at)) for t in tensors for at in range(0, t.nbytes, CHUNK)]
    addresses, sizes = (kind * len(chunks) for kind in (ctypes.c_void_p, ctypes.c_size_t))
    found = (ctypes.c_uint64 * len(chunks))()
    call_library("fingerprints", len(chunks), addresses(*(p[0] for p in chunks)), sizes(*(p[1] for p in chunks)), found)
    return [
        *((TensorIdentity(tensor), tensor._version) for tensor in fixed.values()),
        *(t.data_ptr() for t in tensors),
        *found,
    ]


def unsupported(model: Model) -> str | None:
    """Why the library cannot run a model of this config, precision and device, as sentences; None if it can.

    Whether the model is unmodified is checked elsewhere (engines/unmodified.py).
    """
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        return "It has no decoder."
    if model.device.type != "cpu":
        return f"It is on {model.device}."
    parameters = [
        tensor for _, part in named_parts(model) for tensor in part._parameters.values() if tensor is not None
    ]
    if odd := {tensor.dtype for tensor in parameters} - {torch.float32}:
        return f"Its parameters are {odd.pop()}; open it with a precision ('bf16') instead of casting it."
    if setting := find_unsupported("native", model.config):
        return f"It has the setting {setting}."
    return None if build.library() is not None else build.why_not()


def _library() -> ctypes.CDLL:
    library = build.library()
    if library is None:
        raise ChumokuError(build.why_not() or "The native library is not available.")
    return library


def thread_pool() -> ctypes.c_void_p:
    """The thread pool, with as many threads as PyTorch uses; a forked process gets its own."""
    global _pool
    key = (os.getpid(), torch.get_num_threads())
    if _pool is None or _pool[0] != key:
        library = _library()
        library.pool_open.restype = ctypes.c_void_p
        if _pool is not None and _pool[0][0] == key[0]:
            library.pool_close(ctypes.c_void_p(_pool[1]))
            _pool = None
        opened = library.pool_open(key[1])
        if opened is None:
            raise TooLargeError(f"The system cannot start {key[1]} threads. Use fewer, with torch.set_num_threads.")
        _pool = key, opened
    return ctypes.c_void_p(_pool[1])


def call_library(name: str, *arguments: object) -> None:
    """Call a function of the library with the thread pool; calls from other threads wait."""
    with _lock:
        failed = getattr(_library(), name)(thread_pool(), *arguments)
    if failed:
        raise TooLargeError("There is not enough memory for so many tokens at once. Use fewer.")


def _unlock() -> None:
    """After a fork, no thread of the child holds the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def run(
    packed: Packed,
    stack: Stack,
    new: Tokens,
    cache: CacheTensors,
    outputs: Sequence[int],
    tables: PositionTables,
    adapters: Sequence[PackedAdapter | None] = (),
    most_likely: Tensor | None = None,
) -> Tensor:
    """The logits (for an encoder, the hidden vectors) of the tokens with indices `outputs`.

    tables         for all positions up to the largest
    adapters       of each token; by default none has one
    most_likely    int64 [n]; gets the token of the largest logit of each output, −1 if the logits are not finite
    """
    count = len(new.tokens)
    # One array for all. After a step, nothing but weights is in the processor's caches, so every operation counts.
    numbers = (ctypes.c_int32 * (5 * count + len(outputs)))(*itertools.chain(*new, outputs))
    tokens, row, position, visible, slot, output_tokens = (
        ctypes.addressof(numbers) + 4 * count * place for place in range(len(new) + 1)
    )
    x = embed(packed, stack, new)
    logits = torch.empty(len(outputs), packed.fields.logits.outputs or packed.fields.width)
    addresses = (ctypes.c_void_p * len(cache.memory))(*(source.data_ptr() for source in cache.memory))
    lengths = (ctypes.c_int32 * len(cache.memory))(*(source.shape[2] for source in cache.memory))
    batch = Batch(
        count=count,
        row=row,
        position=position,
        visible=visible,
        slot=slot,
        positions=tables.positions,
        rotation=None if tables.rotation is None else tables.rotation.data_ptr(),
        bias=None if tables.bias is None else tables.bias.data_ptr(),
        x=None if x is None else x.data_ptr(),
        store=ctypes.addressof(cache.store.addresses),
        sizes=ctypes.addressof(cache.store.sizes),
        rows=cache.store.rows,
        capacity=cache.origin.shape[1],
        origin=cache.origin.data_ptr(),
        memory=ctypes.addressof(addresses),
        memory_length=ctypes.addressof(lengths),
        outputs=len(outputs),
        output_tokens=output_tokens,
        logits=logits.data_ptr(),
        tokens=tokens,
        table=None if packed.table is None else packed.table.data_ptr(),
        most_likely=None if most_likely is None else most_likely.data_ptr(),
    )
    if any(adapters):
        pointers = [None if adapter is None else adapter.address for adapter in adapters]
        batch.adapters = ctypes.cast((ctypes.c_void_p * count)(*pointers), ctypes.c_void_p)
    call_library("step", ctypes.byref(packed.fields), ctypes.byref(batch))
    return logits


def embed(packed: Packed, stack: Stack, new: Tokens) -> Tensor | None:
    """The embeddings of new tokens [n, D]; None if the library reads them from the table."""
    if packed.table is not None:
        check_bounds(min(new.tokens), max(new.tokens), packed.table.shape[0], "token")
        return None
    tokens, position = torch.tensor([new.tokens, new.position], dtype=torch.int32)[:, None]
    return stack.embed(tokens, position, max(new.position) + 1, None)[0].contiguous()


def encode_sources(
    model: EncoderDecoderModel, encoder: Packed, decoder: Packed, sources: Sequence[Sequence[int]]
) -> list[Tensor]:
    """The cross-attention keys and values of each source [L, 2, S, G·K]."""
    lengths = list(map(len, sources))
    states = _states(model, encoder, sources)
    layers = []
    for products, norm in decoder.memory:
        parts = [torch.empty(len(states), product.outputs) for product in products]
        for product, part in zip(products, parts, strict=True):
            pointers = (ctypes.c_void_p(states.data_ptr()), ctypes.c_void_p(part.data_ptr()))
            call_library("product", ctypes.byref(product), len(states), *pointers)
        memory = torch.cat(parts, dim=1).view(len(states), 2, -1).transpose(0, 1)
        if norm is not None:
            memory[0] = norm(memory[0].reshape(-1, len(norm.gamma))).view(memory[0].shape)
        layers.append(memory)
    together = torch.stack(layers)  # [L, 2, all tokens, G·K]
    return [part.contiguous() for part in torch.split(together, lengths, dim=2)]


def _states(model: EncoderDecoderModel, packed: Packed, sources: Sequence[Sequence[int]]) -> Tensor:
    """The encoder's vectors of the tokens of all sources, [tokens, D]. A token attends to its whole source."""
    count, longest = len(sources), max(map(len, sources))
    row = [number for number, source in enumerate(sources) for _ in source]
    position = [place for source in sources for place in range(len(source))]
    tokens = [token for source in sources for token in source]
    new = Tokens(tokens, row, position, [len(sources[number]) for number in row], row)
    config = model.config
    store = Store([*torch.empty(config.encoder_depth, 2, count, config.key_heads, longest, config.key_width)])
    cache = CacheTensors(store, torch.empty(count, longest, dtype=torch.int32))
    return run(packed, model.encoder, new, cache, range(len(tokens)), make_tables(model.encoder, longest))
