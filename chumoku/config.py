"""Strict settings: TOML files and key=value words ⇄ frozen dataclasses.

A settings class derives from `Settings` and lists its fields with types and ranges, and, in `RULES`, the
combinations that cannot be. However it is made (in Python, from TOML, from key=value), the same check runs,
and everything that is wrong is reported at once:

    class Shape(Settings):
        width: Annotated[int, Field(ge=1)] = 1
        height: Annotated[int, Field(ge=1)] = 1

    parse_settings(Shape, {"widht": 4, "height": -1})
        ConfigError: widht: there is no such key; did you mean width?
                     height: -1 is too small; at least 1 is needed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chumoku.errors import ConfigError, Problem, UsageError
from chumoku.safe_files import check_depth, check_file

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 32  # levels of tables
# A key of more parts than that: the parser's time grows with the square of their number, so it never sees one.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH}}}")


class Rule(NamedTuple):
    """A combination that cannot be. `broken` says why, or returns None; the first of `keys` is blamed."""

    keys: tuple[str, ...]
    broken: Callable[[Any], str | None]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """Base of all settings: subclasses become frozen keyword-only dataclasses that check themselves."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    ALIASES: ClassVar[Mapping[str, str]] = {}  # names of other libraries: hints, never read
    FORMER_NAMES: ClassVar[
        Mapping[str, str]
    ] = {}  # names of earlier versions: hints, and read in files of those versions

    _hints: ClassVar[dict[str, Any]]
    _adapters: ClassVar[dict[str, TypeAdapter[Any]]]

    def __init_subclass__(cls) -> None:
        made = dataclasses.dataclass(frozen=True, kw_only=True, init=False)(cls)
        hints = get_type_hints(cls, include_extras=True)
        cls._hints = {field.name: hints[field.name] for field in dataclasses.fields(made)}  # type: ignore[arg-type]
        cls._adapters = {}

    def __init__(self, **values: Any) -> None:
        _fill(self, values, prefix="")


T = TypeVar("T", bound=Settings)


