"""Strict settings: TOML files and key=value arguments ⇄ frozen dataclasses.

A settings class derives from `Settings` and lists its fields with types and ranges, and, in `RULES`, checks of several
fields. The same checks run for every source (Python, TOML, key=value), and all problems are reported at once:

    class Shape(Settings):
        width: Annotated[int, Field(ge=1)] = 1
        height: Annotated[int, Field(ge=1)] = 1

    parse_settings(Shape, {"widht": 4, "height": -1})
        ConfigError: widht: there is no such key. Did you mean width?
                     height: -1 is too small; at least 1 is needed.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chumoku.errors import ConfigError, Problem, UsageError, did_you_mean
from chumoku.safe_files import check_depth, check_file

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32  # levels of tables
# Finds keys with more parts. The parser's time is quadratic in their number, so they are refused before parsing.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH}}}")


class Rule(NamedTuple):
    """A check of several keys: `check` returns a sentence if they do not fit together, reported for keys[0]."""

    keys: tuple[str, ...]
    check: Callable[[Any], str | None]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """Base class of all settings: subclasses become frozen, keyword-only dataclasses that validate their values."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    ALIASES: ClassVar[Mapping[str, str]] = {}  # names in other libraries, used only for hints
    FORMER_NAMES: ClassVar[Mapping[str, str]] = {}  # names in earlier versions, still read in their files
    TUPLES: ClassVar[tuple[str, ...]] = ()  # keys whose lists are stored as tuples, so that the settings can be hashed

    _hints: ClassVar[dict[str, Any]]
    _defaults: ClassVar[dict[str, Any]]
    _nested: ClassVar[dict[str, type[Settings]]]  # fields that are settings themselves
    _adapters: ClassVar[dict[str, TypeAdapter[Any]]]

    def __init_subclass__(cls) -> None:
        settings_class = dataclasses.dataclass(frozen=True, kw_only=True, init=False)(cls)
        hints = get_type_hints(cls, include_extras=True)
        cls._defaults = {field.name: field.default for field in dataclasses.fields(settings_class)}  # type: ignore[arg-type]
        cls._hints = {key: hints[key] for key in cls._defaults}
        cls._nested = {
            key: hint for key, hint in cls._hints.items() if isinstance(hint, type) and issubclass(hint, Settings)
        }
        cls._adapters = {}

    def __init__(self, **values: Any) -> None:
        _fill(self, values, prefix="")


T = TypeVar("T", bound=Settings)


