"""Read and write model folders of the transformers and sentence-transformers libraries.

config.json · model.safetensors (or several files and model.safetensors.index.json) · tokenizer files
sentence-transformers adds modules.json, 1_Pooling/config.json, sentence_bert_config.json and
config_sentence_transformers.json
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chumoku import text
from chumoku.config import settings_to_dict
from chumoku.errors import NoTokenizerError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import read_generation_config
from chumoku.models.model import Model
from chumoku.nn.quantized import is_quantized
from chumoku.safe_files import check_links, file_inside, read_any_json, read_json
from chumoku.text.formats.marian import is_marian, load_marian, write_marian
from chumoku.text.formats.tokenizer_files import write_tokenizer
from chumoku.text.tokenizer import Tokenizer, with_prefix_and_suffix, with_roles
from chumoku.weights.bundle import (
    SOURCE_TOKENIZER,
    USE_IDS,
    WEIGHTS,
    Bundle,
    Tokenizers,
    read_generation,
    save_tensors,
)
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.dequantize import dequantize_model
from chumoku.weights.families import FAMILIES, find_family, marian
from chumoku.weights.families.family import Family, make_config, read_number
from chumoku.weights.families.table import check_duplicates, export_tensors, head_order, select_rows
from chumoku.weights.formats.safetensors_source import MAX_FILES, SafetensorsSource
from chumoku.weights.identify_model import CONFIG
from chumoku.weights.instantiate import build_from_source

INDEX = "model.safetensors.index.json"
MODULES, POOLING, SENTENCE_CONFIG = "modules.json", "1_Pooling", "sentence_bert_config.json"
FORCED = "forced_bos_token_id"
PROMPTS = "config_sentence_transformers.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack", "model.ckpt.index")


class FolderInfo(NamedTuple):
    family: Family
    source: SafetensorsSource
    config: ModelConfig


def read_folder(folder: Path, *, device: torch.device | str = "cpu") -> Bundle:
    """Read the model and the tokenizers of a transformers folder."""
    family, source, config = inspect_folder(folder, device=device)
    check_duplicates(family.duplicates(config), source)
    model = build_from_source(config, family.rows(config), source, ignored=family.ignored, device=device)
    tokenizers = read_tokenizers(folder)
    if config.kind == "encoder-decoder":
        values = read_json(file_inside(folder, CONFIG), max_bytes=1 << 20)
        forced = read_generation_config(folder).values.get(FORCED, values.get(FORCED))
        tokenizers = set_first_tokens(tokenizers, values.get("decoder_start_token_id"), forced)
    return Bundle(model, tokenizers.target, tokenizers.source, read_generation(folder, tokenizers.target))


def inspect_folder(folder: Path, *, device: torch.device | str = "cpu") -> FolderInfo:
    """Read a folder's config and tensor names; no tensor data, except for Marian's positions."""
    check_links(folder)
    values = read_json(file_inside(folder, CONFIG), max_bytes=1 << 20)
    family = find_family_by_type(values, folder)
    source = SafetensorsSource(weight_files(folder), prefix=family.prefix, device=device)
    config = family.read(values, source)
    return FolderInfo(family, source, read_pooling(config, folder) if (folder / MODULES).is_file() else config)


def find_family_by_type(values: dict[str, Any], folder: Path) -> Family:
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        if not kind:
            raise UsageError(f"{folder / CONFIG} has no model_type; supported are {known}.")
        raise UsageError(f"{folder / CONFIG} has model_type '{str(kind)[:40]}'; supported are {known}.")
    return FAMILIES[kind]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder."""
    if (folder / WEIGHTS).is_file():
        return [file_inside(folder, WEIGHTS)]
    if (folder / INDEX).is_file():
        weight_map = read_json(file_inside(folder, INDEX)).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map or len(set(map(str, weight_map.values()))) > MAX_FILES:
            raise UsageError(f"{folder / INDEX} lists no files, or too many.")
        files = [file_inside(folder, name) for name in sorted(set(map(str, weight_map.values())))]
        missing = next((file for file in files if not file.is_file()), None)
        if missing is not None:
            raise UsageError(f"{missing} is missing, but {INDEX} lists it. Download it too.")
        return files
    pickled = next((name for name in PICKLED if (folder / name).exists()), None)
    if pickled is not None:
        raise UsageError(
            f"{folder / pickled} is never opened, because such files can run any code. If you trust it, convert it "
            "once with transformers: AutoModel.from_pretrained(folder).save_pretrained(new_folder) writes safetensors."
        )
    raise UsageError(f"{folder} has no weights: neither {WEIGHTS} nor {INDEX}.")


