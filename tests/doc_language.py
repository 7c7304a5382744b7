"""Which sentences of a page are in the wrong language, and brackets of the wrong width; code and names aside.

An English sentence is four Latin words in a row; a Japanese one has 。 or twelve kana and kanji in a row.
"""

from __future__ import annotations

import re

JAPANESE = r"\u3040-\u30ff\u3400-\u9fff々"
_FENCE = re.compile(r"^(`{3,}).*?^\1$", flags=re.DOTALL | re.MULTILINE)
_ASIDE = re.compile(
    r"\$\$.*?\$\$|\$[^$\n]*\$|`[^`\n]*`|<!--.*?-->|\]\([^)\n]*\)|<[^>\n]+>|https?://\S+", flags=re.DOTALL
)
_ENGLISH = re.compile(r"[A-Za-z][\w'’-]*(?:[ ,;:]+[A-Za-z][\w'’-]*){3,}")
_JAPANESE = re.compile(rf"[{JAPANESE}、。]{{12,}}|[{JAPANESE}]。")
_NARROW = re.compile(rf"[{JAPANESE}、。] ?\(|\) ?[{JAPANESE}]|\([{JAPANESE}]|[{JAPANESE}]\)")
_WIDE = re.compile(r"[（），。：；]")


def prose(markdown: str) -> str:
    """The text of a page without code, comments and addresses."""
    return _ASIDE.sub(" ` ", _FENCE.sub("", markdown))


def wrong_language(markdown: str, language: str) -> list[str]:
    """Sentences of the other language."""
    pattern = _ENGLISH if language == "ja" else _JAPANESE
    text = (
        re.sub("「[^「」\n]*」", "「」", prose(markdown)) if language == "ja" else prose(markdown)
    )  # quotes, as of a model
    return [found.group() for line in text.splitlines() for found in pattern.finditer(line)]


def wrong_brackets(markdown: str, language: str) -> list[str]:
    """Half-width brackets in Japanese text, and full-width punctuation in English text."""
    pattern = _NARROW if language == "ja" else _WIDE
    return [line for line in prose(markdown).splitlines() if pattern.search(line)]


def wrong_bold(markdown: str) -> list[str]:
    """Bold text whose ** Markdown does not read as such: a bracket or a comma inside it, next to a letter outside.

    In Japanese there is no space between them: **注意（attention）**は is not closed; **注意**（attention）は is.
    """
    wrong = []
    for paragraph in re.split(r"\n\s*\n", prose(markdown)):
        for number, mark in enumerate(re.finditer(r"\*\*", paragraph)):
            before, after = paragraph[: mark.start()][-1:], paragraph[mark.end() :][:1]
            inner, outer = (after, before) if number % 2 == 0 else (before, after)
            if not inner.isalnum() and outer.isalnum():
                wrong.append(paragraph[max(0, mark.start() - 20) : mark.end() + 10])
    return wrong
