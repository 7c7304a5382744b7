"""Bundles with quantized matrices: the model that is opened is the one that was saved, to the last bit."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Ask
from gguf_weights import SIZES, with_blocks
from safetensors.torch import load_file, save_file

import chumoku
from chumoku.errors import UsageError
from chumoku.models.model import EncoderDecoderModel, Model
from chumoku.models.precision import to_precision
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLogits, quantized_kinds
from chumoku.text import Tokenizer, train
from chumoku.weights.checksums import write_checksums

KINDS = ("encoder", "decoder", "encoder-decoder")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train(["the cat sat on the mat"], kind="byte", languages=("en",))


def build(kind: str, tokenizer: Tokenizer, **changes: Any) -> Model:
    torch.manual_seed(5)
    sizes = {"vocabulary": tokenizer.size + 2, "width": 96, "heads": 3, "layers": 2, **changes}
    return chumoku.build(chumoku.preset(f"tiny-{kind}", **sizes)).eval()


def output(model: Model) -> torch.Tensor:
    tokens = torch.arange(3, 3 + 2 * 11).view(2, 11)
    with torch.inference_mode():
        found = model(tokens, tokens.flip(0)) if isinstance(model, EncoderDecoderModel) else model(tokens)
    return found.hidden if found.logits is None else found.logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("precision", ["int8", "int4", "gguf"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_opened(kind: str, precision: str, tables: bool, tokenizer: Tokenizer, tmp_path: Path) -> None:
    if precision == "gguf":
        small = with_blocks(build(kind, tokenizer, **SIZES), tables=tables)
    else:
        small = to_precision(build(kind, tokenizer), precision, tables=tables)
    folder = chumoku.save(tmp_path / "small", small, tokenizer)
    opened = chumoku.load(folder)
    assert quantized_kinds(opened.model) == quantized_kinds(small) != set()
    assert torch.equal(output(opened.model), output(small))
    for path in ("encoder.embedding", "decoder.embedding"):
        if hasattr(small, path.split(".")[0]):
            assert isinstance(opened.model.get_submodule(path), QuantizedEmbedding) == tables
    again = chumoku.load(opened.save(tmp_path / "again"))
    assert torch.equal(output(again.model), output(small))


def test_a_tied_and_shared_table_is_stored_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build("encoder-decoder", tokenizer)
    assert model.config.tie_output
    assert model.config.share_embeddings
    folder = chumoku.save(tmp_path / "small", to_precision(model, "int8", tables=True), tokenizer)
    tables = [
        name for name, tensor in load_file(folder / "model.safetensors").items() if len(tensor) == tokenizer.size + 2
    ]
    assert len(tables) == 2, "q and scale of one table"
    opened = chumoku.load(folder).model
    assert opened.get_submodule("encoder.embedding") is opened.get_submodule("decoder.embedding")
    head, table = opened.head, opened.get_submodule("decoder.embedding")
    assert isinstance(head, QuantizedLogits)
    assert head.stored_weight[0] is table.stored_weight[0]


@pytest.mark.parametrize("width", [48, 40])
def test_widths_that_are_no_multiple_of_a_group(width: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    small = to_precision(build("decoder", tokenizer, width=width, heads=2), "int8", tables=True)
    opened = chumoku.load(chumoku.save(tmp_path / "small", small, tokenizer)).model
    assert torch.equal(output(opened), output(small))


def test_another_precision_starts_from_the_dequantized_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    small = to_precision(build("decoder", tokenizer), "int8", tables=True)
    folder = chumoku.save(tmp_path / "small", small, tokenizer)
    floats = chumoku.load(folder, precision="float32").model
    assert not quantized_kinds(floats)
    torch.testing.assert_close(output(floats), output(small), atol=2e-3, rtol=0)
    assert quantized_kinds(chumoku.load(folder, precision="int4").model) == {"int4"}


def test_convert_writes_small_bundles_that_generate_the_same(tokenizer: Tokenizer, tmp_path: Path, ask: Ask) -> None:
    whole = chumoku.save(tmp_path / "whole", build("encoder-decoder", tokenizer, width=192, heads=3), tokenizer)
    sizes = {"float32": (whole / "model.safetensors").stat().st_size}
    for kind in ("int8", "int4"):
        out = tmp_path / kind
        ended = ask("convert", str(whole), str(out), "--to", "chumoku", "--type", kind)
        assert ended.code == 0, ended.err
        assert f"in {kind} it also rounds activations" in ended.out
        sizes[kind] = (out / "model.safetensors").stat().st_size
        text = ask("translate", str(out), "the cat sat", "--max-new-tokens", "9")
        assert text.out == ask("translate", str(out), "the cat sat", "--max-new-tokens", "9").out != ""
        assert json.loads((out / "certificate.json").read_text("utf-8"))["kind"] == kind
    assert sizes["int8"] < 0.29 * sizes["float32"]
    assert sizes["int4"] < 0.19 * sizes["float32"]


def test_matrices_converted_to_bf16_are_not_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="were converted to bf16 when it was loaded"):
        chumoku.save(tmp_path / "small", to_precision(build("decoder", tokenizer), "bf16"), tokenizer)


def test_int4_and_tables_need_whole_groups(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Engines would read beyond the weights: these files are refused, whatever their checksums say."""
    folder = chumoku.save(tmp_path / "model", build("decoder", tokenizer, width=40, heads=2), tokenizer)
    floats = load_file(folder / "model.safetensors")
    path = "decoder.blocks.0.attention.query"
    scales = torch.ones(40, 2, dtype=torch.float16)
    int4 = {
        f"{path}.packed": torch.zeros(40, 2, 16, dtype=torch.uint8),
        f"{path}.scale": scales,
        f"{path}.low": scales.clone(),
    }
    rows = tokenizer.size + 2
    table = {"decoder.embedding.q": torch.zeros(rows, 2, 32, dtype=torch.int8)}
    table["decoder.embedding.scale"] = torch.ones(rows, 2, dtype=torch.float16)
    for removed, added in ((f"{path}.weight", int4), ("decoder.embedding.table", table)):
        changed = {name: tensor for name, tensor in floats.items() if name != removed}
        save_file({**changed, **added}, folder / "model.safetensors")
        write_checksums(folder)
        with pytest.raises(UsageError, match="tensor decoder"):
            chumoku.load(folder)