def read_pooling(config: ModelConfig, folder: Path) -> ModelConfig:
    """The config with the pooling that sentence-transformers' modules describe."""
    modules = read_any_json(file_inside(folder, MODULES), max_bytes=1 << 20)
    modules = modules if isinstance(modules, list) else []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"}:
        raise UsageError(
            f"{folder / MODULES} has {', '.join(kinds)[:200]}; only Transformer, Pooling, Normalize are supported."
        )
    values = read_json(file_inside(folder / POOLING, CONFIG))
    modes = {key.removeprefix("pooling_mode_") for key, on in values.items() if key.startswith("pooling_mode_") and on}
    modes = modes or {str(values.get("pooling_mode", "mean"))}
    known = {"mean_tokens": "mean", "mean": "mean", "cls_token": "first", "cls": "first"}
    if len(modes) != 1 or not modes <= known.keys():
        raise UsageError(
            f"{folder / POOLING} pools by {', '.join(sorted(modes))[:100]}; only mean or cls pooling is supported."
        )
    if not values.get("include_prompt", True):
        raise UsageError(f"{folder / POOLING} leaves the prompt out of the mean, which is not supported.")
    normalize = "Normalize" in kinds
    changes = {"head": "vector", "pooling": known[modes.pop()], "normalize": normalize, "output_bias": False}
    changes["prompts"] = read_prompts(folder)
    return make_config({**settings_to_dict(config), **changes, **read_max_seq_length(folder, config)})


def read_prompts(folder: Path) -> dict[str, Any]:
    """The prompts for queries and documents, and the default one, of sentence-transformers' config file."""
    if not os.path.lexists(folder / PROMPTS):
        return {}
    values = read_json(file_inside(folder, PROMPTS), max_bytes=1 << 20)
    prompts = values.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UsageError(f"The prompts in {folder / PROMPTS} must be an object.")
    default = str(values.get("default_prompt_name"))
    names = {"query": ("query",), "document": ("document", "passage"), "default": (default,)}
    found = {ours: next((prompts[name] for name in theirs if name in prompts), "") for ours, theirs in names.items()}
    return {ours: prompt for ours, prompt in found.items() if prompt}


def read_max_seq_length(folder: Path, config: ModelConfig) -> dict[str, Any]:
    """max_seq_length of sentence-transformers' config file, as a config value; empty if not given."""
    if not os.path.lexists(folder / SENTENCE_CONFIG):
        return {}
    values = read_json(file_inside(folder, SENTENCE_CONFIG), max_bytes=1 << 20)
    if values.get("max_seq_length") is None:
        return {}
    return {"max_seq_length": min(read_number(values, "max_seq_length"), config.context)}


def read_tokenizers(folder: Path) -> Tokenizers:
    """The tokenizers of a folder; a MissingTokenizer if it has no tokenizer files."""
    if (folder / SOURCE_TOKENIZER).is_file():
        return Tokenizers(text.load(folder), text.load(folder / SOURCE_TOKENIZER))
    if is_marian(folder):
        source, target = load_marian(folder)
        return Tokenizers(target, source)
    try:
        tokenizer = text.load(folder)
    except NoTokenizerError as error:
        tokenizer = text.MissingTokenizer(f"{error} Put one there, pass tokenizer=… to chumoku.load, {USE_IDS}")
    return Tokenizers(tokenizer, tokenizer)


