"""A family: how to convert a kind of model of another library, its config and its tensors, in both directions.

`supported` lists the values of our config keys that the family can express, or None for all; other values are refused
by key. A family that can express one of the choices in `OFF` lists it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chumoku.config import parse_settings, settings_to_dict
from chumoku.errors import ConfigError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.table import Row, Source

Values = Mapping[str, Any]
DERIVED: Mapping[str, Callable[[ModelConfig], Any]] = {  # defaults that follow from other keys
    "kv_heads": lambda config: config.heads,
    "feedforward_width": lambda config: 4 * config.width,
    "encoder_layers": lambda config: config.layers,
    "source_vocabulary": lambda config: config.vocabulary,
    "head": lambda config: "masked" if config.kind == "encoder" else "next",
    "head_width": lambda config: config.width / config.heads,
    "attention_bias": lambda config: "all" if config.bias else "none",
    "attention_scale": lambda config: config.key_width**-0.5,
}
Supported = Mapping[str, Sequence[Any] | None]
OFF: Supported = {
    **dict.fromkeys(("attention_window", "full_attention_every", "no_position_every", "head_width"), (None,)),
    **dict.fromkeys(("attention_bias", "attention_scale", "score_cap", "logit_cap", "rotary.local_base"), (None,)),
    **{"query_key_norm": ("none",), "norm_unit_offset": (False,), "parallel": (False,), "rotary.share": (1.0,)},
    **{"scale_logits": (False,), "norm_bias": (True,), "first_norm": (True,), "shared_norm": (False,)},
    **{"normalize_experts": (True,), "shared_expert_width": (None,)},
    "head": (None, "next", "masked", "vector"),
    **{"classifier_norm": (False,), "classifier_bias": (True,), "label_bias": (True,)},
    "rotary.scaling": ("none", "linear", "llama3"),
    **{"sinusoidal.endpoint": (False,), "sinusoidal.start": (0,)},
}


@dataclass(frozen=True)
class Family:
    """A model family of the transformers library."""

    name: str  # model_type in config.json
    title: str  # name in messages
    prefix: str  # of all tensors except the head's; files of a model without a head may lack it
    read: Callable[[Values, Source], ModelConfig]
    write: Callable[[ModelConfig, Roles], dict[str, Any]]
    rows: Callable[[ModelConfig], list[Row]]
    supported: Supported
    ignored: Mapping[str, str] = field(default_factory=dict)  # patterns of their tensors that we skip, and why
    duplicates: Callable[[ModelConfig], Mapping[str, str]] = lambda config: {}  # copy → original
    pairing: str | None = None  # of rotary position embeddings
    unused_positions: Callable[[Roles], int] = lambda roles: 0  # unused first rows of its table of learned positions

    def find_unsupported(self, config: ModelConfig) -> list[str]:
        """Why this family cannot express the config: for each problem our key, its value and the supported values."""
        return find_unsupported(self.title, self.supported, config)


def without_defaults(config: ModelConfig) -> ModelConfig:
    """The same config without keys whose value is the default that follows from other keys."""
    values = settings_to_dict(config)
    redundant = {key for key, default in DERIVED.items() if values.get(key) == default(config)}
    return ModelConfig(**{key: value for key, value in values.items() if key not in redundant})


def find_unsupported(title: str, supported: Supported, config: ModelConfig) -> list[str]:
    config = without_defaults(config)
    found = []
    for key, possible in {**OFF, **supported}.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if possible is not None and not _is_among(value, possible):
            known = ", ".join([*map(_format_value, possible[:6]), *(["…"] if len(possible) > 6 else [])])
            found.append(f"model.{key} = {_format_value(value)} ({title}: {known})")
    return found


def _is_among(value: Any, possible: Sequence[Any]) -> bool:
    """Whether the value is a possible one. (Python compares a value that is no int with every number of a range.)"""
    return (isinstance(value, int) or not isinstance(possible, range)) and value in possible


def require(values: Values, name: str, supported: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a config.json that has an unsupported value for one of these keys; missing keys are allowed."""
    for key, possible in supported.items():
        if key in values and values[key] not in possible:
            known = ", ".join(map(_format_value, possible))
            raise UsageError(f"This {name} has {key} = {_format_value(values[key])}; supported: {known}.")


def read_number(values: Values, key: str, default: int | float | None = None) -> Any:
    """A finite number of a config.json; its range is checked by ModelConfig."""
    value = values.get(key, default)
    finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not finite:
        raise UsageError(f"The config's {key} is {_format_value(value)}; it must be a number.")
    return value


def read_layers(values: Values) -> int:
    """The number of layers of a config.json that lists what each layer has."""
    layers = read_number(values, "num_hidden_layers")
    if not isinstance(layers, int) or not 1 <= layers <= 1024:
        raise UsageError(f"The config's num_hidden_layers is {str(layers)[:40]}; it must be 1 to 1024.")
    return layers


def our_name(values: Values, key: str, names: Mapping[str, str], default: str) -> str:
    """Our name for the config's value; `names` maps their names to ours."""
    value = values.get(key, default)
    if not isinstance(value, str) or value not in names:
        raise UsageError(f"The config's {key} is {_format_value(value)}; supported are {', '.join(names)}.")
    return names[value]


def make_config(values: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from values of another library's file; invalid values are a UsageError."""
    try:
        return parse_settings(ModelConfig, values, prefix="model.")
    except ConfigError as error:
        raise UsageError(f"The model's config is not valid here: {error}") from error


def check_length(source: Source, name: str, length: int) -> None:
    """Refuse a table that does not have as many rows as its config says; a missing table is reported later."""
    found = source.shapes.get(name, (length,))
    if found[:1] != (length,):
        raise UsageError(f"{source.path}: {name} has shape {list(found)}; its config needs {length} rows.")


def their_name(value: str, names: Mapping[str, str]) -> str:
    """Their name for our value: the first key of `names` that maps to it."""
    return next(theirs for theirs, ours in names.items() if ours == value)


def _format_value(value: Any) -> str:
    return json.dumps(value, default=str)[:80]


def write_sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes in config.json that most families of decoders call by the same names."""
    return {
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
    }
