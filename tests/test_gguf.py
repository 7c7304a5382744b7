"""GGUF files are read and written like the gguf library does, and invalid files are refused."""

from __future__ import annotations

import itertools
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import Cell
from gguf_weights import random_blocks as make_blocks
from gguf_weights import with_blocks
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import chumoku
from chumoku.decoding.engines.gpu.weights import unsupported
from chumoku.decoding.engines.native import build as native
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.generate import generate
from chumoku.errors import ChumokuError, DamagedError, LengthError, MissingExtraError, UsageError
from chumoku.models.build import build
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.nn import gguf_blocks
from chumoku.nn.gguf_blocks import BLOCK_KINDS, TYPES, Blocks
from chumoku.nn.plain import plain
from chumoku.nn.quantized import (
    GROUP,
    Int4,
    Int8,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedLogits,
    quantized_kinds,
)
from chumoku.weights.formats.gguf import header, open_gguf, write_gguf, writing
from chumoku.weights.open_model import load

gguf = pytest.importorskip("gguf", reason="The gguf library is what reading and writing are held against.")
BLOCKS = [number for number, kind in TYPES.items() if kind.dtype is None]
FLOATS = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}


# Files written by the library


def random_blocks(number: int, rows: int, count: int, seed: int) -> np.ndarray:
    """Random blocks; only float16 fields are limited, so that they are finite."""
    kind = TYPES[number]
    found = np.random.default_rng(seed).integers(0, 256, (rows, count, kind.block_bytes), dtype=np.uint8)
    starts = np.cumsum([0, *kind.field_bytes])
    for start, size in zip(starts, kind.field_bytes, strict=False):
        if size == 2:
            found[..., start + 1] &= 0xBF
    return found.reshape(rows, -1)


