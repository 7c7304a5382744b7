"""Open a model in any supported format.

    folder          a chumoku bundle · a transformers or sentence-transformers folder
    file            .gguf · llama2.c's .bin · .safetensors with config.json in the same folder
    hf:owner/name   downloaded from the Hugging Face Hub, or taken from its cache
    ja-en           a model that ships with chumoku (`pretrained.NAMES`), unless a file or folder of this name exists

`identify_model` recognizes the format.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.weights import bundle
from chumoku.weights.bundle import Bundle
from chumoku.weights.formats.gguf_model import inspect_gguf, llama2c_config, read_gguf, read_llama2c_model
from chumoku.weights.formats.llama2c import open_llama2c
from chumoku.weights.formats.transformers_folder import inspect_folder, read_folder
from chumoku.weights.identify_model import CONFIG, identify_model


def load(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    dequantize: bool = True,
    on_model_loaded: Callable[[Model], None] = lambda model: None,
) -> Bundle:
    """Open the model at `path`, with its tokenizers.

    dequantize       convert quantized weights to floats; False keeps the types we can compute with as they are
    on_model_loaded  called with the model of a GGUF file before its tokenizer is built, which takes about as long
    """
    location, kind = identify_model(path)
    match kind:
        case "bundle":
            return bundle.load(location, device=device, dequantize=dequantize)
        case "transformers":
            return read_folder(location, device=device)
        case "gguf":
            return read_gguf(location, device=device, dequantize=dequantize, on_model_loaded=on_model_loaded)
        case "llama2.c":
            return read_llama2c_model(location, device=device)


def read_model_config(path: Path | str) -> ModelConfig:
    """Read a model's config without loading its weights."""
    location, kind = identify_model(path)
    match kind:
        case "bundle":
            return bundle.read_config(location / CONFIG)
        case "transformers":
            return inspect_folder(location).config
        case "gguf":
            return inspect_gguf(location).config
        case "llama2.c":
            return llama2c_config(open_llama2c(location))
