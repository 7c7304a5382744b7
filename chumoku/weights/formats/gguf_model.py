"""Read and write models in GGUF files (llama.cpp), and read them from llama2.c files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import GenerationConfig
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
SAMPLING = {  # llama.cpp's names for entries of generation_config.json
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


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
    generation_config = read_generation_fields(file.fields)
    tokenizer.stop_tokens = generation_config.end_tokens(tokenizer.size)
    return Bundle(model, tokenizer, tokenizer, generation_config)


def read_generation_fields(fields: Mapping[str, Any]) -> GenerationConfig:
    """The sampling options and end tokens of a GGUF file, as a generation_config.json."""
    found = {name: fields[key] for name, key in SAMPLING.items() if key in fields}
    numbers = {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}
    ends = [fields.get(f"{TOKENIZER}.{key}") for key in END_KEYS]
    known = [end for end in ends if isinstance(end, int) and end >= 0]
    return GenerationConfig({**numbers, **({"eos_token_id": known} if len(known) > 1 else {})})


def generation_fields(config: GenerationConfig) -> dict[str, Any]:
    """The inverse, without end tokens: GGUF has no list of them."""
    return {SAMPLING[name]: value for name, value in config.sampling.items() if value is not None}


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
    generation_config: GenerationConfig | None = None,
    architecture: GgufArchitecture | None = None,
) -> None:
    """Write a model for llama.cpp; config values that it cannot express are refused.

    architecture: by default the first that can express the model. Phi-3, for example, is written as a Llama otherwise.
    """
    model = dequantize_model(model) if is_quantized(model) else model
    config, weights = model.config, tensors_of(model)
    architecture = find_architecture(config) if architecture is None else architecture
    rows = select_rows(architecture.rows(config), weights)
    rotary = config.position == "rotary"
    widths = config.key_width, config.rotated_width
    order = head_order(architecture.pairing, config.pairing, *widths) if rotary else None
    tensors = {**export_tensors(rows, weights, order=order), **architecture.extra_tensors(config)}
    tokenizer = pad_vocabulary(to_ggml(tokenizers.target), config.vocabulary)
    sampling = generation_fields(generation_config or GenerationConfig())
    fields: dict[str, Any] = {**architecture.write(config), **tokenizer, **sampling}
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