def write_with_library(
    path: Path, tensors: dict[str, tuple[np.ndarray, int]], fill: Callable[[Any], None] = lambda w: None
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    for name, (array, number) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("number", BLOCKS)
def test_blocks_are_dequantized_like_the_library(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly equal, with chunks that do not end at a row's end."""
    kind, official = TYPES[number], gguf.GGMLQuantizationType(number)
    assert (kind.name, (kind.block_values, kind.block_bytes)) == (official.name, gguf.GGML_QUANT_SIZES[official])
    monkeypatch.setattr(gguf_blocks, "CHUNK", 5 * kind.block_values)
    array = random_blocks(number, 7, 3, seed=number)
    file = open_gguf(write_with_library(tmp_path / "a.gguf", {"w": (array, number)}))
    expected = torch.from_numpy(gguf.quants.dequantize(array, official))
    assert file.tensors["w"].shape == (7, 3 * kind.block_values) == tuple(expected.shape)
    assert expected.isfinite().all()
    assert torch.equal(file.read("w"), expected)


@pytest.mark.parametrize(("number", "dtype"), FLOATS.items())
def test_float_types_are_returned_unchanged(number: int, dtype: torch.dtype, tmp_path: Path) -> None:
    numbers = torch.arange(2 * 3 * 5).view(2, 3, 5).to(dtype)
    array = numbers.view(torch.uint8).numpy() if dtype == torch.bfloat16 else numbers.numpy()
    path = write_with_library(tmp_path / "a.gguf", {"other": (np.ones(7, dtype=np.float32), 0), "w": (array, number)})
    found = open_gguf(path).read("w")
    assert found.dtype == dtype
    assert torch.equal(found, numbers)
    found.zero_()
    assert torch.equal(open_gguf(path).read("w"), numbers), "what is changed is not the file"


@pytest.mark.parametrize("number", BLOCKS)
def test_quantized_matrices_stay_quantized(number: int, tmp_path: Path) -> None:
    array = random_blocks(number, 7, 3, seed=number)
    file = open_gguf(write_with_library(tmp_path / "a.gguf", {"w": (array, number), "vector": (array[0], number)}))
    found = file.read("w", dequantize=False)
    expected = {"Q4_0": Int4, "Q4_1": Int4, "Q8_0": Int8}.get(TYPES[number].name, Blocks)
    assert isinstance(found, expected)
    floats = found if isinstance(found, Tensor) else found.dequantize()
    assert torch.equal(floats, file.read("w"))
    assert isinstance(file.read("vector", dequantize=False), Tensor), "only matrices are products"


def test_large_q4_0_scale_is_dequantized(tmp_path: Path) -> None:
    """w = d (q − 8) is d q + m with m = −8 d, unless m does not fit into float16."""
    array = random_blocks(2, 3, 1, seed=0)
    for d, kind in ((8184.0, Int4), (8192.0, Tensor)):
        array[1, :2] = np.array([d], dtype=np.float16).view(np.uint8)
        file = open_gguf(write_with_library(tmp_path / "a.gguf", {"w": (array, 2)}))
        found = file.read("w", dequantize=False)
        assert isinstance(found, kind)
        assert torch.equal(found if isinstance(found, Tensor) else found.dequantize(), file.read("w"))


def test_fields_equal_those_of_the_library(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        for number, name in enumerate(("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")):
            getattr(writer, f"add_{name}")(f"a.{name}", 101 + number)
        writer.add_int64("a.negative", -(1 << 40))
        writer.add_float32("a.float32", 0.1)
        writer.add_float64("a.float64", 0.1)
        writer.add_bool("a.bool", True)
        writer.add_string("a.string", "注目 \0 attention")
        writer.add_array("a.strings", ["", "猫", "b\0", "c" * 300])
        writer.add_array("a.numbers", [3, -5, 7])
        writer.add_array("a.floats", [0.5, -2.0])
        writer.add_array("a.bools", [True, False])

    path = write_with_library(tmp_path / "a.gguf", {"w": (np.ones(3, dtype=np.float32), 0)}, fill)
    fields = open_gguf(path).fields
    theirs = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if "GGUF." not in name}
    assert fields == theirs
    assert {name: type(value) for name, value in fields.items()} == {n: type(v) for n, v in theirs.items()}
    assert len(fields) == 18


# Files written by us


def fields_of_a_llama(model: Model) -> dict[str, Any]:
    config = model.config
    letters = [chr(letter) for letter in range(33, 127)]
    tokens = (letters + [f"{a}{b}" for a in letters for b in letters])[: config.vocabulary]
    merges = [f"{token[0]} {token[1]}" for token in tokens if len(token) == 2]
    return {
        "llama.context_length": config.context,
        "llama.embedding_length": config.width,
        "llama.block_count": config.layers,
        "llama.feed_forward_length": config.hidden,
        "llama.attention.head_count": config.heads,
        "llama.attention.head_count_kv": config.key_heads,
        "llama.rope.dimension_count": config.key_width,
        "llama.rope.freq_base": config.rotary.base,
        "llama.attention.layer_norm_rms_epsilon": config.norm_epsilon,
        "llama.vocab_size": config.vocabulary,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def llama(width: int = 96, hidden: int = 160) -> Model:
    config = Cell("decoder", "rotary").config(
        width=width, feedforward_width=hidden, layers=3, heads=6, kv_heads=2, vocabulary=211, context=64, norm="rms",
        placement="pre", feedforward="swiglu", bias=False, pairing="interleaved", tie_output=True, output_bias=False,
        scale_embedding=False, embedding_norm=False,
    )  # fmt: skip
    model = build(config, seed=7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    return model


NAMES = {
    "decoder.embedding.table": "token_embd.weight",
    "decoder.norm.gamma": "output_norm.weight",
    **{
        f"decoder.blocks.{layer}.{ours}": f"blk.{layer}.{theirs}.weight"
        for layer in range(3)
        for ours, theirs in (
            *(("attention_norm.gamma", "attn_norm"), ("feedforward_norm.gamma", "ffn_norm")),
            *(("attention.query.weight", "attn_q"), ("attention.key.weight", "attn_k")),
            *(("attention.value.weight", "attn_v"), ("attention.output.weight", "attn_output")),
            *(("feedforward.gate.weight", "ffn_gate"), ("feedforward.up.weight", "ffn_up")),
            ("feedforward.down.weight", "ffn_down"),
        )
    },
}


def tensors_of(model: Model) -> dict[str, Tensor]:
    return {NAMES[name]: tensor for name, tensor in model.named_parameters()}


def write(path: Path, model: Model, kind: str) -> Path:
    fields = fields_of_a_llama(model)
    write_gguf(path, architecture="llama", fields=fields, tensors=tensors_of(model), kind=kind)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_written_files_contain_the_input(kind: str, tmp_path: Path) -> None:
    model = llama()
    file = open_gguf(write(tmp_path / "a.gguf", model, kind))
    numbers = {name: value for name, value in fields_of_a_llama(model).items() if not isinstance(value, float)}
    assert numbers.items() <= file.fields.items() or all(file.fields[name] == numbers[name] for name in numbers)
    assert file.fields["general.file_type"] == {"f32": 0, "f16": 1, "q8_0": 7}[kind]
    for name, tensor in tensors_of(model).items():
        found = file.read(name)
        matrix = tensor.ndim == 2
        assert file.tensors[name].type == (kind.upper() if matrix else "F32")
        steps = tensor.abs().amax(-1, keepdim=True) * {"f32": 0, "f16": 2**-11, "q8_0": 1 / 220}[kind] * matrix
        assert ((found.float() - tensor).abs() <= steps).all()
        assert kind == "f32" or not matrix or not torch.equal(found.float(), tensor)


def test_rows_not_divisible_by_32_are_f16(tmp_path: Path) -> None:
    weights = {"w": torch.randn(5, 33), "v": torch.randn(5, 64), "position_embd.weight": torch.randn(7, 32)}
    write_gguf(tmp_path / "a.gguf", architecture="bert", fields={}, tensors=weights, kind="q8_0")
    file = open_gguf(tmp_path / "a.gguf")
    assert [file.tensors[name].type for name in weights] == ["F16", "Q8_0", "F32"]


def test_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", llama(), "f16")
    before = path.read_bytes()
    writer: Any = gguf.GGUFWriter
    for step in ("write_kv_data_to_file", "write_tensors_to_file"):

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(writer, step, fail)
            with pytest.raises(OSError, match="No space"):
                write(path, llama(), "q8_0")
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["a.gguf"]


@pytest.mark.parametrize(
    ("tensors", "fields", "kind", "sentence"),
    [
        ({"w": torch.tensor([[7e4]])}, {}, "f16", "w has values outside the range of f16"),
        ({"w": torch.tensor([math.nan])}, {}, "f32", "w has values outside the range of f32, or NaN"),
        ({"w": torch.full((1, 32), 9e6)}, {}, "q8_0", "w has values outside the range of q8_0"),
        ({}, {"a.b": {}}, "f32", "The field a.b is a dict"),
        ({}, {}, "q2_k", "cannot be written as 'q2_k'. Choose one of f32, f16, q8_0"),
    ],
)
def test_values_that_cannot_be_written_are_refused(
    tensors: dict[str, Tensor], fields: dict[str, Any], kind: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        write_gguf(tmp_path / "a.gguf", architecture="llama", fields=fields, tensors=tensors, kind=kind)
    assert os.listdir(tmp_path) == []


def test_missing_library_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[gguf\]'"):
        write_gguf(tmp_path / "a.gguf", architecture="llama", fields={}, tensors={}, kind="f32")


@pytest.mark.parametrize(("kind", "most"), [("f32", 1e-4), ("f16", 6e-3), ("q8_0", 0.15)])
def test_llama_cpp_computes_the_same(kind: str, most: float, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed.")
    model = llama(width=192)
    path = write(tmp_path / "a.gguf", model, kind)
    file = open_gguf(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(file.read(NAMES[name]))
    theirs = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True, type_k=0, type_v=0)
    tokens = [5, 101, 7, 53, 210, 11, 13]
    theirs.eval(tokens)
    expected = torch.tensor(np.array(theirs._scores))
    with torch.no_grad():
        found, other = (model(torch.tensor([[first, *tokens[1:]]])).logits[0] for first in (5, 6))
    assert float((found - expected).abs().max()) < most * float(expected.std())
    assert float((other - expected).abs().max()) > most * float(expected.std()), "seen to fail"


# Computing with quantized matrices


@pytest.mark.skipif(native.library() is None, reason=native.why_not() or "")
@pytest.mark.parametrize("number", [2, 3, 8])
def test_quantized_matrices_from_a_file_run(number: int, tmp_path: Path) -> None:
    """Quantized matrices and embedding from a file, compared with the dequantized model."""
    model, official = llama(), gguf.GGMLQuantizationType(number)
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors_of(model).items()}
    stored = {
        name: (gguf.quants.quantize(array, official), number) if array.ndim == 2 else (array, 0)
        for name, array in arrays.items()
    }
    file = open_gguf(write_with_library(tmp_path / "a.gguf", stored))
    quantized = llama()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(file.read(NAMES[name]))
    for name, parameter in list(quantized.named_parameters()):
        found = file.read(NAMES[name], dequantize=False)
        if isinstance(found, Tensor):
            parameter.data = found
        elif name == "decoder.embedding.table":
            quantized.decoder.embedding, quantized.head = QuantizedEmbedding(found), QuantizedLogits.of(found)
        else:
            parent, last = name.removesuffix(".weight").rsplit(".", 1)
            setattr(quantized.get_submodule(parent), last, QuantizedLinear.of(found))
    tokens = torch.tensor([[5, 101, 7], [210, 11, 13]])
    expected = model(tokens).logits
    with torch.no_grad():
        embedded = quantized.decoder.embedding(tokens)
    assert torch.equal(embedded, model.decoder.embedding(tokens))
    assert torch.equal(quantized.decoder.embedding.table, model.decoder.embedding.table)
    engine = NativeEngine(quantized, rows=2, capacity=7)
    engine.add_rows(2)
    output = engine.prefill(tokens.tolist())
    expected = expected.detach()
    assert float((output - expected[:, -1]).std() / expected.std()) < 0.03
    assert output.argmax(-1).tolist() == expected[:, -1].argmax(-1).tolist()


@pytest.mark.skipif(native.library() is None, reason=native.why_not() or "")
def test_every_type_runs_as_stored(tmp_path: Path) -> None:
    """A model with blocks of all types, and its token table in Q6_K: nothing is dequantized when it is opened."""
    model = llama(width=768, hidden=512)
    kinds = itertools.cycle(BLOCK_KINDS)
    stored: dict[str, tuple[np.ndarray, int]] = {}
    for name, tensor in tensors_of(model).items():
        if tensor.ndim == 1:
            stored[name] = tensor.detach().numpy(), 0
            continue
        kind = "q6_k" if name == "token_embd.weight" else next(kinds)
        blocks = make_blocks(kind, *tensor.shape, seed=len(stored))
        stored[name] = blocks.blocks.flatten(1).numpy(), gguf.GGMLQuantizationType[kind.upper()].value
    path = write_with_library(tmp_path / "a.gguf", stored, lambda writer: add_fields(writer, fields_of_a_llama(model)))
    opened = chumoku.load(path).model
    assert quantized_kinds(opened) == set(BLOCK_KINDS)
    tables = opened.decoder.embedding, opened.head
    assert [type(table) for table in tables] == [QuantizedEmbedding, QuantizedLogits]
    for module in (*tables, *(part for part in opened.modules() if isinstance(part, QuantizedLinear))):
        assert module.blocks.untyped_storage().nbytes() == path.stat().st_size, "a view of the file"
    floats = load(path).model
    tokens = torch.tensor([[5, 101, 7], [210, 11, 13]])
    with torch.no_grad():
        assert torch.equal(opened.decoder.embedding(tokens), floats.decoder.embedding(tokens))
        torch.testing.assert_close(opened(tokens).logits, floats(tokens).logits, atol=2e-3, rtol=0)
    prompts, greedy = [[5, 101, 7], [11, 13]], {"max_new_tokens": 13, "temperature": 0}
    assert isinstance(open_engine(opened, rows=2, capacity=16), NativeEngine)
    written = generate(opened, prompts, **greedy)
    with plain():
        assert generate(opened, prompts, **greedy) == written


def test_gpu_kernels_leave_blocks_to_pytorch() -> None:
    model = to_precision(llama(width=768, hidden=512), "int8")
    assert unsupported(model) is None
    model.head = QuantizedLogits.of(make_blocks("q6_k", 211, 768, seed=3))
    assert unsupported(model) == "Its output matrix is q6_k."
    assert "Its matrices are q4_k, q6_k." in str(
        unsupported(with_blocks(llama(width=768, hidden=512), ["q6_k", "q4_k"]))
    )


def add_fields(writer: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        writing._add_field(writer, name, value)


# Invalid files


def text(words: str | bytes) -> bytes:
    words = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(words)) + words


def field(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def file_of(
    *parts: bytes, tensors: int = 0, fields: int = 0, version: int = 3, data: int = 64, magic: bytes = b"GGUF"
) -> bytes:
    head = magic + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)
    return head + bytes(-len(head) % 32) + bytes(data)


HUGE = (1 << 63) - 1
CLAIMS: dict[str, tuple[bytes, type[ChumokuError], str]] = {
    "empty": (b"", UsageError, "it is empty"),
    "another format": (file_of(magic=b"GGML"), UsageError, "does not start with GGUF"),
    "only the magic": (b"GGUF", DamagedError, "ends before its weights begin"),
    "the first version": (file_of(version=1), UsageError, "version 1, which is not supported"),
    "a later version": (file_of(version=4), UsageError, "version 4; versions 2 and 3 are supported"),
    "big-endian": (file_of(version=3 << 24), UsageError, "for big-endian machines"),
    "many tensors": (file_of(tensors=HUGE), DamagedError, "tensors, which do not fit"),
    "many fields": (file_of(fields=1 << 20, data=1 << 25), DamagedError, "1,048,576 fields, which do not fit"),
    "a long name": (file_of(struct.pack("<Q", 1 << 17), fields=1, data=1 << 18), DamagedError, "a name is longer than"),
    "a huge name": (file_of(struct.pack("<Q", 1 << 64 - 1), fields=1), DamagedError, "a name is longer than"),
    "a huge string": (file_of(field("a", 8, struct.pack("<Q", HUGE)), fields=1), DamagedError, "ends before"),
    "a huge list": (file_of(field("a", 9, struct.pack("<IQ", 4, HUGE)), fields=1), DamagedError, "values in a, which"),
    "a list of huge strings": (
        file_of(field("a", 9, struct.pack("<IQQ", 8, 1, HUGE)), fields=1), DamagedError, "ends before",
    ),
    "more values than any": (
        file_of(field("a", 9, struct.pack("<IQ", 0, (1 << 21) + 1)), fields=1, data=1 << 22), DamagedError, "2,097,152",
    ),
    "a list of lists": (
        file_of(field("a", 9, struct.pack("<IQIQ", 9, 1, 4, 0)), fields=1), DamagedError, "a list in a list",
    ),
    "an unknown kind": (file_of(field("a", 13, bytes(8)), fields=1), DamagedError, "a has kind 13, which does"),
    "not UTF-8": (file_of(field("a", 8, text(b"\xff")), fields=1), DamagedError, "is not UTF-8"),
    "a field twice": (file_of(*[field("a", 0, b"\1")] * 2, fields=2), DamagedError, "'a' appears twice"),
    "a tensor twice": (file_of(*[tensor("w", (7,))] * 2, tensors=2), DamagedError, "'w' appears twice"),
    "no dimensions": (file_of(tensor("w", ()), tensors=1), DamagedError, "w has 0 dimensions"),
    "five dimensions": (file_of(tensor("w", (1,) * 5), tensors=1), DamagedError, "w has 5 dimensions"),
    "an unknown type": (file_of(tensor("w", (256,), 16), tensors=1), UsageError, "ggml type 16, .* Requantize"),
    "a size of nothing": (file_of(tensor("w", (3, 0)), tensors=1), DamagedError, r"w has sizes \[3, 0\]"),
    "half a block": (file_of(tensor("w", (16,), 8), tensors=1), DamagedError, r"sizes \[16\], which are not"),
    "a product beyond": (file_of(tensor("w", (1 << 62, 1 << 62)), tensors=1), DamagedError, "w is outside"),
    "behind the end": (file_of(tensor("w", (7,), 0, 64), tensors=1), DamagedError, "w is outside"),
    "a huge offset": (file_of(tensor("w", (7,), 0, (1 << 64) - 32), tensors=1), DamagedError, "w is outside"),
    "off the grid": (file_of(tensor("w", (7,), 0, 8), tensors=1), DamagedError, "outside the file or not aligned"),
    "over each other": (
        file_of(tensor("a", (9,)), tensor("b", (3,), 0, 32), tensors=2), DamagedError, "a and b overlap",
    ),
    "alignment 0": (file_of(field("general.alignment", 4, bytes(4)), fields=1), DamagedError, "alignment is 0"),
    "alignment 24": (
        file_of(field("general.alignment", 4, struct.pack("<I", 24)), fields=1), DamagedError, "alignment is 24",
    ),
    "alignment of words": (
        file_of(field("general.alignment", 8, text("32")), fields=1), DamagedError, "not a supported power of two",
    ),
    "one of several": (
        file_of(field("split.count", 2, struct.pack("<H", 3)), fields=1), UsageError, "one of 3 parts of a model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_invalid_headers_are_refused(claim: str, tmp_path: Path) -> None:
    data, error, sentence = CLAIMS[claim]
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(error, match=sentence) as caught:
        open_gguf(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in str(caught.value)


def test_corresponding_valid_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(file_of(field("a", 8, text("猫")), tensor("w", (3, 5)), tensors=1, fields=1))
    file = open_gguf(path)
    assert file.fields == {"a": "猫"}
    assert torch.equal(file.read("w"), torch.zeros(5, 3))
    with pytest.raises(UsageError, match="no tensor 'v'"):
        file.read("v")
    path.write_bytes(file_of(version=2))
    assert open_gguf(path).tensors == {}
    with pytest.raises(UsageError, match="could not be read: No such file"):
        open_gguf(tmp_path / "b.gguf")


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    """A file truncated anywhere is refused."""
    whole = file_of(
        field("a", 9, struct.pack("<IQ", 8, 2) + text("x") + text("猫")),
        field("b", 4, bytes(4)),
        tensor("w", (3, 5)),
        tensors=1,
        fields=2,
        data=60,
    )
    path = tmp_path / "a.gguf"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ChumokuError):
            open_gguf(path)
    path.write_bytes(whole)
    assert open_gguf(path).fields["a"] == ["x", "猫"]


ODD = st.sampled_from(["", "\0", "x\0y", "\0" * 9, "猫" * 90, "é" * 64, "x" * 255, "x" * 256, "\0x"])
WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=7))


@given(WORDS, st.lists(st.tuples(st.integers(0, 99), ODD), max_size=2), st.booleans())
def test_batched_strings_equal_single_strings(words: list[str], odd: list[tuple[int, str]], last: bool) -> None:
    """Batched reading alone, in several batches, or not applicable."""
    words = (words or ["a"]) * 3
    for place, word in odd:
        words[-1 if last else place % len(words)] = word
    data = bytes(5) + b"".join(map(text, words)) + b"behind" + bytes(9)
    for few, many in ((1, 1 << 16), (2, 5), (1 << 30, 1 << 31)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(header, "MIN_BATCH", few)
            patched.setattr(header, "MAX_BATCH", many)
            reader = header._Reader(data, Path("a.gguf"))  # type: ignore[arg-type]
            reader.at = 5
            assert reader._strings(len(words)) == words
            assert data[reader.at : reader.at + 6] == b"behind"


def test_ordinary_strings_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"Ġ{number}" for number in range(997)]
    reader = header._Reader(b"".join(map(text, words)), Path("a.gguf"))  # type: ignore[arg-type]
    monkeypatch.delattr(header._Reader, "_strings_one_by_one")
    assert reader._strings(997) == words
    reader.at = 0
    reader.data = reader.data.replace("Ġ7".encode(), b"\xff\xff7")  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        reader._strings(997)


@pytest.mark.parametrize(
    "data",
    [text(b"x" + bytes(7) + b"yz") + text("q"), text("x") + bytes([10, 0, 0, 0, 1, 0, 0, 0]) + b"q" + bytes(8) + b"r"],
    ids=["zeros inside, like a length's", "a length with more than its first byte"],
)
def test_batch_reader_rejects_other_data(data: bytes) -> None:
    reader = header._Reader(data + b"z" * 300, Path("a.gguf"))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(header, "MEAN_BYTES", 300)
        assert reader._short_strings(2) is None
    assert reader.at == 0


def test_quantized_embedding_keeps_its_factor() -> None:
    stored = Int8(torch.ones(5, 1, GROUP, dtype=torch.int8), torch.full((5, 1), 0.5).half())
    found = QuantizedEmbedding(stored, factor=3.0)(torch.tensor([[4, 0]]))
    assert torch.equal(found, torch.full((1, 2, GROUP), 1.5))
    with pytest.raises(LengthError, match="no token 5"):
        QuantizedEmbedding(stored)(torch.tensor([[5]]))


def test_header_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "MAX_HEADER", 64)
    (tmp_path / "a.gguf").write_bytes(file_of(field("a", 8, text("x" * 99)), fields=1))
    with pytest.raises(DamagedError, match="its header is longer than 64 bytes"):
        open_gguf(tmp_path / "a.gguf")


def test_group_size_equals_block_size() -> None:
    assert {kind.block_values for kind in TYPES.values() if kind.name in ("Q4_0", "Q4_1", "Q8_0")} == {GROUP}
