"""Calls into the library: a stack goes through once for some tokens, wherever each of them stands.

A token is (row, position, seen): whose it is, where its keys and values go, and how many positions it looks at. One new
token for each of many rows, a prompt, a whole source in an encoder: all are tokens in one call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.engines.native import build
from chumoku.decoding.engines.native.pack import Batch, Packed, Packing
from chumoku.errors import ChumokuError, TooLargeError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.quantized import Quantized, QuantizedEmbedding

PIECE = 1 << 22  # bytes that one thread looks through at a time


class Weights:
    """A model's matrices in the library's order, once they are `ready`."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel) -> None:
        lanes = _library().lanes()
        self.decoder = Packed(model.decoder, model.config, model.head, lanes=lanes)
        # PyTorch's products of many tokens are faster, except for quantized matrices.
        quantized = any(isinstance(module, Quantized) for module in model.modules())
        self.encoder: Packed | None = None
        if quantized and isinstance(model, EncoderDecoderModel):
            self.encoder = Packed(model.encoder, model.config, None, lanes=lanes)
        self._filling: threading.Thread | None = None

    def begin(self) -> None:
        """Pack them in a thread of its own, and come back when it is at it."""
        begun = threading.Event()

        def fill() -> None:
            begun.set()
            with contextlib.suppress(ChumokuError):  # who comes for them hears of it
                self._fill()

        self._filling = threading.Thread(target=fill, daemon=True)
        self._filling.start()
        begun.wait()

    def ready(self) -> Weights:
        if self._filling is not None:
            self._filling.join()
            self._filling = None
        self._fill()  # what is left, as in a process forked meanwhile
        return self

    def _fill(self) -> None:
        filled(self.decoder)
        if self.encoder is not None:
            filled(self.encoder)


def filled(packed: Packed) -> Packed:
    """Carry out what is left to pack, all of it in one call."""
    if packed.packings:
        work("pack", len(packed.packings), (Packing * len(packed.packings))(*packed.packings))
        packed.done()
    return packed


class Past(NamedTuple):
    """Where keys and values lie: [L, 2, R, C, G·K], in which of its rows each row's positions are, and the sources."""

    store: Tensor
    origin: Tensor  # [R, C], int32
    memory: Sequence[Tensor] = ()  # a row's source [L, 2, S, G·K]


class Tokens(NamedTuple):
    """New tokens: which they are, whose, where they stand, how many positions they see, and where their keys go."""

    tokens: Sequence[int]
    row: Sequence[int]
    position: Sequence[int]
    seen: Sequence[int]
    home: Sequence[int]  # a row of the past


class Same:
    """A tensor, equal to itself alone; held, so that no other takes its place in memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


_weights: weakref.WeakKeyDictionary[Model, tuple[object, Weights]] = weakref.WeakKeyDictionary()
_crew: tuple[tuple[int, int], int] | None = None
_one_at_a_time = threading.Lock()  # the crew goes through one piece of work, whoever brings it


def weights(model: DecoderModel | EncoderDecoderModel) -> Weights:
    """The model's matrices, packed once for as long as they stay what they are."""
    known, state = _weights.get(model), fingerprint(model)
    if known is None or known[0] != state:
        known = _weights[model] = (state, Weights(model))
    return known[1].ready()


def prepare(model: Model) -> None:
    """Begin to pack the matrices of a model that will be asked soon, where it can run here at all."""
    if isinstance(model, DecoderModel | EncoderDecoderModel) and model not in _weights and unsupported(model) is None:
        made = Weights(model)
        _weights[model] = (fingerprint(model), made)
        made.begin()


def fingerprint(model: Model) -> list[object]:
    """What every tensor holds. PyTorch counts changes in place too, but not those of its fused optimizers.

    Whole numbers are not trained: of them it is enough to know that they are the same tensors, unchanged.
    """
    wholes = [module for module in model.modules() if isinstance(module, Quantized | QuantizedEmbedding)]
    fixed = [part for module in wholes for part in module.stored_weight]
    known = {id(tensor) for tensor in fixed if not tensor.is_inference()}
    tensors = [t.detach().contiguous() for t in (*model.parameters(), *model.buffers()) if id(t) not in known]
    pieces = [(t.data_ptr() + at, min(PIECE, t.nbytes - at)) for t in tensors for at in range(0, t.nbytes, PIECE)]
    addresses, sizes = (kind * len(pieces) for kind in (ctypes.c_void_p, ctypes.c_size_t))
    found = (ctypes.c_uint64 * len(pieces))()
    work("fingerprints", len(pieces), addresses(*(p[0] for p in pieces)), sizes(*(p[1] for p in pieces)), found)
    return [*((Same(t), t._version) for t in fixed if id(t) in known), *(t.data_ptr() for t in tensors), *found]


def unsupported(model: Model) -> str | None:
    """Why the library cannot run a model of this config, precision and device, as part of a sentence; None if it can.

    Whether the model is what its config says is another question (decoding/unmodified.py).
    """
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        return "it has no decoder"
    if model.device.type != "cpu":
        return f"it is on {model.device}"
    if odd := {tensor.dtype for tensor in model.parameters()} - {torch.float32}:
        return f"its parameters are {odd.pop()}; open it with a precision ('bf16') instead of casting it"
    if model.config.experts or model.config.position == "relative":
        return "it has experts or relative positions"
    return None if build.library() is not None else build.why_not()


def _library() -> ctypes.CDLL:
    library = build.library()
    if library is None:
        raise ChumokuError(build.why_not() or "There is no native library.")
    return library