DAMAGE = {
    "unexpected tensor head.q": lambda tensors: tensors.update(
        {"head.q": tensors["decoder.embedding.q"].clone(), "head.scale": tensors["decoder.embedding.scale"].clone()}
    ),
    "unexpected tensor decoder.embedding.low": lambda tensors: tensors.update(
        {"decoder.embedding.low": torch.zeros(3), "decoder.embedding.packed": torch.zeros(3)}
    ),
    "has an unexpected tensor": lambda tensors: tensors.update({"head.low": torch.zeros(3)}),
    "lacks the tensor": lambda tensors: tensors.pop("decoder.blocks.0.attention.query.scale"),
    "has shape": lambda tensors: tensors.update({"decoder.embedding.q": torch.zeros(7, 3, 32, dtype=torch.int8)}),
    "a quantized matrix needs I8": lambda tensors: tensors.update(
        {"decoder.embedding.q": tensors["decoder.embedding.q"].to(torch.uint8)}
    ),
    "a quantized matrix needs F16": lambda tensors: tensors.update(
        {"decoder.embedding.scale": tensors["decoder.embedding.scale"].float()}
    ),
    "weights must be floats": lambda tensors: tensors.update(
        {"decoder.norm.gamma": tensors["decoder.norm.gamma"].to(torch.int32)}
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_wrong_file_with_valid_checksums_is_refused(message: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    small = to_precision(build("decoder", tokenizer), "int8", tables=True)
    folder = chumoku.save(tmp_path / "small", small, tokenizer)
    tensors = load_file(folder / "model.safetensors")
    DAMAGE[message](tensors)
    save_file(tensors, folder / "model.safetensors")
    write_checksums(folder)
    with pytest.raises(UsageError, match=message):
        chumoku.load(folder)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((256, 2, 144), "has shape"), ((256, 1, 145), "unexpected tensor"), ((256, 1, 144), None), ((), "unexpected")],
)
def test_blocks_of_another_size_are_refused(
    shape: tuple[int, ...], message: str | None, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    small = with_blocks(build("decoder", tokenizer, **SIZES), ["q4_k"], tables=False)
    folder = chumoku.save(tmp_path / "small", small, tokenizer)
    tensors = load_file(folder / "model.safetensors")
    tensors["decoder.blocks.0.attention.query.blocks"] = torch.zeros(shape, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    write_checksums(folder)
    with pytest.raises(UsageError, match=message) if message else contextlib.nullcontext():
        chumoku.load(folder)
