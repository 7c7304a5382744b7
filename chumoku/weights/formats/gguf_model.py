"""Models in GGUF files, llama.cpp's own, and in llama2.c's: container, family and tokenizer put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.text.formats.gguf import from_ggml, to_ggml
from chumoku.text.formats.llama2c import read_llama2c
from chumoku.text.formats.sentencepiece import UNUSED
from chumoku.text.tokenizer import Tokenizer
from chumoku.weights.bundle import Bundle, Tokenizers, tensors_of
from chumoku.weights.dequantize import dequantize_model, is_quantized
from chumoku.weights.families import llama
from chumoku.weights.families.gguf import ARCHITECTURES, GgufArchitecture, find_architecture
from chumoku.weights.families.table import export_tensors, head_order, select_rows
from chumoku.weights.formats.gguf import Gguf, open_gguf, write_gguf
from chumoku.weights.formats.gguf.writing import Kind
from chumoku.weights.formats.llama2c import Llama2c, open_llama2c
from chumoku.weights.instantiate import build_from_source

TOKENIZER_FILE = "tokenizer.bin"
TOKENIZER = "tokenizer.ggml"
TOKENS = f"{TOKENIZER}.tokens"


class GgufInfo(NamedTuple):
    dialect: GgufArchitecture
    file: Gguf
    config: ModelConfig


def read_gguf(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    dequantize: bool = True,
    on_model_loaded: Callable[[Model], None] = lambda model: None,
) -> Bundle:
    """The model and the tokenizer inside a GGUF file; `on_model_loaded` may begin with the one before the other is there."""
    dialect, file, config = inspect_gguf(path)
    model = build_from_source(
        config, dialect.rows(config), file, ignored=dialect.ignored, device=device, dequantize=dequantize
    )
    on_model_loaded(model)
    tokenizer = from_ggml(file.fields)
    return Bundle(model, tokenizer, tokenizer)


def inspect_gguf(path: Path) -> GgufInfo:
    file = open_gguf(path)
    kind = file.fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UsageError(f"{path} is of architecture '{str(kind)[:40]}'; known here are {', '.join(ARCHITECTURES)}.")
    return GgufInfo(ARCHITECTURES[kind], file, ARCHITECTURES[kind].read(file.fields, file))


def write_gguf_model(path: Path, model: Model, tokenizers: Tokenizers, *, kind: Kind = "f16") -> None:
    """The model as llama.cpp opens it. What it cannot express is refused by its key."""
    model = dequantize_model(model) if is_quantized(model) else model
    config, weights = model.config, tensors_of(model)
    dialect = find_architecture(config)
    rows = select_rows(dialect.rows(config), weights)
    order = head_order("interleaved", config.pairing, config.head_width) if config.position == "rotary" else None
    tensors = {**export_tensors(rows, weights, order=order), **dialect.extra(config)}
    fields: dict[str, Any] = {**dialect.write(config), **pad_vocabulary(to_ggml(tokenizers.target), config.vocabulary)}
    write_gguf(path, architecture=dialect.name, fields=fields, tensors=tensors, kind=kind)


def pad_vocabulary(fields: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """A tokenizer's fields with a token for every row of the table: models are built a little larger."""
    tokens, missing = fields[TOKENS], max(0, vocabulary - len(fields[TOKENS]))
    more: dict[str, list[Any]] = {TOKENS: [f"<unused{len(tokens) + place}>" for place in range(missing)]}
    more[f"{TOKENIZER}.token_type"] = [UNUSED] * missing
    more[f"{TOKENIZER}.scores"] = [0.0] * missing
    return {**fields, **{key: [*fields[key], *values] for key, values in more.items() if key in fields}}


def read_llama2c_model(path: Path, *, device: torch.device | str = "cpu") -> Bundle:
    """The model of a llama2.c file, with the tokenizer that lies behind its weights or beside it as tokenizer.bin."""
    file = open_llama2c(path)
    config = llama2c_config(file)
    model = build_from_source(config, llama.llama2c_rows(config), file, ignored={}, device=device)
    tokenizer = _read_tokenizer(path, file.rest, config.vocabulary)
    return Bundle(model, tokenizer, tokenizer)


def llama2c_config(file: Llama2c) -> ModelConfig:
    values = file.header
    return llama.llama_config(
        vocabulary=values["vocabulary"],
        context=values["length"],
        width=values["dim"],
        layers=values["layers"],
        heads=values["heads"],
        kv_heads=values["kv_heads"],
        feedforward_width=values["hidden"],
        norm_epsilon=1e-5,
        bias=False,
        tie_output=values["tied"],
        pairing="interleaved",
    )


def _read_tokenizer(path: Path, rest: bytes, vocabulary: int) -> Tokenizer:
    if rest:
        return read_llama2c(rest, vocabulary)
    beside = path.with_name(TOKENIZER_FILE)
    if not beside.is_file():
        raise UsageError(f"{path} needs its tokenizer: put llama2.c's {TOKENIZER_FILE} beside it.")
    if beside.stat().st_size > 1 << 24:
        raise UsageError(f"{beside} is larger than any tokenizer of llama2.c is.")
    return read_llama2c(beside.read_bytes(), vocabulary)
