"""A family: another library's kind of model, as a config and a table, both ways.

What the family has no word for is refused by our key: `supported` lists the values that it can express.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chumoku.config import read, write
from chumoku.errors import ConfigError, UsageError
from chumoku.models.config import ModelConfig
from chumoku.text.special_tokens import Roles
from chumoku.weights.families.table import Row, Source

Values = Mapping[str, Any]
DERIVED: Mapping[str, Callable[[ModelConfig], Any]] = {  # what a key stands for where it is not given
    "kv_heads": lambda config: config.heads,
    "feedforward_width": lambda config: 4 * config.width,
    "encoder_layers": lambda config: config.layers,
    "source_vocabulary": lambda config: config.vocabulary,
    "head": lambda config: "masked" if config.kind == "encoder" else "next",
}


@dataclass(frozen=True)
class Family:
    name: str  # as in a config.json's model_type
    title: str  # as people call it
    prefix: str  # of the body's tensors; files of a body without a head may lack it
    read: Callable[[Values, Source], ModelConfig]
    write: Callable[[ModelConfig, Roles], dict[str, Any]]
    rows: Callable[[ModelConfig], list[Row]]
    supported: Mapping[str, tuple[Any, ...]]
    ignored: Mapping[str, str] = field(default_factory=dict)  # their tensors that are nothing of ours, and why
    duplicates: Callable[[ModelConfig], Mapping[str, str]] = lambda config: {}  # theirs that is another of theirs again
    pairing: str | None = None  # of rotary positions

    def find_unsupported(self, config: ModelConfig) -> list[str]:
        """What stands in the way of writing a model as one of this family: our key, its value, what would do."""
        return find_unsupported(self.title, self.supported, config)


def without_defaults(config: ModelConfig) -> ModelConfig:
    """The same config without the keys that only write out a default which follows from other keys."""
    values = write(config)
    spelled = {key for key, default in DERIVED.items() if values.get(key) == default(config)}
    return ModelConfig(**{key: value for key, value in values.items() if key not in spelled})


def find_unsupported(title: str, supported: Mapping[str, tuple[Any, ...]], config: ModelConfig) -> list[str]:
    config = without_defaults(config)
    found = []
    for key, possible in supported.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value not in possible:
            known = " or ".join([*map(_format_value, possible[:6]), *(["more"] if len(possible) > 6 else [])])
            found.append(f"model.{key} = {_format_value(value)}, and {title} has {known} alone")
    return found


def require_values(values: Values, name: str, supported: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a config.json whose keys have values that we cannot express; a key that is not there is as usual."""
    for key, possible in supported.items():
        if key in values and values[key] not in possible:
            raise UsageError(
                f"This {name} has {key} = {_format_value(values[key])}, and only {' or '.join(map(_format_value, possible))} can be "
                "run here."
            )


def read_number(values: Values, key: str, default: int | float | None = None) -> Any:
    """A number of a config.json; range and size are for our own settings to judge."""
    value = values.get(key, default)
    finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not finite:
        raise UsageError(f"The config's {key} is {_format_value(value)}, and a number was expected.")
    return value


def to_our_name(values: Values, key: str, names: Mapping[str, str], default: str) -> str:
    """One of our names for one of theirs."""
    value = values.get(key, default)
    if not isinstance(value, str) or value not in names:
        raise UsageError(f"The config's {key} is {_format_value(value)}; known here are {', '.join(names)}.")
    return names[value]


def make_config(values: Mapping[str, Any]) -> ModelConfig:
    """Our config, or a sentence about what another's file asks for that cannot be."""
    try:
        return read(ModelConfig, values, prefix="model.")
    except ConfigError as error:
        raise UsageError(f"The model's config cannot be: {error}") from error


def to_their_name(value: str, names: Mapping[str, str]) -> str:
    """Their name for ours."""
    return next(theirs for theirs, ours in names.items() if ours == value)


def _format_value(value: Any) -> str:
    return json.dumps(value, default=str)[:80]
