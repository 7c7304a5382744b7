"""A bundle: chumoku's own model folder, opened by `chumoku.load`.

config.json · model.safetensors · tokenizer.json · README.md (model card) · manifest.json
source_tokenizer.json, if a translation model's source language has its own vocabulary
tokenizer_config.json, if the model has a chat template; generation_config.json, if it was opened with one
A model that was saved without a tokenizer has no tokenizer.json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from chumoku import text
from chumoku.config import parse_settings, rename_former_keys, settings_to_dict
from chumoku.errors import UsageError
from chumoku.models.build import build, check_memory
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.models.generation_config import GenerationConfig, read_generation_config
from chumoku.models.model import Model
from chumoku.safe_files import MAX_HEADER_BYTES, is_outside_link, read_json
from chumoku.text import MissingTokenizer, Tokenizer
from chumoku.text.chat_template import template_settings
from chumoku.text.formats.tokenizer_config import read_chat_template
from chumoku.weights.assign import assign_tensors
from chumoku.weights.bundle_weights import read_weights
from chumoku.weights.checksums import verify_checksums
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.identify_model import CONFIG

WEIGHTS, CARD = "model.safetensors", "README.md"
TOKENIZER, SOURCE_TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "source_tokenizer.json", "tokenizer_config.json"
LARGEST_CONFIG = 1 << 20
BYTES_PER_PARAMETER = 16  # a checkpoint's largest file: weight, two Adam moments and an average of each parameter
VERSION = 1
USE_IDS = "or give token ids to its .model."


@dataclass(frozen=True, init=False)
class Bundle:
    """A model and its tokenizers. Without a source tokenizer, a model has one tokenizer for both sides."""

    model: Model
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    generation_config: GenerationConfig

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        source_tokenizer: Tokenizer | None = None,
        generation_config: GenerationConfig | None = None,
    ) -> None:
        missing = f"This model has no tokenizer. Give it one, as in Pipeline(model, tokenizer), {USE_IDS}"
        tokenizer = MissingTokenizer(missing) if tokenizer is None else tokenizer
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "tokenizer", tokenizer)
        object.__setattr__(self, "source_tokenizer", tokenizer if source_tokenizer is None else source_tokenizer)
        object.__setattr__(self, "generation_config", generation_config or GenerationConfig())

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def has_tokenizer(self) -> bool:
        return not isinstance(self.tokenizer, MissingTokenizer)

    def require_tokenizer(self) -> None:
        """Raise UsageError if the model has no tokenizer, and say what was looked for."""
        if isinstance(self.tokenizer, MissingTokenizer):
            raise UsageError(self.tokenizer.message)


class Tokenizers(NamedTuple):
    """Tokenizers of a model's output and input; the same object, except for translation with two vocabularies."""

    target: Tokenizer
    source: Tokenizer


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of any new file; a disk error is raised as OSError."""
    path.touch()
    permissions = path.stat().st_mode
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
        path.chmod(permissions)  # save_file lets only the owner read it, so a server with a user of its own could not
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_bundle(folder: Path, config: ModelConfig, weights: Mapping[str, Tensor], tokenizers: Tokenizers) -> None:
    """Write the files of a bundle into an existing folder; checksums are written separately."""
    values = {"format": "chumoku", "version": VERSION, "model": settings_to_dict(config)}
    (folder / CONFIG).write_text(json.dumps(values, indent=1), encoding="utf-8")
    save_tensors(weights, folder / WEIGHTS)
    if not isinstance(tokenizers.target, MissingTokenizer):
        tokenizers.target.save(folder / TOKENIZER)
        if template := template_settings(tokenizers.target.chat_template):
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(template, ensure_ascii=False, indent=1), encoding="utf-8")
    if tokenizers.source is not tokenizers.target:
        tokenizers.source.save(folder / SOURCE_TOKENIZER)
    (folder / CARD).write_text(_card(config, tokenizers.target), encoding="utf-8")


def load(path: Path | str, *, device: torch.device | str = "cpu", dequantize: bool = True) -> Bundle:
    """Open a bundle: verify its checksums, read its config, then its weights and tokenizers.

    dequantize    convert quantized matrices to floats
    """
    folder = Path(path)
    if not (folder / CONFIG).is_file():
        inside = next((folder / name for name in ("last", "best") if (folder / name / CONFIG).is_file()), None)
        hint = f"Did you mean {inside}?" if inside else "Give a model that `chumoku train` wrote, as in runs/demo/last."
        raise UsageError(f"{folder} is not a model: it has no {CONFIG}. {hint}")
    verify_bundle(folder)
    model = build(read_config(folder / CONFIG), device="meta")
    weights = read_weights(folder / WEIGHTS, model, device)
    if all(isinstance(weight, Tensor) for weight in weights.values()):
        model.load_state_dict(weights, strict=False, assign=True)  # strict would need shared tables twice
    else:
        assign_tensors(model, weights, device)
        model = dequantize_model(model).to(device) if dequantize else model
    saved, own = folder / TOKENIZER, folder / SOURCE_TOKENIZER
    missing = f"{folder} was saved without a tokenizer. Pass tokenizer=… to chumoku.load, {USE_IDS}"
    tokenizer = text.load(saved) if saved.exists() else MissingTokenizer(missing)
    if (folder / TOKENIZER_CONFIG).exists():
        tokenizer.chat_template = read_chat_template(folder)
    source = text.load(own) if own.exists() else tokenizer
    return Bundle(model.eval(), tokenizer, source, read_generation(folder, tokenizer))


def read_generation(folder: Path, tokenizer: Tokenizer) -> GenerationConfig:
    """The generation config of a model's folder; its tokenizer gets the tokens that end a text."""
    found = read_generation_config(folder)
    if not isinstance(tokenizer, MissingTokenizer):
        tokenizer.stop_tokens = found.end_tokens(tokenizer.size)
    return found


def verify_bundle(folder: Path) -> None:
    """Refuse a bundle or checkpoint whose checksums differ, or whose files are larger than its config allows."""

    def largest() -> int:
        config = read_config(folder / CONFIG)
        check_memory(config, bytes_each=2, device=torch.device("cpu"))
        return MAX_HEADER_BYTES + BYTES_PER_PARAMETER * count(config).parameters

    verify_checksums(folder, **({"largest": largest} if (folder / CONFIG).is_file() else {}))


def read_config(path: Path) -> ModelConfig:
    """Read a bundle's config.json."""
    if is_outside_link(path):
        raise UsageError(f"{path} is a link to a file outside its folder. Replace it with the file itself.")
    values = read_json(path, max_bytes=LARGEST_CONFIG)
    model: Any = values.get("model") if values.get("format") == "chumoku" else None
    if not isinstance(model, dict) or values.get("version") != VERSION:
        raise UsageError(f"{path} is not a chumoku config of version {VERSION}. Did another program write it?")
    return parse_settings(ModelConfig, rename_former_keys(ModelConfig, model), prefix="model.")


def _card(config: ModelConfig, tokenizer: Tokenizer) -> str:
    tokens = "no tokenizer" if isinstance(tokenizer, MissingTokenizer) else tokenizer.kind
    parameters = count(config).parameters
    lines = [
        f"# A model of kind {config.kind}",
        "",
        f"{parameters:,} parameters; {config.layers} layers, width {config.width}, {config.heads} heads, "
        f"positions {config.position}, feed-forward {config.feedforward}, vocabulary {config.vocabulary:,} "
        f"({tokens}).",
        "",
        "Written by chumoku. Open it with `chumoku.load`.",
        "",
    ]
    return "\n".join(lines)