def set_first_tokens(tokenizers: Tokenizers, start: Any, forced: Any) -> Tokenizers:
    """The tokenizers with the begin token that the config names, and with their token before every source.

    forced    the first token of a translation in the config, which is the default target language
    """
    if isinstance(tokenizers.target, text.MissingTokenizer):
        return tokenizers
    target, source = tokenizers
    differs = isinstance(start, int) and 0 <= start < target.size and start != target.roles.begin
    begin = {"begin": start} if differs else {}
    begin |= {"forced_begin": forced} if forced in target.roles.text_languages.values() else {}
    before = [token for token in source.prefix_and_suffix[0] if token not in source.roles.languages.values()]
    source_begin = {"source_begin": before[0]} if before else {}
    if source is target:
        both = with_roles(target, {**begin, **source_begin})
        return Tokenizers(both, both)
    return Tokenizers(with_roles(target, begin), with_roles(source, source_begin))


def write_folder(folder: Path, model: Model, tokenizers: Tokenizers, *, family: Family | None = None) -> None:
    """Write a model for transformers into an existing folder; config values that it cannot express are refused.

    family: by default the first that can express the model. Phi-3, for example, is written as a Llama otherwise.
    """
    model = dequantize_model(model) if is_quantized(model) else model
    config, weights = model.config, tensors_of(model)
    family = find_family(config) if family is None else family
    rows = select_rows(family.rows(config), weights)
    order = None
    if family.pairing is not None:
        order = head_order(family.pairing, config.pairing, config.key_width, config.rotated_width)
    roles = tokenizers.target.roles
    tensors: dict[str, Tensor] = export_tensors(rows, weights, order=order, unused_rows=family.unused_positions(roles))
    if family.name == "marian":
        tensors |= marian.extra_tensors(config)
    if config.head_kind == "vector":  # names have no prefix in a model without a head
        tensors = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    save_tensors(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    values = family.write(config, roles)
    values |= {} if roles.forced_begin is None else {FORCED: roles.forced_begin}
    values["dtype"] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(values, indent=1), encoding="utf-8")
    source, target = (add_end_token(tokenizer, config) for tokenizer in (tokenizers.source, tokenizers.target))
    write_tokenizer(target, folder, context=config.context)
    if tokenizers.source is not tokenizers.target:
        source.save(folder / SOURCE_TOKENIZER)
        if {source.kind, target.kind} == {"unigram"}:  # the only kind MarianTokenizer supports
            write_marian(tokenizers.source, tokenizers.target, folder)
    if config.kind == "encoder" and config.head_kind == "vector":
        write_modules(folder, config)


def add_end_token(tokenizer: Tokenizer, config: ModelConfig) -> Tokenizer:
    """The tokenizer with our end token added to its template, if an encoder reads it and it adds no tokens itself."""
    if config.kind == "decoder" or any(tokenizer.prefix_and_suffix) or tokenizer.roles.end is None:
        return tokenizer
    return with_prefix_and_suffix(tokenizer, [], [tokenizer.token(tokenizer.roles.end)])


def write_modules(folder: Path, config: ModelConfig) -> None:
    """Write sentence-transformers' module files, which describe the pooling."""
    kinds = [("", "Transformer"), (POOLING, "Pooling"), *([("2_Normalize", "Normalize")] if config.normalize else [])]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": config.width,
        "pooling_mode_cls_token": config.pooling == "first",
        "pooling_mode_mean_tokens": config.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for path, _ in kinds[1:]:
        (folder / path).mkdir()
    (folder / MODULES).write_text(json.dumps(modules, indent=1), encoding="utf-8")
    (folder / POOLING / CONFIG).write_text(json.dumps(pooling, indent=1), encoding="utf-8")
    # If it is null, sentence-transformers uses the model's context length.
    length = {"max_seq_length": config.max_seq_length, "do_lower_case": False}
    (folder / SENTENCE_CONFIG).write_text(json.dumps(length, indent=1), encoding="utf-8")
    prompts = settings_to_dict(config.prompts)
    values = {"prompts": prompts, "default_prompt_name": "default" if config.prompts.default else None}
    (folder / PROMPTS).write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")
