"""Quotes of the package's source: a name → its code as it is now. A name that does not exist fails the build.

chumoku.nn.attention                 the module's docstring, where its formula is
chumoku.nn.attention.attend          a function, a class, or a constant
chumoku.nn.attention.Attention.forward
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class DocsError(Exception):
    """The documentation cannot be built; the message names what is missing."""


class Quote(NamedTuple):
    """Some lines of a source file."""

    file: str
    first: int
    last: int
    code: str


def quote(name: str) -> Quote:
    """The source of a module's docstring, or of an object in a module."""
    file, inside = _find_module(name)
    text = file.read_text(encoding="utf-8")
    tree: ast.AST = ast.parse(text)
    if not inside:
        return _quote_docstring(file, tree, name)
    for part in inside:
        tree = _find_part(tree, part, name)
    first = min([tree.lineno, *(one.lineno for one in getattr(tree, "decorator_list", ()))])  # type: ignore[attr-defined]
    last = tree.end_lineno  # type: ignore[attr-defined]
    code = textwrap.dedent("\n".join(text.splitlines()[first - 1 : last]))
    return Quote(file.relative_to(ROOT).as_posix(), first, last, code)


def _find_module(name: str) -> tuple[Path, list[str]]:
    """The file of the longest module in a dotted name, and the parts of the name after it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        stem = ROOT.joinpath(*parts[:length])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.is_file() and parts[0] == "chumoku":
                return file, parts[length:]
    raise DocsError(f"{name} is quoted, but there is no such module.")


def _find_part(tree: ast.AST, part: str, name: str) -> ast.AST:
    for node in getattr(tree, "body", ()):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if part in (getattr(node, "name", None), *names):
            return node
    raise DocsError(f"{name} is quoted, but {part} does not exist there.")


def _quote_docstring(file: Path, tree: ast.AST, name: str) -> Quote:
    docstring = ast.get_docstring(tree)  # type: ignore[arg-type]
    if docstring is None:
        raise DocsError(f"{name} is quoted, but has no docstring.")
    node = tree.body[0]  # type: ignore[attr-defined]
    return Quote(file.relative_to(ROOT).as_posix(), node.lineno, node.end_lineno, docstring)
