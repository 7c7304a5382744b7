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
from chumoku.weights.dequantize import plain, quantized
from chumoku.weights.families import llama
from chumoku.weights.families.gguf import DIALECTS, Dialect, dialect_of
from chumoku.weights.families.table import give, order_to, present
from chumoku.weights.formats.gguf import Gguf, open_gguf, write_gguf
from chumoku.weights.formats.gguf.writing import Kind
from chumoku.weights.formats.llama2c import Llama2c, open_llama2c
from chumoku.weights.instantiate import made

BESIDE = "tokenizer.bin"
TOKENIZER = "tokenizer.ggml"
TOKENS = f"{TOKENIZER}.tokens"


class Described(NamedTuple):
    dialect: Dialect
    file: Gguf
    config: ModelConfig


def read_gguf(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    whole: bool = True,
    meanwhile: Callable[[Model], None] = lambda model: None,
) -> Bundle:
    """The model and the tokenizer inside a GGUF file; `meanwhile` may begin with the one before the other is there."""
    dialect, file, config = describe_gguf(path)
    model = made(config, dialect.rows(config), file, dropped=dialect.dropped, device=device, whole=whole)
    meanwhile(model)
    tokenizer = from_ggml(file.fields)
    return Bundle(model, tokenizer, tokenizer)


def describe_gguf(path: Path) -> Described:
    file = open_gguf(path)
    kind = file.fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in DIALECTS:
        raise UsageError(f"{path} is of architecture '{str(kind)[:40]}'; known here are {', '.join(DIALECTS)}.")
    return Described(DIALECTS[kind], file, DIALECTS[kind].read(file.fields, file))


def write_gguf_model(path: Path, model: Model, tokenizers: Tokenizers, *, kind: Kind = "f16") -> None:
    """The model as llama.cpp opens it. What it cannot express is refused by its key."""
    model = plain(model) if quantized(model) else model
    config, weights = model.config, tensors_of(model)
    dialect = dialect_of(config)
    rows = present(dialect.rows(config), weights)
    order = order_to("interleaved", config.pairing, config.head_width) if config.position == "rotary" else None
    tensors = {**give(rows, weights, order=order), **dialect.extra(config)}
    fields: dict[str, Any] = {**dialect.write(config), **filled(to_ggml(tokenizers.target), config.vocabulary)}
    write_gguf(path, architecture=dialect.name, fields=fields, tensors=tensors, kind=kind)


def filled(fields: dict[str, Any], vocabulary: int) -> dict[str, Any]:
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
    model = made(config, llama.llama2c_rows(config), file, dropped={}, device=device)
    tokenizer = _beside(path, file.rest, config.vocabulary)
    return Bundle(model, tokenizer, tokenizer)


def llama2c_config(file: Llama2c) -> ModelConfig:
    values = file.config_values
    return llama.llama(
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


def _beside(path: Path, rest: bytes, vocabulary: int) -> Tokenizer:
    if rest:
        return read_llama2c(rest, vocabulary)
    beside = path.with_name(BESIDE)
    if not beside.is_file():
        raise UsageError(f"{path} needs its tokenizer: put llama2.c's {BESIDE} beside it.")
    if beside.stat().st_size > 1 << 24:
        raise UsageError(f"{beside} is larger than any tokenizer of llama2.c is.")
    return read_llama2c(beside.read_bytes(), vocabulary)
