"""Messages of the command line in the user's language.

    template     "{0} has {1} layers."  =  "{0} の層の数は {1} です。"
    text         "gpt2 has 12 layers."  →  "gpt2 の層の数は 12 です。"

Messages are written in English where they arise, so Python callers always read English. The command line looks for the
template that a text was made from, and fills its values into the translation. A value may be a message of its own.
ja/*.toml have the templates; a test collects them from the source and fails if one has no translation.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
DEEPEST = 4  # a value in a value in a value in a message
_VALUE = re.compile(r"\{(\d+)\}")
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=\S)")


def language() -> str:
    """ "ja" or "en": CHUMOKU_LANG decides, else the locale."""
    names = ("CHUMOKU_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "en")
    return "ja" if chosen.lower().startswith("ja") else "en"


def translate(text: str) -> str:
    """Return a message of the command line in the user's language; a text that no template fits stays as it is."""
    return text if language() == "en" else to_japanese(text)


def to_japanese(text: str, depth: int = 0) -> str:
    """Return a message in Japanese: as one template, else line by line, else sentence by sentence."""
    found = _find_template(text)
    if found is not None:
        japanese, values = found
        inner = [to_japanese(value, depth + 1) if depth < DEEPEST else value for value in values]
        return _VALUE.sub(lambda match: inner[int(match[1])], japanese)
    if "\n" in text:
        return "\n".join(to_japanese(line, depth) for line in text.split("\n"))
    sentences = _SENTENCE_END.split(text)
    return "".join(to_japanese(sentence, depth) for sentence in sentences) if len(sentences) > 1 else text


class Template(NamedTuple):
    """An English message as its fixed parts, with a value between each two of them, and its translation."""

    fixed: tuple[str, ...]
    japanese: str

    def values_in(self, text: str) -> list[str] | None:
        """Return the values that make the text from this template, each as short as possible; None if none do."""
        first, *middle, last = self.fixed
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        values, at, end = [], len(first), len(text) - len(last)
        for part in middle:
            found = text.find(part, at, end)
            if found < 0:
                return None
            values.append(text[at:found])
            at = found + len(part)
        values.append(text[at:end])
        return values


def _find_template(text: str) -> tuple[str, list[str]] | None:
    """Return the translation and the values of the template that fits the text with the most fixed characters."""
    exact, templates = read_templates("ja")
    if text in exact:
        return exact[text], []
    for template in templates:
        values = template.values_in(text)
        if values is not None and all(len(value) < len(text) for value in values):
            return template.japanese, values
    return None


@functools.cache
def read_templates(name: str) -> tuple[dict[str, str], list[Template]]:
    """Read the messages without values, and the templates, those with the most fixed characters first."""
    messages: dict[str, str] = {}
    for path in sorted((FOLDER / name).glob("*.toml")):
        messages |= tomllib.loads(path.read_text(encoding="utf-8"))
    exact = {english: japanese for english, japanese in messages.items() if not _VALUE.search(english)}
    templates = []
    for english, japanese in messages.items():
        fixed = tuple(_VALUE.split(english)[::2])  # the split gives text, number, text, number, …, text
        if len(fixed) > 1:
            templates.append(Template(fixed, japanese))
    return exact, sorted(templates, key=lambda template: -sum(map(len, template.fixed)))
