"""Save a model with its tokenizers; refuse one that would not be the same after `load`."""

from __future__ import annotations

import os
from pathlib import Path

from chumoku import lora
from chumoku.decoding.engines.unmodified import changed_module
from chumoku.errors import UsageError
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.model import Model
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.quantized import quantized_kinds
from chumoku.text import MissingTokenizer, Tokenizer
from chumoku.weights.bundle import Bundle, Tokenizers, write_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.checksums import atomic_folder
from chumoku.weights.identify_model import is_bundle


def save(
    path: Path | str,
    model: Model,
    tokenizer: Tokenizer | None,
    *,
    source_tokenizer: Tokenizer | None = None,
    generation_config: GenerationConfig | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model and its tokenizer to a folder that `load` opens, and return the folder.

        model = chumoku.build(chumoku.ModelConfig(vocabulary=tokenizer.size))
        chumoku.save("my-model", model, tokenizer)
        chumoku.load("my-model").generate("Once upon a time")

    tokenizer           None saves a model that takes only token ids
    source_tokenizer    of an encoder-decoder whose source has another vocabulary
    generation_config   default options of generation for this model
    overwrite           replace a model that was saved there before
    """
    folder, model = Path(path), unwrap_compiled(model)
    bundle = Bundle(model, tokenizer, source_tokenizer, generation_config)
    check_savable(model)
    check_vocabulary(bundle)
    saved = is_bundle(folder)
    empty = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    if not empty and not (saved and overwrite):
        if saved:
            raise UsageError(f"{folder} already exists. Pass overwrite=True to replace it, or choose another folder.")
        raise UsageError(f"{folder} already exists. It is not a saved model; choose another folder.")
    with atomic_folder(folder) as working:
        write_bundle(working, model.config, tensors_of(model), Tokenizers(bundle.tokenizer, bundle.source_tokenizer))
        bundle.generation_config.write(working)
    return folder


def check_savable(model: Model) -> None:
    """Refuse a model that would not be the same after `load`."""
    if "bf16" in quantized_kinds(model):
        raise UsageError(
            "The matrices of this model were converted to bf16 when it was loaded. Save the model it was made from; "
            "load(path, precision='bf16') converts it again."
        )
    if changed := changed_module(model):
        hint = "Save its weights yourself, with safetensors."
        if lora.list_adapters(model):
            hint = "Merge adapters first (chumoku.lora.merge), or save its weights yourself, with safetensors."
        raise UsageError(
            f"This model differs from its config: {changed}. A saved model is a config and its weights, so it would be "
            f"another model after load. {hint}"
        )


def check_vocabulary(bundle: Bundle) -> None:
    """Refuse a tokenizer with more tokens than the model."""
    config = bundle.config
    for name, tokenizer, size in (
        ("tokenizer", bundle.tokenizer, config.vocabulary),
        ("source tokenizer", bundle.source_tokenizer, config.source_vocabulary or config.vocabulary),
    ):
        if not isinstance(tokenizer, MissingTokenizer) and tokenizer.size > size:
            raise UsageError(
                f"The {name} has {tokenizer.size:,} tokens and the model's vocabulary {size:,}. Build the model with "
                f"vocabulary={tokenizer.size}, or more."
            )
