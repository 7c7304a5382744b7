"""The parts of the documentation that are made from the code: recipe keys, commands, addresses, errors, API …"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import typer
from address_reference import generate_addresses
from api_reference import generate_api
from quote import ROOT
from translations import translate

from chumoku import errors
from chumoku.cli import app
from chumoku.cli.shared import KNOWN, OR_MODEL
from chumoku.models.config import ModelConfig
from chumoku.training.recipe import OPTIONAL_TABLES, TABLES
from chumoku.training.recipe_keys import REQUIRED, UNSET, RecipeKey, list_keys
from chumoku.weights.supported_formats import FORMATS, supported_formats

WORDS = {
    "en": {"key": "key", "default": "default", "meaning": "meaning", "comma": ", ", REQUIRED: REQUIRED},
    "ja": {"key": "キー", "default": "既定値", "meaning": "意味", "comma": "、", REQUIRED: "必須"},
}
ALIAS_WORDS = {"en": ["key here", "names elsewhere"], "ja": ["ここでのキー", "ほかのライブラリでの名前"]}
LAYER_WORDS = {"en": ["rank", "packages and modules"], "ja": ["段", "パッケージとモジュール"]}
FAMILY_WORDS = {"en": "family", "ja": "ファミリー"}
OPTIONAL = {"en": " (optional)", "ja": "（なくてもよい）"}
COMMAND_WORDS = {
    "en": {"option": "argument or option", "error": "error", "exit": "exit code", "also": "also a"},
    "ja": {"option": "引数・オプション", "error": "エラー", "exit": "終了コード", "also": "標準の例外"},
}


def make_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def generate_keys(language: str) -> str:
    """A section for each table of a recipe, with a row for each key."""
    tables: dict[str, list[RecipeKey]] = {}
    for key in list_keys():
        tables.setdefault(key.name.partition(".")[0], []).append(key)
    words = WORDS[language]
    sections = []
    for name, keys in tables.items():
        rows = [_key_row(key, language) for key in keys]
        optional = OPTIONAL[language] if name in OPTIONAL_TABLES else ""
        head = [words["key"], words["meaning"]]
        sections.append(f"## `[{name}]`{optional}\n\n{make_table(head, rows)}")
    return "\n\n".join(sections)


def _key_row(key: RecipeKey, language: str) -> list[str]:
    """The key, and below its meaning the type and the default: two columns fit on a phone."""
    words = WORDS[language]
    default = words.get(key.default, key.default) if key.default in (REQUIRED, UNSET) else code(key.default)
    meaning = translate(key.meaning, "keys", language)
    return [code(key.name), f"{meaning}<br>{code(key.type)}{words['comma']}{words['default']} {default}"]


def generate_commands(language: str) -> str:
    """A section for each command, with a row for each argument and option."""
    return "\n\n".join(_command_sections(typer.main.get_command(app), "chumoku", language))


def _command_sections(command: Any, name: str, language: str) -> Iterable[str]:
    children = getattr(command, "commands", {})
    if name != "chumoku":
        paragraphs = [_translate_help(part, language) for part in (command.help or "").split("\n\n")]
        rows = [_option_row(one, language) for one in command.params if getattr(one, "help", None)]
        head = [COMMAND_WORDS[language]["option"], WORDS[language]["meaning"]]
        table = [make_table(head, rows)] if rows else []
        yield "\n\n".join([f"## `{name}`", *paragraphs, *table])
    for child, one in children.items():
        yield from _command_sections(one, f"{name} {child}", language)


def _translate_help(text: str, language: str) -> str:
    """A help text; the list of what a model may be is translated once, as {model}."""
    joined = " ".join(text.split())
    if joined.startswith("chumoku "):
        return f"```text\n{joined}\n```"
    known = translate(KNOWN, "commands", language)
    return translate(joined.replace(KNOWN, "{model}"), "commands", language).replace("{model}", known)


def _option_row(parameter: Any, language: str) -> list[str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.metavar or parameter.name.upper()]
    shown = parameter.show_default if isinstance(getattr(parameter, "show_default", None), str) else parameter.default
    default = "" if shown in (None, False, "", ()) or callable(shown) or isinstance(shown, list) else str(shown)
    number, either, _ = default.partition(f" {OR_MODEL}")
    default = code(number) + (f" {translate(OR_MODEL, 'commands', language)}" if either else "")
    shown_default = f"<br>{WORDS[language]['default']} {default}" if default else ""
    return [", ".join(map(code, names)), _translate_help(parameter.help, language) + shown_default]


def generate_errors(language: str) -> str:
    """A row for each error class, in the order of errors.py."""
    words, rows = COMMAND_WORDS[language], []
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, errors.ChumokuError):
            others = [one.__name__ for one in cls.__mro__ if one.__module__ == "builtins"]
            also = ", ".join(code(one) for one in others if one not in ("Exception", "BaseException", "object"))
            meaning = translate(inspect.getdoc(cls) or "", "errors", language)
            details = f"{words['exit']} {cls.exit_code}" + (
                f"{WORDS[language]['comma']}{words['also']} {also}" if also else ""
            )
            rows.append([code(name), f"{meaning}<br>{details}"])
    return make_table([words["error"], WORDS[language]["meaning"]], rows)


def generate_aliases(language: str) -> str:
    """Names of other libraries, and the keys that they have here: those that an error message suggests."""
    rows: dict[str, list[str]] = {}
    for table, cls in {"model": ModelConfig, **TABLES}.items():
        for theirs, ours in cls.ALIASES.items():
            rows.setdefault(f"{table}.{ours}", []).append(code(theirs))
    return make_table(ALIAS_WORDS[language], ([code(ours), ", ".join(theirs)] for ours, theirs in rows.items()))


def generate_layers(language: str) -> str:
    """A row for each rank of packages, the highest first, from the test that checks the imports."""
    tree = ast.parse((ROOT / "tests" / "test_layout.py").read_text(encoding="utf-8"))
    ranks = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RANKS"
    )
    rows = [[str(rank), ", ".join(map(code, sorted(names)))] for rank, names in enumerate(ranks, start=1)]
    return make_table(LAYER_WORDS[language], reversed(rows))


def generate_families(language: str) -> str:
    """A row for each model family, with the formats that it is opened from and written to."""
    rows = [[title, *("✓" if cells[form] else "–" for form in FORMATS)] for title, cells in supported_formats().items()]
    return make_table([FAMILY_WORDS[language], *FORMATS], rows)


GENERATORS: dict[str, Callable[[str], str]] = {
    "keys": generate_keys,
    "commands": generate_commands,
    "addresses": generate_addresses,
    "errors": generate_errors,
    "api": generate_api,
    "layers": generate_layers,
    "aliases": generate_aliases,
    "families": generate_families,
}
