"""Every key of a recipe, with its type, default and meaning.

The meaning is the comment after the key in its settings class, and a key's lines that follow it:

    rank: Annotated[int, Field(ge=1, le=1024)] = 8  # r: the adapter is a product of …
        → lora.rank   int, 1 … 1024   8   r: the adapter is a product of …

`chumoku keys` prints this list, and the reference of the documentation is made of it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import tokenize
import types
import typing
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from chumoku.config import Settings
from chumoku.errors import UsageError, did_you_mean
from chumoku.models.config import ModelConfig
from chumoku.training.recipe import TABLES

REQUIRED = "required"
UNSET = "–"  # the default of a key without a value


class RecipeKey(NamedTuple):
    """One key of a recipe: its name with its table, what its values may be, its default, and what it means."""

    name: str
    type: str
    default: str
    meaning: str


# [model] in a recipe has two keys more than a model's config.
MODEL_KEYS = (
    RecipeKey("model.preset", "str", UNSET, "a preset with the published shape of a model; other keys change it"),
    RecipeKey(
        "model.init",
        "str",
        UNSET,
        "a model to start from, with its config and tokenizer: a folder, a file, or hf:owner/name",
    ),
)


def list_keys(pattern: str = "") -> list[RecipeKey]:
    """All keys of a recipe whose names match a pattern.

    pattern: part of a name (`dropout`), or with `*` a whole name (`model.rotary.*`); empty for all keys. A pattern that
    matches no key raises UsageError with a suggestion.
    """
    keys = [*MODEL_KEYS, *_keys_of(ModelConfig, "model.")]
    for table, cls in TABLES.items():
        keys += _keys_of(cls, f"{table}.")
    found = [key for key in keys if _matches(key.name, pattern.strip().lower())]
    if not found:
        names = {part: None for key in keys for part in (key.name, key.name.rpartition(".")[2])}
        hint = did_you_mean(pattern.strip(), names, "`chumoku keys` without a pattern lists all.")
        raise UsageError(f"No key of a recipe matches {pattern[:60]}. {hint}")
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if "*" in pattern else pattern in name


def _keys_of(cls: type[Settings], prefix: str) -> Iterator[RecipeKey]:
    """The keys of a settings class, with those of its nested settings."""
    hints, meanings = get_type_hints(cls, include_extras=True), read_meanings(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # Settings subclasses are dataclasses
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Settings):
            yield from _keys_of(hint, f"{prefix}{field.name}.")
        else:
            default = _describe_default(field.default)
            yield RecipeKey(f"{prefix}{field.name}", describe_type(hint), default, meanings.get(field.name, ""))


def read_meanings(cls: type[Settings]) -> dict[str, str]:
    """The comment after each field of a settings class and of the settings it derives from, in its source."""
    meanings: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if issubclass(one, Settings) and one is not Settings:
            meanings |= _comments_after_fields(inspect.getsource(one))
    return meanings


def _comments_after_fields(source: str) -> dict[str, str]:
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    meanings = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]  # a class
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            line = node.end_lineno or node.lineno
            words = [comments[line][0]] if line in comments else []
            while (line := line + 1) in comments and comments[line][1]:
                words.append(comments[line][0])
            meanings[node.target.id] = " ".join(words)
    return meanings


def describe_type(hint: Any) -> str:
    """A type as the reference shows it: `int, 1 … 1024`, `"adamw" | "sgd"`, `list[str]`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        limits = [text for detail in arguments[1:] if (text := _describe_limits(detail))]
        return ", ".join([describe_type(arguments[0]), *limits])
    if origin is typing.Literal:
        return " | ".join(json.dumps(value) for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(describe_type(one) for one in arguments if one is not type(None))
    if origin in (list, tuple):
        return f"list[{describe_type(arguments[0])}]"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _describe_limits(detail: Any) -> str:
    """The range in a pydantic Field: "1 … 1024", "> 0, ≤ 1"; empty for other details, such as lengths."""
    limits = {type(one).__name__: one for one in getattr(detail, "metadata", ())}
    if set(limits) == {"Ge", "Le"}:
        return f"{_describe_number(limits['Ge'].ge)} … {_describe_number(limits['Le'].le)}"
    signs = (("Gt", ">", "gt"), ("Ge", "≥", "ge"), ("Lt", "<", "lt"), ("Le", "≤", "le"))
    return ", ".join(
        f"{sign} {_describe_number(getattr(limits[name], at))}" for name, sign, at in signs if name in limits
    )


def _describe_number(number: float) -> str:
    if isinstance(number, int) and number >= 1 << 16 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return f"{number:g}".replace("e+", "e").replace("e0", "e") if isinstance(number, float) else str(number)


def _describe_default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return REQUIRED
    return UNSET if value is None else json.dumps(value, ensure_ascii=False)
