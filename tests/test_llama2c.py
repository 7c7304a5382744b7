"""llama2.c files are read correctly, and other files are not taken for one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from chumoku.errors import ChumokuError, DamagedError, UsageError
from chumoku.weights.formats import llama2c
from chumoku.weights.formats.llama2c import looks_like_llama2c, open_llama2c

DIM, HIDDEN, LAYERS, HEADS, KV, VOCABULARY, LENGTH = 12, 7, 3, 6, 2, 11, 5


def stored(*, tied: bool = True) -> tuple[bytes, dict[str, np.ndarray]]:
    """A file like llama2.c's export writes it: all layers of one kind of weight, then the next kind."""
    random, found, data = np.random.default_rng(0), {}, []
    keys = DIM // HEADS * KV

    def put(name: str, *shape: int) -> None:
        numbers = random.standard_normal(shape, dtype=np.float32)
        data.append(numbers.tobytes())
        found[name] = numbers

    put("token_embedding", VOCABULARY, DIM)
    for name, shape in (
        ("attention_norm", (DIM,)),
        *((f"attention.{part}", (rows, DIM)) for part, rows in (("wq", DIM), ("wk", keys), ("wv", keys), ("wo", DIM))),
        ("feedforward_norm", (DIM,)),
        *(("feedforward.w1", (HIDDEN, DIM)), ("feedforward.w2", (DIM, HIDDEN)), ("feedforward.w3", (HIDDEN, DIM))),
    ):
        for layer in range(LAYERS):
            put(f"layers.{layer}.{name}", *shape)
    put("norm", DIM)
    for _ in ("cos", "sin"):
        data.append(random.standard_normal(LENGTH * DIM // HEADS // 2, dtype=np.float32).tobytes())
    if not tied:
        put("output", VOCABULARY, DIM)
    numbers = (DIM, HIDDEN, LAYERS, HEADS, KV, VOCABULARY if tied else -VOCABULARY, LENGTH)
    return struct.pack("<7i", *numbers) + b"".join(data), found


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rest", [b"", b"a tokenizer"])
def test_every_tensor_is_found(tied: bool, rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    data, expected = stored(tied=tied)
    path.write_bytes(data + rest)
    assert looks_like_llama2c(path)
    file = open_llama2c(path)
    assert file.header == {
        **{"dim": DIM, "hidden": HIDDEN, "layers": LAYERS, "heads": HEADS, "kv_heads": KV},
        **{"vocabulary": VOCABULARY, "length": LENGTH, "tied": tied},
    }
    assert file.shapes == {name: numbers.shape for name, numbers in expected.items()}
    for name, numbers in expected.items():
        assert torch.equal(file.read(name), torch.from_numpy(numbers))
    assert file.tokenizer_bytes == rest
    file.read("norm").zero_()
    assert path.read_bytes() == data + rest, "what is changed is not the file"
    with pytest.raises(UsageError, match="no tensor 'wcls'"):
        file.read("wcls")


@pytest.mark.parametrize(
    ("place", "number", "sentence"),
    [
        (0, 0, "its header has dim = 0"),
        (0, 1 << 30, "its header has dim = 1,073,741,824"),
        (1, -1, "its header has hidden = -1"),
        (2, 1 << 20, "its header has layers ="),
        (3, 5, "do not fit together .dim 12, heads 5, kv_heads 2"),
        (3, 12, "do not fit together"),
        (4, 5, "do not fit together"),
        (5, -(1 << 31), "its header has vocabulary = 2,147,483,648"),
        (6, 0, "its header has length = 0"),
    ],
)
def test_implausible_headers_are_refused(place: int, number: int, sentence: str, tmp_path: Path) -> None:
    data = bytearray(stored()[0])
    struct.pack_into("<i", data, 4 * place, number)
    (tmp_path / "a.bin").write_bytes(data)
    assert not looks_like_llama2c(tmp_path / "a.bin")
    with pytest.raises(UsageError, match=sentence):
        open_llama2c(tmp_path / "a.bin")


def test_file_size_must_match_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = tmp_path / "a.bin", stored()[0]
    for length in (*range(0, 40), *range(41, len(data), 97), len(data) - 1):
        path.write_bytes(data[:length])
        assert not looks_like_llama2c(path)
        with pytest.raises(ChumokuError):
            open_llama2c(path)
    with pytest.raises(DamagedError, match="has 8,563 bytes, but its weights need 8,564"):
        open_llama2c(path)
    monkeypatch.setattr(llama2c, "LARGEST_TOKENIZER", 3)
    path.write_bytes(data + b"123")
    assert looks_like_llama2c(path)
    path.write_bytes(data + b"1234")
    assert not looks_like_llama2c(path)
    with pytest.raises(DamagedError, match="4 bytes after its weights, too many for a tokenizer"):
        open_llama2c(path)


def test_other_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    assert not looks_like_llama2c(path)
    with pytest.raises(UsageError, match="could not be read: No such file"):
        open_llama2c(path)
    for data, sentence in (
        (b"", "it is empty"),
        (b"\1" * 27, "shorter than the header"),
        (struct.pack("<2i", 0x616B3432, 1) + bytes(256), "a later version .* --version 0"),
    ):
        path.write_bytes(data)
        assert not looks_like_llama2c(path)
        with pytest.raises(UsageError, match=sentence):
            open_llama2c(path)
