"""Japanese search without a dictionary: a run of kanji and kana is indexed as all pairs of neighboring characters.

    注意の重み → 注意 意の の重 重み, and every kanji alone: 注 意 重

A query is split into the same pairs in the browser and every pair must occur, so 重み finds 注意の重み, whatever
a segmenter would make of either. Other scripts are split into words, as Sphinx does.
"""

from __future__ import annotations

import re

from sphinx.search import SearchLanguage

KANJI = r"\u3400-\u9fff々"
KANA = r"\u3040-\u30ff"
RUN = rf"[{KANJI}{KANA}]+"
_WORD = re.compile(rf"({RUN})|[^\W{KANJI}{KANA}]+")
_KANJI = re.compile(rf"[{KANJI}]")


class SearchJapanesePairs(SearchLanguage):
    """Splits Japanese text into pairs of characters, in the index and, with the same rule in JavaScript, in a query."""

    lang = "ja"
    language_name = "Japanese"
    js_splitter_code = rf"""
var splitQuery = (query) => (query.match(/{RUN}|(?:(?![{KANJI}{KANA}])[\p{{Letter}}\p{{Number}}_])+/gu) || [])
  .flatMap((word) => /^{RUN}$/u.test(word) && word.length > 1
    ? Array.from({{ length: word.length - 1 }}, (_, i) => word.slice(i, i + 2)) : [word]);
"""

    def split(self, input: str) -> list[str]:
        words: list[str] = []
        for found in _WORD.finditer(input):
            word = found.group()
            if found.group(1) is None:
                words.append(word)
            else:
                words += [word[i : i + 2] for i in range(len(word) - 1)] or [word]
                words += _KANJI.findall(word)
        return words

    def word_filter(self, word: str) -> bool:
        return not word.isdigit() and (len(word) > 1 or bool(_KANJI.match(word)))
