"""Read and write models in GGUF files (llama.cpp), and read them from llama2.c files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.quantized import is_quantized
from chumoku.text.formats.gguf import from_ggml, to_ggml
from chumoku.text.formats.llama2c import read_llama2c
from chumoku.text.formats.sentencepiece import UNUSED
from chumoku.text.tokenizer import Tokenizer
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.families import llama
from chumoku.weights.families.gguf import ARCHITECTURES, find_architecture
from chumoku.weights.families.gguf_fields import GgufArchitecture
from chumoku.weights.families.table import export_tensors, head_order, select_rows
from chumoku.weights.formats.gguf import Gguf, open_gguf, write_gguf
from chumoku.weights.formats.gguf.writing import Kind
from chumoku.weights.formats.llama2c import Llama2c, open_llama2c
from chumoku.weights.instantiate import build_from_source

TOKENIZER_FILE = "tokenizer.bin"
TOKENIZER = "tokenizer.ggml"
TOKENS = f"{TOKENIZER}.tokens"


class GgufInfo(NamedTuple):
    architecture: GgufArchitecture
    file: Gguf
    config: ModelConfig


def read_gguf(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    dequantize: bool = True,
    on_model_loaded: Callable[[Model], None] = lambda model: None,
) -> Bundle:
    """Read a GGUF file's model and tokenizer; `on_model_loaded` gets the model before the tokenizer is built."""
    architecture, file, config = inspect_gguf(path)
    model = build_from_source(
        config, architecture.rows(config), file, ignored=architecture.ignored, device=device, dequantize=dequantize
    )
    on_model_loaded(model)
    tokenizer = from_ggml(file.fields)
    return Bundle(model, tokenizer, tokenizer)


def inspect_gguf(path: Path) -> GgufInfo:
    """Read a GGUF file's config and tensor names, without tensor data."""
    file = open_gguf(path)
    kind = file.fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UsageError(f"{path} has architecture '{str(kind)[:40]}'; supported are {', '.join(ARCHITECTURES)}.")
    return GgufInfo(ARCHITECTURES[kind], file, ARCHITECTURES[kind].read(file.fields, file))


def write_gguf_model(
    path: Path,
    model: Model,
    tokenizers: Tokenizers,
    *,
    kind: Kind = "f16",
    architecture: GgufArchitecture | None = None,
) -> None:
    """Write a model for llama.cpp; config values that it cannot express are refused.

    architecture: by default the first that can express the model. Phi-3, for example, is written as a Llama otherwise.
    """
    model = dequantize_model(model) if is_quantized(model) else model
    config, weights = model.config, tensors_of(model)
    architecture = find_architecture(config) if architecture is None else architecture
    rows = select_rows(architecture.rows(config), weights)
    order = head_order(architecture.pairing, config.pairing, config.key_width) if config.position == "rotary" else None
    tensors = {**export_tensors(rows, weights, order=order), **architecture.extra_tensors(config)}
    tokenizer = pad_vocabulary(to_ggml(tokenizers.target), config.vocabulary)
    fields: dict[str, Any] = {**architecture.write(config), **tokenizer}
    write_gguf(path, architecture=architecture.name, fields=fields, tensors=tensors, kind=kind)


def pad_vocabulary(fields: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """Add unused tokens to a tokenizer's fields, one for every extra row of the model's embedding table."""
    size, missing = len(fields[TOKENS]), max(0, vocabulary - len(fields[TOKENS]))
    padding: dict[str, list[Any]] = {TOKENS: [f"<unused{size + index}>" for index in range(missing)]}
    padding[f"{TOKENIZER}.token_type"] = [UNUSED] * missing
    padding[f"{TOKENIZER}.scores"] = [0.0] * missing
    return {**fields, **{key: [*fields[key], *values] for key, values in padding.items() if key in fields}}


def read_llama2c_model(path: Path, *, device: torch.device | str = "cpu") -> Bundle:
    """Read a llama2.c model, with the tokenizer appended to its file or in tokenizer.bin in the same folder."""
    file = open_llama2c(path)
    config = llama2c_config(file)
    model = build_from_source(config, llama.llama2c_rows(config), file, ignored={}, device=device)
    tokenizer = _read_tokenizer(path, file.tokenizer_bytes, config.vocabulary)
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


def _read_tokenizer(path: Path, appended: bytes, vocabulary: int) -> Tokenizer:
    if appended:
        return read_llama2c(appended, vocabulary)
    file = path.with_name(TOKENIZER_FILE)
    if not file.is_file():
        raise UsageError(f"{path} needs its tokenizer: put llama2.c's {TOKENIZER_FILE} in the same folder.")
    if file.stat().st_size > 1 << 24:
        raise UsageError(f"{file} is too large to be a llama2.c tokenizer.")
    return read_llama2c(file.read_bytes(), vocabulary)
