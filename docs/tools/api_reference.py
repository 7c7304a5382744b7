"""The API reference: every public name of `chumoku` with its signature, as written in the source, and its docstring."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from translations import translate

import chumoku

FROM = {"en": "from", "ja": "モジュール："}
WIDTH = 100


def generate_api(language: str) -> str:
    """A section for each public name; in Japanese, the first sentences of the docstrings are translated."""
    names = sorted(chumoku.__all__, key=str.lower)
    return "\n\n".join(_describe(name, getattr(chumoku, name), language) for name in names)


def _describe(name: str, item: Any, language: str) -> str:
    parts = [f"## `{name}`"]
    if inspect.isfunction(item):
        parts.append(_signature(name, item))
    elif hasattr(item, "__dataclass_fields__") and item is not chumoku.ModelConfig:  # its keys are in the recipe keys
        parts.append(_fields(item))
    elif "__init__" in vars(item) and item is not chumoku.ModelConfig:
        parts.append(_signature(name, item.__init__))
    parts += [f"{FROM[language]} `{item.__module__}`", *_docstring(item, language)]
    return "\n\n".join([*parts, *(_members(item, language) if inspect.isclass(item) else ())])


def _signature(name: str, function: Any) -> str:
    """The arguments of a function as in its source; one on a line if they do not fit."""
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    arguments = [argument for argument in _split_arguments(node.args) if argument not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"
    return f"```{{code-block}} python\n{line}\n```"


def _fields(cls: type) -> str:
    """The fields of a dataclass, as in its source."""
    source = textwrap.dedent(inspect.getsource(cls))
    node: Any = ast.parse(source).body[0]
    lines = source.splitlines()
    fields = [
        line for one in node.body if isinstance(one, ast.AnnAssign) for line in lines[one.lineno - 1 : one.end_lineno]
    ]
    return "```{code-block} python\n" + "\n".join([f"class {cls.__name__}:", *fields]) + "\n```"


def _split_arguments(arguments: ast.arguments) -> list[str]:
    """The arguments of a signature, each as text, with the * before those that need their names."""
    parts, depth = [""], 0
    for character in ast.unparse(arguments):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [re.sub(r"(: .*?)(?<!=)=(?!=)", r"\1 = ", part.strip()) for part in parts if part.strip()]


def _docstring(item: Any, language: str) -> list[str]:
    """The first paragraph as text, and in English the others as they are written, with their columns."""
    first, _, others = (inspect.getdoc(item) or "").partition("\n\n")
    parts = [translate(first, "api", language)] if first else []
    return [*parts, f"```text\n{others}\n```"] if others and language == "en" else parts


def _members(cls: type, language: str) -> Iterator[str]:
    """The public methods and properties that have a docstring."""
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = [] if isinstance(member, property) else [_signature(name, function)]
        yield "\n\n".join([f"### `{cls.__name__}.{name}`", *shown, *_docstring(function, language)])
