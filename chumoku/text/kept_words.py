"""Words that a translation must contain unchanged: addresses, and words with characters that the tokenizer lacks.

    text           詳しくは https://example.com を見てください。
    model reads    詳しくは B2 を見てください。                       B2 stands for the address: models copy such names
    it writes      Please see B2 for details.
    result         Please see https://example.com for details.

A word with 𠮷, é or Д is kept if the tokenizer has no token for this letter. Ordinary kanji are not kept: a model
learns them from their bytes too, and writes frog for 蛙. Symbols at the end of a sentence, such as 😀, are cut off
before and put back afterwards. A word whose stand-in does not occur in the translation is appended in brackets, so that
nothing is lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

ADDRESS = re.compile(
    r"(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\[\]()-]{1,2000}"
    r"|[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,9}"
)
AFTER_ADDRESS = ".,;:!?)]"  # marks that belong to the sentence
HAN = r"[\u3005\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
WORD = re.compile(rf"{HAN}+|(?:(?!{HAN})[^\W\d_\u3040-\u30ff])+|[^\w\s]+|.", re.DOTALL)  # letters of one script
ASCII_WORD = re.compile("[A-Za-z0-9]")
LEARNED = re.compile(r"[\u0000-\u007f\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]")  # characters that are never kept
STAND_INS = tuple(f"{letter}{digit}" for digit in range(2, 7) for letter in "BKPRT")


class KeptWords(NamedTuple):
    """A sentence as the model reads it, and the words to put back."""

    text: str
    after: str = ""  # symbols after the sentence
    words: tuple[tuple[str, str], ...] = ()  # stand-in and word


def keep_words(text: str, is_unknown: Callable[[str], bool]) -> KeptWords:
    """Replace words to keep by stand-ins; `is_unknown` tells whether the tokenizer cannot write a character."""
    spans = [_trim_address(match) for match in ADDRESS.finditer(text)]
    unknown = {character for character in set(text) if not LEARNED.match(character) and is_unknown(character)}
    visible = {character for character in unknown if unicodedata.category(character) != "Cf"}  # not a soft hyphen
    if visible:
        spans += [_trim_symbols(match, unknown) for match in WORD.finditer(text) if not visible.isdisjoint(match[0])]
    if not spans:
        return KeptWords(text)
    spans = _merge(text, spans)
    after = ""
    if spans[-1][1] == len(text) and not any(map(str.isalnum, text[spans[-1][0] :])):
        start = len(text[: spans.pop()[0]].rstrip())
        text, after = text[:start], text[start:]
    read = unicodedata.normalize("NFKC", text).upper()  # a tokenizer may read Ｂ２ and b2 as B2
    free = (name for name in STAND_INS if name not in read)
    replaced, parts, end = [], [], 0
    for (start, stop), name in zip(spans, free, strict=False):  # a sentence with more is translated as it is from there
        replaced.append((name, text[start:stop]))
        parts += [text[end:start], name]
        end = stop
    return KeptWords("".join(parts) + text[end:], after, tuple(replaced))


def restore_words(translation: str, kept: KeptWords) -> str:
    """The translation with the kept words instead of their stand-ins."""
    missing = []
    for name, word in kept.words:
        found = re.compile(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])")
        if found.search(translation):
            translation = found.sub(lambda _, word=word: word, translation)  # type: ignore[misc]
        else:
            missing.append(word)
    return translation + "".join(f" ({word})" for word in missing) + kept.after


def _merge(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, extended over letters and digits next to them; those that touch are one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        while stop < len(text) and ASCII_WORD.match(text[stop]):
            stop += 1
        first = merged[-1][1] if merged else 0
        while start > first and ASCII_WORD.match(text[start - 1]):
            start -= 1
        if merged and start <= first:
            start, stop = merged[-1][0], max(first, stop)
            merged.pop()
        merged.append((start, stop))
    return merged


def _trim_symbols(match: re.Match[str], unknown: set[str]) -> tuple[int, int]:
    """The span of a word; of symbols only from the first unknown to the last, without the sentence's own marks."""
    places = [place for place, character in enumerate(match[0], match.start()) if character in unknown]
    return match.span() if match[0][0].isalnum() else (places[0], places[-1] + 1)


def _trim_address(match: re.Match[str]) -> tuple[int, int]:
    """The span of an address without the marks after it that belong to the sentence."""
    start, stop = match.span()
    address = match[0].rstrip(AFTER_ADDRESS)
    if "(" in address and match[0][len(address) :].startswith(")"):
        address += ")"
    return start, min(stop, start + len(address))
