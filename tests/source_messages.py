"""The messages in the source of chumoku, as templates: a value becomes {0}, {1}, … in the order of the source.

    raise UsageError(f"{path} has {len(rows)} rows.")   →   "{0} has {1} rows."
    pluralize(number, "file")                           →   "{0} file" and "{0} files"
    progress("reading", done, unit="pairs")             →   "Reading: {0}" and "{0} pairs"

A message is a text of several words. Left out are docstrings, texts in both languages (Words), help texts (they are in
commands.toml, which other tests hold), the files in ELSEWHERE, and texts that are code or data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ELSEWHERE = (  # in both languages already, data, figures and pages, answers of the server to programs
    "messages/",
    "nn/html_view.py",
    "training/example_sentences.py",
    "training/next_step.py",
    "doctor/example_texts.py",
    "compare/page.py",
    "compare/picture.py",
    "model_diff/page.py",
    "model_diff/picture.py",
    "probe/attention_figures.py",
    "probe/bilingual.py",
    "probe/confusion_figure.py",
    "probe/figures.py",
    "probe/inline_modules.py",
    "probe/page.py",
    "probe/plot_style.py",
    "server/app.py",
    "server/assets.py",
    "server/checkpoints.py",
    "server/errors.py",
    "server/file_reader.py",
    "server/lab.py",
    "server/look/",
    "server/metrics.py",
    "server/openai/",
    "server/request_body.py",
    "server/runs.py",
    "server/security/connection.py",
    "server/security/keys.py",
    "server/security/login.py",
    "server/security/middleware.py",
    "server/state.py",
    "server/streaming.py",
    "server/translate.py",
    "server/worker.py",
    "web/checks.py",
    "web/page.py",
)
ERRORS_ONLY = ("lab/", "data/grammar/")  # other texts are in both languages, or data
NO_MESSAGES = {"Words", "label", "Field", "Argument", "Option", "Typer", "Literal", "compile", "_limit"}  # calls
NO_MESSAGE_NAMES = {
    "IGNORED",
    "KNOWN",
    "OR_MODEL",
    "PRECISION",
    "ADAPTER",
    "TYPES",
    "TARGETS",
    "EXAMPLES",
    "SAMPLE",
    "SILENCED",
}
NO_MESSAGE_FUNCTIONS = {"_card", "usage_example"}  # model cards, commands
DRAWN_CALLS = {
    "set",
    "plot",
    "set_xlabel",
    "set_ylabel",
    "set_title",
    "suptitle",
    "colorbar",
    "add_colorbar",
    "style_axis",
}
DRAWN_CALLS |= {"draw_attention_maps", "draw_confusion"}
DRAWN_ARGUMENTS = {"xlabel", "ylabel", "title", "label", "text"}
STEPS = {"progress", "track"}  # calls with a step and its unit
WORDS = re.compile(r"[A-Za-z]{2,}'?[,:;]? [A-Za-z{(]")
CODE = re.compile(
    r"^(# |llama-cli |python |from chumoku|base_model|library_name|--wrap|blob |<[!hou]|\.about |!document)"
    r"|os error|Invalid job id|Upload a model|^template text$|^own data$|which we compute|^the divisors of longrope"
    r"|^[a-z]{2}( [a-z]{2,3}){6}"
)
FEWEST = 5  # letters of a message: "{0} of {1}" alone would fit too many texts


def collect_messages() -> dict[str, str]:
    """Template → the file it is in, of all messages in the source."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "chumoku").rglob("*.py")):
        name = path.relative_to(ROOT / "chumoku").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        errors = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
        for part in errors if name.startswith(ERRORS_ONLY) else [] if name.startswith(ELSEWHERE) else [tree]:
            for template in messages_of(part):
                found.setdefault(template, name)
    return found


def string_constants(path: Path) -> set[str]:
    """The texts in a source file, with docstrings and the fixed parts of f-strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def collect_labels() -> tuple[set[str], list[str]]:
    """The texts that `label` translates in figures, and texts of axes, titles and legends that it does not translate.

    A text may be a value of a constant, as in label(TITLES[key]).
    """
    found: set[str] = set()
    untranslated: list[str] = []
    for path in sorted((ROOT / "chumoku").rglob("*.py")):
        name, source = path.relative_to(ROOT / "chumoku").as_posix(), path.read_text(encoding="utf-8")
        if ("plot_style" not in source and name != "probe/plot_style.py") or name.startswith("lab/"):
            continue
        tree = ast.parse(source)
        constants = {_name(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            if _name(call.func) == "label":
                found |= set(_texts(call.args[0], constants))
            elif _name(call.func) in DRAWN_CALLS:
                arguments = [*call.args, *(one.value for one in call.keywords if one.arg in DRAWN_ARGUMENTS)]
                texts = [text for argument in arguments for text in _texts(argument, {}, outside="label")]
                untranslated += [f"{name}: {text!r}" for text in texts if re.search("[A-Za-z]{3}", text)]
    return found, untranslated


def _texts(tree: ast.AST, constants: dict[str, ast.expr], outside: str = "") -> Iterator[str]:
    """Yield the texts of an expression: not keys, what a value is compared with, nor what is in a call of `outside`."""
    match tree:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) if name in constants:
            yield from _texts(constants[name], {}, outside)
        case ast.Dict(values=values):
            for value in values:
                yield from _texts(value, constants, outside)
        case ast.Call(func=func) if outside and _name(func) == outside:
            return
        case ast.Compare() | ast.Subscript(value=ast.Constant()):
            return
        case ast.Subscript(value=value):
            yield from _texts(value, constants, outside)
        case _:
            for child in ast.iter_child_nodes(tree):
                yield from _texts(child, constants, outside)


def messages_of(tree: ast.AST) -> Iterator[str]:
    """Yield the templates of a syntax tree."""
    if _has_none(tree):
        return
    if isinstance(tree, ast.Call):
        if _name(tree.func) in STEPS:
            yield from _steps(tree)
            return
        if _name(tree.func) == "pluralize":
            yield from _plurals(tree)
    text, values = _template(tree)
    if text is None:
        for child in ast.iter_child_nodes(tree):
            yield from messages_of(child)
        return
    letters = sum(character.isalpha() for character in text)
    if letters >= FEWEST and WORDS.search(text) and not CODE.search(text):
        yield text.strip()
    for value in values:
        yield from messages_of(value)


def _has_none(tree: ast.AST) -> bool:
    """Whether a syntax tree is a docstring, a type, or a text that the user does not see."""
    match tree:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=func):
            return _name(func) in NO_MESSAGES
        case ast.Subscript(value=value):
            return _name(value) in NO_MESSAGES
        case ast.Assign(targets=[target]):
            return _name(target) in NO_MESSAGE_NAMES
        case ast.FunctionDef(name=name):
            return name in NO_MESSAGE_FUNCTIONS
    return False


def _name(tree: ast.AST) -> str:
    return tree.attr if isinstance(tree, ast.Attribute) else getattr(tree, "id", "")


def _steps(call: ast.Call) -> Iterator[str]:
    """Yield the line of a step, and its unit after a number."""
    texts = [_template(node) for node in [*call.args, *(keyword.value for keyword in call.keywords)]]
    for text, values in texts[:3]:
        if text and (not values or WORDS.search(text)):
            yield f"{text[:1].upper()}{text[1:]}: {{{len(values)}}}"
            break
    unit = texts[-1][0]
    if unit and len(texts) > 1:
        yield f"{{0}} {unit}"


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
