"""data.kind = "labels" or "tags" → the keys of [model] that follow from it: head, labels and max_seq_length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chumoku.config import parse_settings, settings_to_dict
from chumoku.models.config import ModelConfig
from chumoku.models.presets import PRESETS
from chumoku.training.settings import LABEL_HEADS

PLACEHOLDER_LABELS = ("0", "1")  # until the training files are read
CLASSIFIER_KEYS = ("classifier_activation", "classifier_bias", "classifier_norm", "label_bias")
LABEL_KEYS = ("labels", "pooling", *CLASSIFIER_KEYS)  # keys of [model] that may be given with init


def head_values(data_kind: Any, model: Mapping[str, Any], labels: Sequence[str] | None = None) -> dict[str, Any]:
    """The head and labels for this kind of data; nothing if it has no labels, or the model cannot have them."""
    kind = model.get("kind") or PRESETS.get(str(model.get("preset")), {}).get("kind")
    if data_kind not in LABEL_HEADS or kind == "encoder-decoder":
        return {}
    return {"head": LABEL_HEADS[data_kind], "labels": list(labels or model.get("labels") or PLACEHOLDER_LABELS)}


def change_head(
    found: Mapping[str, Any], data_kind: Any, model: Mapping[str, Any], labels: Sequence[str] | None
) -> dict[str, Any]:
    """The config of model.init with the head for this kind of data, and the LABEL_KEYS of the [model] table.

    By default the last token of a decoder decides about a text, without a bias, as in transformers.
    """
    head = head_values(data_kind, {**model, "kind": found["kind"]}, labels)
    if not head:
        return dict(found)
    values = {key: value for key, value in found.items() if key != "prompts"}  # the training texts have none
    if found.get("head") != head["head"]:
        values = {key: value for key, value in values.items() if key not in CLASSIFIER_KEYS}
        values |= {"pooling": "last", "label_bias": data_kind == "tags"} if found["kind"] == "decoder" else {}
    return {**values, **{key: model[key] for key in LABEL_KEYS if key in model}, **head}


def limit_length(config: ModelConfig, sequence_length: int | None) -> ModelConfig:
    """The config of a model with labels, which truncates texts to train.sequence_length or the context."""
    if config.labels is None:
        return config
    limit = sequence_length or config.max_seq_length or config.context
    return parse_settings(ModelConfig, {**settings_to_dict(config), "max_seq_length": limit}, prefix="model.")
