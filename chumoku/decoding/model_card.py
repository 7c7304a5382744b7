"""What the web page knows about a model: its entry in /v1/models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chumoku.decoding.arguments import fill_options
from chumoku.decoding.chat import format_for
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import RANGES, GenerationConfig
from chumoku.text import Tokenizer
from chumoku.text.languages import source_languages, target_languages


def default_sampling(generation_config: GenerationConfig) -> dict[str, float | None]:
    """The sampling options of a request that sets none."""
    options = fill_options(generation_config, {})
    return {name: getattr(options, name) for name in RANGES}


def model_card(
    name: str,
    config: ModelConfig,
    *,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    generation_config: GenerationConfig,
    capacity: int,
    created: int,
    examples: Sequence[str] = (),
) -> dict[str, Any]:
    """A model's entry in /v1/models.

    capacity   most tokens of a prompt and the text that continues it
    created    when the model was opened, in seconds since 1970
    examples   sentences that the page offers for it
    """
    decoder = config.kind == "decoder"
    translates = config.kind == "encoder-decoder"
    choice = translates and source_tokenizer.target_language is None
    return {
        "id": name,
        "object": "model",
        "parent": None,
        "created": created,
        "owned_by": "chumoku",
        "kind": config.kind,
        "context": capacity if decoder else config.context,
        "vocabulary": config.vocabulary,
        "heads": config.heads,
        "layers": config.layers,
        "encoder_layers": (config.encoder_layers or config.layers) if translates else None,
        "width": config.width,
        "position": config.position,
        "norm": config.norm,
        "feedforward": config.feedforward,
        "sampling": default_sampling(generation_config) if decoder else None,
        "chat": decoder and format_for(tokenizer) != "plain",
        "into": target_languages(source_tokenizer) or None if choice else None,
        "source_languages": source_languages(source_tokenizer) or None if translates else None,
        "examples": list(examples),
    }
