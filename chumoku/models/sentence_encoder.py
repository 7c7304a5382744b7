"""The sentence encoder inside another model's config: its encoder, and one vector per text instead of other outputs.

masked encoder     the same encoder without the masked-token head
encoder-decoder    its encoder, which reads the source language
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chumoku.models.config import ModelConfig

ENCODER_DECODER_KEYS = ("encoder_layers", "source_vocabulary", "share_embeddings")


def sentence_encoder_keys(config: ModelConfig, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the sentence encoder, given those of a model's config; a decoder has no encoder and keeps its kind.

    The names of the encoder's weights are the same in both models.
    """
    if config.kind == "decoder":
        return dict(keys)
    changes = {"kind": "encoder", "head": "vector"}
    if config.kind == "encoder":
        return {**keys, **changes}
    kept = {key: value for key, value in keys.items() if key not in ENCODER_DECODER_KEYS}
    return {**kept, **changes, "layers": config.encoder_depth, "vocabulary": config.source_tokens}
