"""The messages in the source of chumoku, as templates: a value becomes {0}, {1}, … in the order of the source.

    raise UsageError(f"{path} has {len(rows)} rows.")   →   "{0} has {1} rows."
    pluralize(number, "file")                           →   "{0} file" and "{0} files"

A message is a text of several words in a raise statement, in Problem(…) or in a call that prints, or a text anywhere
that reads like a sentence. Docstrings, texts in both languages (Words) and the folders in ELSEWHERE are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ELSEWHERE = ("lab/", "data/grammar/", "messages/")  # in both languages already; sentences of data
IN_BOTH_LANGUAGES = {"Words", "Field"}
SPEAKING = {"Problem", "print", "say", "translate", "secho", "echo"}
WORDS = re.compile(r"[A-Za-z]{2,}'?[,:;]? [A-Za-z{(]")
SENTENCE = re.compile(r"^[A-Z{\"(].*\s.*[a-z}\")`][.?!:…]$", re.S)


def collect_messages() -> dict[str, str]:
    """Template → the file it is in, of all messages in the source."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "chumoku").rglob("*.py")):
        name = path.relative_to(ROOT / "chumoku").as_posix()
        if not name.startswith(ELSEWHERE):
            for template in messages_of(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(template, name)
    return found


def messages_of(tree: ast.AST, speaking: bool = False) -> Iterator[str]:
    """Yield the templates of a syntax tree. `speaking` tells that its texts are shown to the user."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return  # a docstring
    if isinstance(tree, ast.Call):
        name = tree.func.attr if isinstance(tree.func, ast.Attribute) else getattr(tree.func, "id", "")
        if name in IN_BOTH_LANGUAGES:
            return
        speaking = speaking or name in SPEAKING
        if name == "pluralize":
            yield from _plurals(tree)
    speaking = speaking or isinstance(tree, ast.Raise)
    text, values = _template(tree)
    if text is not None:
        if WORDS.search(text) if speaking else SENTENCE.search(text) and WORDS.search(text):
            yield text
        for value in values:
            yield from messages_of(value, speaking)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from messages_of(child, speaking)


def _plurals(call: ast.Call) -> Iterator[str]:
    nouns = [node.value for node in call.args[1:] if isinstance(node, ast.Constant)]
    nouns += [node.value.value for node in call.keywords if isinstance(node.value, ast.Constant)]
    for noun in (*nouns, f"{nouns[0]}s") if len(nouns) == 1 else nouns:
        yield f"{{0}} {noun}"


def _template(tree: ast.AST, start: int = 0) -> tuple[str | None, list[ast.expr]]:
    """Return a text with numbered values, and the values; None if the tree is not a text."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return tree.value, []
    if isinstance(tree, ast.JoinedStr):
        text, values = "", []
        for part in tree.values:
            if isinstance(part, ast.FormattedValue):
                text += f"{{{start + len(values)}}}"
                values.append(part.value)
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        return text, values
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        left, values = _template(tree.left, start)
        right, more = _template(tree.right, start + (len(values) if left is not None else 1))
        if left is None and right is None:
            return None, []
        if left is None and isinstance(tree.left, ast.expr):
            left, values = f"{{{start}}}", [tree.left]
        if right is None:
            right, more = f"{{{start + len(values)}}}", [tree.right]
        return f"{left}{right}", [*values, *more]
    return None, []
