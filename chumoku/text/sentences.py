"""Splitting a text into sentences, and joining their translations.

    Japanese    ends at 。！？ with the closing brackets after them, but not inside 「」 and 『』:
                彼は「はい。」と言った。 is one sentence
    others      ends at . ! ? before a space, but not after an abbreviation (Dr. Sato, J. Smith, e.g. this), not after
                the number of a list item, and not before a lowercase letter
    both        at every line break

The sentences and the spaces after them, joined, give exactly the original text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

OPENING, CLOSING = "「『（(“【［", "」』）)”】］"
# Marks that may end a sentence, with brackets and quotation marks that close after them; or line breaks.
END = re.compile(rf"""(?P<marks>[。！？!?．.…]+)(?P<closing>[{CLOSING}’\]]*"?)|\n\s*""")
BRACKET, SPACE = re.compile(f"[{OPENING}{CLOSING}]"), re.compile(r"\s*")
ABBREVIATION = re.compile(
    r"""[("'“‘[]*([a-hj-z]|mrs?|ms|drs?|prof|st|[sj]r|vs|vol|figs?|inc|ltd|co|corp|gen|col|capt|sgt|rev|hon|gov|sen|rep|mt"""
    r"|e\.g|i\.e|cf|al|approx|dept|est|eds?|pp|u\.s|u\.k|u\.n|a\.m|p\.m|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)",
    re.IGNORECASE,
)
EAST_ASIAN = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
LONGEST_WORD = 32
HIRAGANA = re.compile(r"[\u3040-\u309f]")


class Sentence(NamedTuple):
    text: str
    space: str  # after it: spaces and line breaks


def split_sentences(text: str) -> list[Sentence]:
    """The sentences of a text, each with the space after it; spaces before the first are a sentence without text."""
    start = _skip_spaces(text, 0)
    sentences = [Sentence("", text[:start])] if start else []
    depth, quotes, seen = 0, 0, start  # open brackets and quotation marks of this sentence before `seen`
    for match in END.finditer(text, start):
        if match.start() < start:  # a line break that was the space after a sentence
            continue
        depth += _count_brackets(text[seen : match.start()])
        quotes += text.count('"', seen, match.start())
        seen, stop = match.start(), match.start()
        if match["marks"] is not None:  # a quotation mark that opens belongs to the next sentence
            stop = match.end() - (match["closing"].endswith('"') and quotes % 2 == 0)
        if match["marks"] is None or _ends_sentence(text, start, stop, depth, match):
            sentence, rest = text[start:stop].rstrip(), _skip_spaces(text, stop)
            sentences.append(Sentence(sentence, text[start + len(sentence) : rest]))
            start, seen, depth, quotes = rest, rest, 0, 0
    if start < len(text):
        last = text[start:].rstrip()
        sentences.append(Sentence(last, text[start + len(last) :]))
    return sentences


def join_sentences(texts: Sequence[str], spaces: Sequence[str]) -> str:
    """Translated sentences as one text. Line breaks stay; otherwise a space, or nothing next to Japanese or Chinese."""
    joined = ""
    for number, (text, space) in enumerate(zip(texts, spaces, strict=True)):
        if text and joined and not joined[-1].isspace():
            joined += "" if EAST_ASIAN.match(joined[-1]) or EAST_ASIAN.match(text) else " "
        joined += text
        if "\n" in space or (number == 0 and not text):  # spaces before the first sentence
            joined += space
    return joined


def _ends_sentence(text: str, start: int, stop: int, depth: int, match: re.Match[str]) -> bool:
    """Whether the sentence from `start` to `stop` ends with these marks, which `depth` open brackets surround."""
    marks, after, before = match["marks"], text[stop : stop + 1], text[match.start() - 1 : match.start()]
    place = _skip_spaces(text, stop)
    follows = text[place : place + 1]
    if any(mark in "。！？" for mark in marks) or (marks[-1] in "!?．" and EAST_ASIAN.match(before)):
        depth_after = depth + _count_brackets(match["closing"])
        if depth_after > 0 or after in (*"。！？!?、，",) or (marks == "．" and after.isdigit()):
            return False
        # 「はい。」と言った continues after its quotation.
        return depth <= 0 or not HIRAGANA.match(follows)
    if after and not after.isspace():
        return False
    if marks == "." and follows:
        word = _last_word(text, start, match.start())
        is_list_number = word.isdigit() and match.start() - start == len(word)
        if ABBREVIATION.fullmatch(word) or is_list_number:
            return False
        if word.lower() in ("no", "nos") and follows.isdigit():
            return False
    return not follows.islower()


def _skip_spaces(text: str, start: int) -> int:
    found = SPACE.match(text, start)
    return found.end() if found else start


def _last_word(text: str, start: int, stop: int) -> str:
    return (text[max(start, stop - LONGEST_WORD) : stop].split() or [""])[-1]


def _count_brackets(text: str) -> int:
    """Opening minus closing brackets."""
    return sum(1 if mark in OPENING else -1 for mark in BRACKET.findall(text))
