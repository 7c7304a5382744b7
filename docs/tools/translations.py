"""Sentences of the code in Japanese: docs/ja/translations/*.toml have each English sentence with its translation.

Those of commands and of keys are in chumoku/messages/ja/, because the command line shows them, too. Because the English
sentence is the key, a sentence that changes in the code has no translation until someone writes it.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

from quote import ROOT, DocsError

FOLDER = ROOT / "docs" / "ja" / "translations"
SHOWN = ROOT / "chumoku" / "messages" / "ja"  # by the command line


@functools.cache
def read_translations(part: str) -> dict[str, str]:
    """English sentence → Japanese sentence, of one part of the reference."""
    return tomllib.loads(find_table(part).read_text(encoding="utf-8"))


def find_table(part: str) -> Path:
    own = FOLDER / f"{part}.toml"
    return own if own.is_file() else SHOWN / own.name


def translate(text: str, part: str, language: str) -> str:
    """The text in a language. `part` is the file of translations it belongs to."""
    text = " ".join(text.split())
    if language == "en" or not text:
        return escape(text)
    if text not in read_translations(part):
        raise DocsError(f'{find_table(part)} has no translation of "{text}".')
    return escape(read_translations(part)[text])


def escape(text: str) -> str:
    """The text with backslashes before what Markdown would read as its own, outside of `code`."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"([*<\[\]|])", r"\\\1", part) for i, part in enumerate(parts))