def parse_settings(cls: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
    """Make settings from a mapping (nested as in TOML); every problem found is in the one error raised."""
    settings = cls.__new__(cls)
    _fill(settings, values, prefix=prefix)
    return settings


def _fill(settings: Settings, values: Mapping[str, Any], *, prefix: str) -> None:
    """Set every field of new settings, or report everything that is wrong."""
    cls = type(settings)
    problems = list(find_problems(cls, values, prefix=prefix))
    if problems:
        raise ConfigError(problems)
    for key, default in _defaults(cls).items():
        value = _made(_nested(cls).get(key), _plain(values[key])) if key in values else default
        object.__setattr__(settings, key, value)


def settings_to_dict(settings: Settings) -> dict[str, Any]:
    """The mapping that `read` turns back into the same settings; keys that are None are left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # Settings subclasses are dataclasses
        value = getattr(settings, field.name)
        if value is not None:
            values[field.name] = settings_to_dict(value) if isinstance(value, Settings) else value
    return values


def rename_former_keys(cls: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, with the keys that earlier versions wrote under another name under today's."""
    nested = _nested(cls)
    renamed = {cls.FORMER_NAMES.get(key, key): value for key, value in values.items()}
    return {
        key: rename_former_keys(nested[key], value) if key in nested and isinstance(value, Mapping) else value
        for key, value in renamed.items()
    }


def load_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file, refusing with a sentence what is absent, too large or not TOML."""
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
        raise UsageError(f"{path} is not valid TOML: {str(error)[:200]}. Mend that line and try again.") from error


def override(values: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Lay `key=value` words over a mapping: `model.position=rotary` sets values["model"]["position"]."""
    result = _copied(values)
    problems = []
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            problems.append(Problem(_cut(word), "this is not of the form key=value, as in model.width=512."))
            continue
        *tables, last = key.split(".")
        if len(tables) >= MAX_DEPTH:
            problems.append(
                Problem(_cut(key), f"this key has {len(tables) + 1:,} parts, and at most {MAX_DEPTH} are read.")
            )
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
    """A TOML value when it is one (512, 0.1, true, "x", [1, 2]); otherwise the text itself (rotary)."""
    try:
        parsed = {} if _DEEP_KEY.search(text) else tomllib.loads(f"value = {text}")
        check_depth(parsed, MAX_DEPTH)
    except (ValueError, RecursionError):
        parsed = {}
    return parsed["value"] if list(parsed) == ["value"] else text.strip()


def find_problems(cls: type[Settings], values: Mapping[str, Any], *, prefix: str = "") -> Iterator[Problem]:
    """Everything wrong with `values` as settings of class `cls`: unknown keys, types, ranges, combinations."""
    nested, defaults = _nested(cls), _defaults(cls)
    good: dict[str, Any] = {}
    for key, given in values.items():
        value = _plain(given)
        if key not in defaults:
            yield Problem(f"{prefix}{key}", _unknown(cls, str(key), prefix))
            continue
        inner = nested.get(key)
        if inner is not None and isinstance(value, Mapping):
            found = list(find_problems(inner, value, prefix=f"{prefix}{key}."))
        else:
            found = list(_type_problems(cls, key, value, prefix))
        yield from found
        if not found:
            good[key] = _made(inner, value)
    for key, default in defaults.items():
        if key not in values and default is not dataclasses.MISSING:
            good[key] = default
        elif key not in values:
            yield Problem(f"{prefix}{key}", "this key is needed and was not given.")
    for rule in cls.RULES:
        if all(key in good for key in rule.keys):
            sentence = rule.broken(SimpleNamespace(**good))
            if sentence is not None:
                yield Problem(f"{prefix}{rule.keys[0]}", sentence)


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _defaults(cls: type[Settings]) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """A number from NumPy as Python's own."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _made(inner: type[Settings] | None, value: Any) -> Any:
    return parse_settings(inner, value) if inner is not None and isinstance(value, Mapping) else value


def _nested(cls: type[Settings]) -> dict[str, type[Settings]]:
    return {key: hint for key, hint in cls._hints.items() if isinstance(hint, type) and issubclass(hint, Settings)}


def _adapter(cls: type[Settings], key: str) -> TypeAdapter[Any]:
    if key not in cls._adapters:
        strict = None if key in _nested(cls) else ConfigDict(strict=True, allow_inf_nan=False)
        cls._adapters[key] = TypeAdapter(cls._hints[key], config=strict)
    return cls._adapters[key]


def _type_problems(cls: type[Settings], key: str, value: Any, prefix: str) -> Iterator[Problem]:
    try:
        _adapter(cls, key).validate_python(value)
    except ValidationError as error:
        # A field that may be None reports one error per alternative; the one about None helps nobody.
        details = [one for one in error.errors(include_url=False) if one["type"] != "none_required"]
        yield Problem(f"{prefix}{key}", _sentence(details[0]["type"], details[0].get("ctx", {}), value))


def _sentence(kind: str, limits: Mapping[str, Any], value: Any) -> str:
    shown = _shown(value)
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
            return f"{shown} is not a whole number, and one is needed."
        case "float_type" | "float_parsing":
            return f"{shown} is not a number, and one is needed."
        case "bool_type" | "bool_parsing":
            return f"{shown} is neither true nor false."
        case "string_type":
            return f"{shown} is not text, and text is needed."
        case "literal_error":
            return f"{shown} is not a choice; choose {limits['expected']}.{_closest(value, limits['expected'])}"
        case "dataclass_type" | "dataclass_exact_type":
            return f"{shown} is a single value where a table of keys is needed."
        case _:
            return f"{shown} does not fit here ({kind.replace('_', ' ')})."


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, a list inside itself
        text = f"this {type(value).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _closest(value: Any, expected: str) -> str:
    choices = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    close = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def _unknown(cls: type[Settings], key: str, prefix: str) -> str:
    known = list(cls._hints)
    alias = {**cls.ALIASES, **cls.FORMER_NAMES}.get(key.lower())
    if alias is not None:
        return f"there is no such key; here this is called {prefix}{alias}."
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    if close:
        return f"there is no such key; did you mean {prefix}{close[0]}?"
    return f"there is no such key; the keys here are {', '.join(known)}."