def parse_settings(cls: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """Create settings of class `cls` from a mapping, nested as in TOML.

    prefix: put before each key in error messages, such as "model.". One ConfigError has all problems.
    """
    settings = cls.__new__(cls)
    _fill(settings, values, prefix=prefix)
    return settings


def _fill(settings: Settings, values: Mapping[str, Any], *, prefix: str) -> None:
    """Set every field of new settings, or raise ConfigError with all problems."""
    cls = type(settings)
    problems = list(find_problems(cls, values, prefix=prefix))
    if problems:
        raise ConfigError(problems)
    for key, default in cls._defaults.items():
        value = _parse_nested(cls._nested.get(key), _to_python(values[key])) if key in values else default
        if key in cls.TUPLES and isinstance(value, list):
            value = tuple(value)
        object.__setattr__(settings, key, value)


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """Return the mapping from which `parse_settings` creates the same settings, without keys that are None."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # Settings subclasses are dataclasses
        value = getattr(settings, field.name)
        if value is not None:
            value = list(value) if isinstance(value, tuple) else value  # as TOML and JSON have it
            values[field.name] = settings_to_dict(value) if isinstance(value, Settings) else value
    return values


def rename_former_keys(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with key names of earlier versions replaced by the present ones."""
    nested = cls._nested
    renamed = {cls.FORMER_NAMES.get(key, key): value for key, value in values.items()}
    return {
        key: rename_former_keys(nested[key], value) if key in nested and isinstance(value, Mapping) else value
        for key, value in renamed.items()
    }


def load_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file; raise UsageError if it is missing, too large or not valid TOML."""
    path = Path(path)
    size = check_file(path)
    if size > MAX_FILE_BYTES:
        raise UsageError(f"{path} has {size:,} bytes; settings files may have up to {MAX_FILE_BYTES:,}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if deep := _DEEP_KEY.search(text):
            line = text.count("\n", 0, deep.start()) + 1
            raise ValueError(f"a key of more than {MAX_DEPTH} parts (at line {line})")
        values = tomllib.loads(text)
        check_depth(values, MAX_DEPTH)
        return values
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}. Check the path and try again.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}. Save it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {str(error)[:200]}. Correct it and try again.") from error


def override(values: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return the values with `key=value` arguments applied: `model.width=512` sets values["model"]["width"]."""
    result = _copy(values)
    problems = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            problems.append(Problem(_shorten(assignment), "this is not of the form key=value, as in model.width=512."))
            continue
        *tables, last = key.split(".")
        if len(tables) >= MAX_DEPTH:
            parts = f"this key has {len(tables) + 1:,} parts; at most {MAX_DEPTH} are allowed."
            problems.append(Problem(_shorten(key), parts))
            continue
        table = result
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                problems.append(Problem(key, f"{name} is a single value, so nothing can be set inside it."))
                break
        else:
            table[last] = parse_value(text)
    if problems:
        raise ConfigError(problems)
    return result


def parse_value(text: str) -> Any:
    """Return the TOML value of a text (512, 0.1, true, "x", [1, 2]), or the text itself if it is not TOML (rotary)."""
    try:
        parsed = {} if _DEEP_KEY.search(text) else tomllib.loads(f"value = {text}")
        check_depth(parsed, MAX_DEPTH)
    except (ValueError, RecursionError):
        parsed = {}
    return parsed["value"] if list(parsed) == ["value"] else text.strip()


def find_problems(cls: type[Settings], values: Mapping[str, Any], *, prefix: str = "") -> Iterator[Problem]:
    """Yield all problems of `values` as settings of class `cls`: unknown keys, types, ranges and rules."""
    nested, defaults = cls._nested, cls._defaults
    valid: dict[str, Any] = {}
    for key, given in values.items():
        value = _to_python(given)
        if key not in defaults:
            yield Problem(f"{prefix}{key}", _describe_unknown_key(cls, str(key), prefix))
            continue
        inner = nested.get(key)
        if inner is not None and isinstance(value, Mapping):
            found = list(find_problems(inner, value, prefix=f"{prefix}{key}."))
        else:
            found = list(_type_problems(cls, key, value, prefix))
        yield from found
        if not found:
            valid[key] = _parse_nested(inner, value)
    for key, default in defaults.items():
        if key not in values and default is not dataclasses.MISSING:
            valid[key] = default
        elif key not in values:
            yield Problem(f"{prefix}{key}", "this key is required.")
    for rule in cls.RULES:
        if all(key in valid for key in rule.keys):
            sentence = rule.check(SimpleNamespace(**valid))
            if sentence is not None:
                yield Problem(f"{prefix}{rule.keys[0]}", sentence)


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _to_python(value: Any) -> Any:
    """Convert a NumPy number to a Python number."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _parse_nested(inner: type[Settings] | None, value: Any) -> Any:
    return parse_settings(inner, value) if inner is not None and isinstance(value, Mapping) else value


def _adapter(cls: type[Settings], key: str) -> TypeAdapter[Any]:
    if key not in cls._adapters:
        strict = None if key in cls._nested else ConfigDict(strict=True, allow_inf_nan=False)
        cls._adapters[key] = TypeAdapter(cls._hints[key], config=strict)
    return cls._adapters[key]


def _type_problems(cls: type[Settings], key: str, value: Any, prefix: str) -> Iterator[Problem]:
    try:
        _adapter(cls, key).validate_python(value)
    except ValidationError as error:
        # An optional field also reports that the value is not None, which does not help.
        details = [one for one in error.errors(include_url=False) if one["type"] != "none_required"]
        yield Problem(f"{prefix}{key}", _describe_problem(details[0]["type"], details[0].get("ctx", {}), value))


def _describe_problem(kind: str, limits: Mapping[str, Any], value: Any) -> str:
    shown = _format_value(value)
    match kind:
        case "greater_than_equal":
            return f"{shown} is too small; at least {limits['ge']:,} is needed."
        case "greater_than":
            return f"{shown} is too small; it must be above {limits['gt']:,}."
        case "less_than_equal":
            return f"{shown} is too large; at most {limits['le']:,} is allowed."
        case "less_than":
            return f"{shown} is too large; it must be below {limits['lt']:,}."
        case "finite_number":
            return f"{shown} is not a finite number."
        case "int_type" | "int_from_float" | "int_parsing":
            return f"{shown} is not a whole number."
        case "float_type" | "float_parsing":
            return f"{shown} is not a number."
        case "bool_type" | "bool_parsing":
            return f"{shown} is neither true nor false."
        case "string_type":
            return f"{shown} is not a string."
        case "literal_error":
            return _describe_wrong_choice(value, limits["expected"])
        case "dataclass_type" | "dataclass_exact_type":
            return f"{shown} is a single value, but a table of keys is needed."
        case _:
            return f"{shown} is not valid here ({kind.replace('_', ' ')})."


def _format_value(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that contains itself
        text = f"this {type(value).__name__}"
    return _shorten(text)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _describe_wrong_choice(value: Any, expected: str) -> str:
    hint = did_you_mean(str(value), [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")])
    return f"{_format_value(value)} is not a choice; choose {expected}. {hint}".rstrip()


def _describe_unknown_key(cls: type[Settings], key: str, prefix: str) -> str:
    known = list(cls._hints)
    alias = {**cls.ALIASES, **cls.FORMER_NAMES}.get(key.lower())
    if alias is not None:
        return f"there is no such key; it is called {prefix}{alias} here."
    hint = did_you_mean(key, known, f"The keys here are {', '.join(known)}.", prefix=prefix)
    return f"there is no such key. {hint}"