def crew() -> ctypes.c_void_p:
    """The threads, as many as PyTorch uses; a forked process has to have its own."""
    global _crew
    key = (os.getpid(), torch.get_num_threads())
    if _crew is None or _crew[0] != key:
        library = _library()
        library.crew_open.restype = ctypes.c_void_p
        if _crew is not None and _crew[0][0] == key[0]:
            library.crew_close(ctypes.c_void_p(_crew[1]))
            _crew = None
        opened = library.crew_open(key[1])
        if opened is None:
            raise TooLargeError(f"The system gives no {key[1]} threads. Ask for fewer with torch.set_num_threads.")
        _crew = key, opened
    return ctypes.c_void_p(_crew[1])


def work(name: str, *arguments: object) -> None:
    """Have the crew do one piece of the library's work; who comes meanwhile waits."""
    with _one_at_a_time:
        failed = getattr(_library(), name)(crew(), *arguments)
    if failed:
        raise TooLargeError("There is no memory to work in for so many tokens at once. Ask for fewer.")


def _unlock() -> None:
    """In a forked process nobody is at work, whatever the lock says."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def run(
    packed: Packed,
    stack: Stack,
    new: Tokens,
    past: Past,
    asked: Sequence[int],
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The logits (of an encoder, the vectors) after the tokens asked for.

    `rotation` is cos and sin of rotary positions, for every position that the tokens have.
    """
    count, end = len(new.tokens), max(new.position) + 1
    # One tensor, since each costs as much as a small product.
    numbers = torch.tensor([*new, [*asked, *[0] * (count - len(asked))]], dtype=torch.int32)
    _, row, position, seen, home, wanted = (numbers.data_ptr() + 4 * count * place for place in range(len(numbers)))
    x = stack.embed(numbers[:1], numbers[2:3], end, None)[0].contiguous()
    outputs = packed.fields.logits.outputs or x.shape[1]
    answer = torch.empty(len(asked), outputs)
    cos, sin = (None, None) if rotation is None else (part.data_ptr() for part in rotation)
    addresses = (ctypes.c_void_p * len(past.memory))(*(source.data_ptr() for source in past.memory))
    lengths = (ctypes.c_int32 * len(past.memory))(*(source.shape[2] for source in past.memory))
    batch = Batch(
        count=count,
        row=row,
        position=position,
        seen=seen,
        home=home,
        cos=cos,
        sin=sin,
        x=x.data_ptr(),
        store=past.store.data_ptr(),
        rows=past.store.shape[2],
        capacity=past.store.shape[3],
        origin=past.origin.data_ptr(),
        memory=ctypes.cast(addresses, ctypes.c_void_p),
        memory_length=ctypes.cast(lengths, ctypes.c_void_p),
        asked=len(asked),
        wanted=wanted,
        logits=answer.data_ptr(),
    )
    work("step", ctypes.byref(packed.fields), ctypes.byref(batch))
    return answer


def encoded(model: EncoderDecoderModel, packed: Weights, sources: Sequence[Sequence[int]]) -> list[Tensor]:
    """What cross-attention looks at, for each source [L, 2, S, G·K]."""
    lengths = list(map(len, sources))
    states = _states(model, sources) if packed.encoder is None else _native_states(model, packed.encoder, sources)
    layers = []
    for products in packed.decoder.memory:
        parts = [torch.empty(len(states), product.outputs) for product in products]
        for product, part in zip(products, parts, strict=True):
            pointers = (ctypes.c_void_p(states.data_ptr()), ctypes.c_void_p(part.data_ptr()))
            work("product", ctypes.byref(product), len(states), *pointers)
        layers.append(torch.cat(parts, dim=1).view(len(states), 2, -1).transpose(0, 1))
    together = torch.stack(layers)  # [L, 2, all tokens, G·K]
    return [part.contiguous() for part in torch.split(together, lengths, dim=2)]


def _states(model: EncoderDecoderModel, sources: Sequence[Sequence[int]]) -> Tensor:
    """The encoder's vectors of all sources' tokens, one after the other [tokens, D], as PyTorch computes them."""
    table = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
    real = torch.arange(table.shape[1]) < torch.tensor([len(source) for source in sources])[:, None]
    states: Tensor = model.encoder(table, mask=None if real.all() else real)
    return states[real].float()


def _native_states(model: EncoderDecoderModel, packed: Packed, sources: Sequence[Sequence[int]]) -> Tensor:
    """The same by the library: every token of a source sees all of it."""
    count, longest = len(sources), max(map(len, sources))
    row = [number for number, source in enumerate(sources) for _ in source]
    position = [place for source in sources for place in range(len(source))]
    tokens = [token for source in sources for token in source]
    new = Tokens(tokens, row, position, [len(sources[number]) for number in row], row)
    wide = model.config.key_heads * model.config.head_width
    store = torch.empty(model.config.encoder_depth, 2, count, longest, wide)
    past = Past(store, torch.empty(count, longest, dtype=torch.int32))
    return run(packed, model.encoder, new, past, range(len(tokens)), rotation(model.encoder, longest))


def rotation(stack: Stack, positions: int) -> tuple[Tensor, Tensor] | None:
    """cos and sin [positions, K/2] of a stack's rotary positions."""
    if stack.rotary is None:
        return None
    cos, sin, _ = stack.rotary(torch.arange(positions), torch.float32)
    return cos.contiguous(), sin.contiguous()
