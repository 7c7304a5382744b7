"""Messages of the command line in the user's language.

    template     "{0} has {1} layers."  =  "{0} の層の数は {1} です。"
    text         "gpt2 has 12 layers."  →  "gpt2 の層の数は 12 です。"

Messages are written in English where they arise, so Python callers always read English. The command line chooses the
language; where a message goes to the terminal, `translate` looks for the template that it was made from, and fills its
values into the translation. A value may be a message of its own, unless it stands in quotation marks.
ja/*.toml have the templates; a test collects them from the source and fails if one has no translation.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
DEEPEST = 4  # a value in a value in a value in a message
HEADINGS = "headings"  # the table of single words
FIGURES = "figures"  # the table of titles, axes and legends; the values are filled in after the translation
APART = {HEADINGS, FIGURES, "commands", "keys"}  # tables with texts that mean something else in a message
MOST_SENTENCES = 8  # of one template
_VALUE = r"\{(\d+)\}"  # compiled when used: English needs none of these
_KEY = r"(?s)(\S+: )(.+)"
_SENTENCE_END = r"(?<=[.?!]) (?=\S)"
_language = "en"


def language() -> str:
    """ "ja" or "en": CHUMOKU_LANG decides, else the locale."""
    names = ("CHUMOKU_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "en")
    return "ja" if chosen.lower().startswith("ja") else "en"


def use_language(name: str) -> None:
    """Choose the language of `translate`, "en" or "ja". The command line does; Python callers read English."""
    global _language
    _language = name


def translate(text: str) -> str:
    """Return a message in the language of the command line; a text that no template fits stays as it is."""
    return text if _language == "en" else to_japanese(text)


def heading(text: str) -> str:
    """Return the heading of a column or a title: a single word may mean something else in the middle of a message."""
    return text if _language == "en" else read_table(HEADINGS).get(text) or to_japanese(text)


def from_table(text: str, name: str) -> str:
    """Return a text by the table it belongs to, for a terminal: without the backticks of Markdown."""
    return text if _language == "en" else read_table(name).get(" ".join(text.split()), text).replace("`", "")


def choose(en: str, ja: str) -> str:
    """Return the text in the language of the command line, of one that is written in both."""
    return en if _language == "en" else ja


def to_japanese(text: str, depth: int = 0) -> str:
    """Return a message in Japanese: as one template, else by its parts; what no template fits stays as it is."""
    core = text.strip()
    found = _find_template(core)
    key = re.fullmatch(_KEY, core)
    if key is not None and _has_key(found, key) and _find_template(key[2]) is not None:
        filled = f"{key[1]}{to_japanese(key[2], depth)}"
    elif found is None or (depth and found[1] and _is_list(core)):
        return _translate_parts(text, depth)
    else:
        japanese, values = found
        names = [depth >= DEEPEST or f"'{value}'" in core or f'"{value}"' in core for value in values]
        filled = _fill(
            japanese, [v if name else to_japanese(v, depth + 1) for v, name in zip(values, names, strict=True)]
        )
    before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
    return f"{_space(before)}{filled}{_space(after)}"


def _has_key(found: tuple[str, list[str]] | None, key: re.Match[str]) -> bool:
    """Whether a text starts with a key, as in "model.width: …", that is not part of its template."""
    return found is None or "".join(found[1][:1]).startswith(key[1])


def _fill(japanese: str, values: list[str]) -> str:
    """Put the values into a translation. A space beside a value stays out between two Japanese letters."""
    filled, *rest = re.split(_VALUE, japanese)
    for number, fixed in zip(rest[::2], rest[1::2], strict=True):
        for part in (values[int(number)], fixed):
            if filled[-1:] == " " and min(filled[-2:-1], part[:1]) > "\u3000":
                filled = filled[:-1]
            filled += part[1:] if part[:1] == " " and min(filled[-1:], part[1:2]) > "\u3000" else part
    return filled


def _space(text: str) -> str:
    """The space around a message; a single one, which separates words and sentences in English, is left out."""
    return "" if text == " " else text


def _translate_parts(text: str, depth: int) -> str:
    """Translate lines, parts between dots, what follows "key: ", sentences, or the items of a list."""
    for separator in ("\n", " · "):
        if separator in text:
            return separator.join(to_japanese(part, depth) for part in text.split(separator))
    sentences = re.split(_SENTENCE_END, text)
    if len(sentences) > 1:
        return _translate_sentences(sentences, depth)
    key = re.fullmatch(_KEY, text)
    if key is not None:
        return f"{key[1]}{to_japanese(key[2], depth)}"
    if depth and _is_list(text):
        return "、".join(to_japanese(item, depth) for item in text.split(", "))
    names = re.fullmatch(r"([^\s/]+(?:, [^\s/]+)*) (or|and) ([^\s/]+)", text) if depth else None  # cpu, cuda or mps
    return text if names is None else f"{names[1]} {'または' if names[2] == 'or' else 'と'} {names[3]}"


def _is_list(text: str) -> bool:
    """Return True for items with a template each, as in "loss 3.1, perplexity 22"."""
    return ", " in text and all(_find_template(item.strip()) for item in text.split(", "))


def _translate_sentences(sentences: list[str], depth: int) -> str:
    """Translate sentences, as many as possible by one template each time."""
    done = ""
    for part in _group_sentences(sentences):
        done += f"{'' if not done or done.endswith(('。', '？', '）')) else ' '}{to_japanese(part, depth)}"
    return done


def _group_sentences(sentences: list[str]) -> list[str]:
    """Put as many sentences together as possible that have one template, but not all of them."""
    found, first = [], 0
    while first < len(sentences):
        last = min(first + MOST_SENTENCES, len(sentences) if first else len(sentences) - 1)
        while last > first + 1 and _find_template(" ".join(sentences[first:last])) is None:
            last -= 1
        found.append(" ".join(sentences[first:last]))
        first = last
    return found


class Template(NamedTuple):
    """An English message as its fixed parts, with a value between each two of them, and its translation."""

    fixed: tuple[str, ...]
    japanese: str
    longest: str  # of the fixed parts: a text without it is refused at once

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
        return None if any(part in value for part in self.excluded for value in values) else values

    def cuts_sentences(self, values: list[str]) -> bool:
        """Return True if a value of several sentences does not begin with a whole one, or does not end with one."""
        for before, value in zip(self.fixed, values, strict=False):
            whole = value.endswith((".", "?", "!")) and (not before or before.endswith((": ", ". ", ") ")))
            if not whole and re.search(_SENTENCE_END, value):
                return True
        return False

    @property
    def excluded(self) -> list[str]:
        """Return what no value contains: separators that the template does not have, a space in "{0} files"."""
        text = "".join(self.fixed)
        one_word = not self.fixed[0] and len(text.split()) < 2
        return [part for part in ("\n", " · ") if part not in text] + ([" "] if one_word else [])


@functools.lru_cache(4096)
def _find_template(text: str) -> tuple[str, list[str]] | None:
    """Return the translation and the values of the template that fits the text with the most fixed characters."""
    exact, templates = read_templates()
    if text in exact:
        return exact[text], []
    doubtful = None  # fits only if a value has a part of a sentence and another sentence
    for template in [template for template in templates if template.longest in text]:
        values = template.values_in(text)
        if values is not None and all(len(value) < len(text) for value in values):
            if not template.cuts_sentences(values):
                return template.japanese, values
            doubtful = doubtful or (template.japanese, values)
    sentences = re.split(_SENTENCE_END, text)
    return None if doubtful is None or all(map(_find_template, _group_sentences(sentences))) else doubtful


@functools.cache
def read_table(name: str) -> dict[str, str]:
    """Read one table of ja/: English → Japanese."""
    import tomllib

    found = tomllib.loads((FOLDER / "ja" / f"{name}.toml").read_text(encoding="utf-8"))
    return {english.strip(): japanese.strip() for english, japanese in found.items()}


@functools.cache
def read_templates() -> tuple[dict[str, str], list[Template]]:
    """Read the messages without values, and the templates, those with the most fixed characters first."""
    messages: dict[str, str] = {}
    for path in sorted((FOLDER / "ja").glob("*.toml")):
        if path.stem not in APART:
            messages |= read_table(path.stem)
    exact = {english: japanese for english, japanese in messages.items() if not re.search(_VALUE, english)}
    templates = []
    for english, japanese in messages.items():
        fixed = tuple(re.split(_VALUE, english)[::2])  # the split gives text, number, text, number, …, text
        if len(fixed) > 1:
            templates.append(Template(fixed, japanese, max(fixed, key=len)))
    return exact, sorted(templates, key=lambda template: -sum(map(len, template.fixed)))
