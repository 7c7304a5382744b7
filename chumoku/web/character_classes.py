"""Sets of characters as the `tokenizers` library sees them, for tokenizers in JavaScript.

    matching(r"\\p{L}")      the characters that a pattern of one character matches
    active("NFKC")          the characters that a normal form changes, reorders or composes; all others are boundaries

JavaScript's \\p{L}, toLowerCase and normalize follow the browser's version of Unicode, and each part of the library has
a version of its own. So the library is asked about the characters, and the page gets its answers as ranges.

A set is a list of numbers: distance from the end of the range before, length of the range, and so on.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable

from tokenizers import Regex, normalizers, pre_tokenizers

Ranges = tuple[int, ...]

# Planes 4 to 16 are empty or private, but for tags at the start of plane 14. The others are probed completely; a code
# point that is not probed is like the one before it that is.
_HIGH = [(plane << 16) + place for plane in range(4, 17) for place in (0, 0xFFFE, 0xFFFF)]
CODES = sorted({*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1001), *_HIGH})
TEXT = "".join(map(chr, CODES))
BETWEEN = "\n0\n"  # has no effect on the characters next to it


def to_ranges(members: Iterable[bool]) -> Ranges:
    """The ranges of the code points in `CODES` for which `members` is true."""
    numbers: list[int] = []
    end = 0
    edges = [*CODES, 0x110000]
    for is_member, group in itertools.groupby(zip(members, itertools.pairwise(edges), strict=True), key=lambda x: x[0]):
        if is_member:
            places = [place for _, place in group]
            start, stop = places[0][0], places[-1][1]
            numbers += [start - end, stop - start]
            end = stop
    return tuple(numbers)


def neither(*sets: Ranges) -> Ranges:
    """The characters that are in none of the sets."""
    known = {char for one in sets for char in _characters(one)}
    return to_ranges(char not in known for char in TEXT)


@functools.cache
def matching(pattern: str) -> Ranges:
    """The characters that a regular expression of the library matches alone."""
    others = set(normalizers.Replace(Regex(pattern), "").normalize_str(TEXT))
    return to_ranges(char not in others for char in TEXT)


@functools.cache
def whitespace() -> Ranges:
    """Characters with Unicode's property White_Space: Rust's is_whitespace, and \\s in its regular expressions."""
    return to_ranges(not kept for kept in _kept_by(pre_tokenizers.WhitespaceSplit()))


@functools.cache
def punctuation() -> Ranges:
    """What the library takes for punctuation, including all symbols of ASCII."""
    return to_ranges(not kept for kept in _kept_by(pre_tokenizers.Punctuation("removed")))


@functools.cache
def numeric() -> Ranges:
    """What the library takes for digits."""
    pieces = pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str(TEXT)
    flags = [False] * len(CODES)
    for _, (start, stop) in pieces[1::2]:  # pieces alternate, and the first begins with U+0000
        flags[start:stop] = [True] * (stop - start)
    return to_ranges(flags)


@functools.cache
def word() -> Ranges:
    """\\w in Rust's regular expressions."""
    split = pre_tokenizers.Whitespace()
    flags = [False] * len(CODES)
    for text, (start, stop) in split.pre_tokenize_str(TEXT):
        flags[start:stop] = [len(split.pre_tokenize_str("a" + text[0])) == 1] * (stop - start)
    return to_ranges(flags)


@functools.cache
def invisible() -> Ranges:
    """Characters that labels of tokens show as numbers: Python's categories C (control, unassigned …) and Z (spaces)."""
    return to_ranges(unicodedata.category(char)[0] in "CZ" for char in TEXT)


@functools.cache
def combining_marks() -> Ranges:
    """What StripAccents removes."""
    return _removed_by(normalizers.StripAccents())


@functools.cache
def nonspacing_marks() -> Ranges:
    """What BERT's normalizer removes as an accent."""
    bert = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    return to_ranges(not text for text in each(bert))


@functools.cache
def controls() -> Ranges:
    """What BERT's normalizer removes while it cleans a text: control characters, U+0000 and U+FFFD."""
    return _removed_by(
        normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    )


@functools.cache
def lowercase() -> tuple[Ranges, tuple[str, ...]]:
    """The lower-case forms that differ from their character.

    Runs as start, count, step, distance to the lower case; and those of several characters as pairs in one list.
    """
    runs: list[list[int]] = []
    longer: list[str] = []
    for code, text in zip(CODES, each(normalizers.Lowercase()), strict=True):
        if len(text) > 1:
            longer += [chr(code), text]
        elif text and ord(text) != code:
            distance = ord(text) - code
            last = runs[-1] if runs else None
            step = code - (last[0] + (last[1] - 1) * last[2]) if last else 0
            if last and last[3] == distance and step in ((1, 2) if last[1] == 1 else (last[2],)):
                last[1:3] = [last[1] + 1, step]
            else:
                runs.append([code, 1, 1, distance])
    return tuple(itertools.chain(*runs)), tuple(longer)


@functools.cache
def active(form: str) -> Ranges:
    """The characters that a normal form (NFC, NFD, NFKC, NFKD) changes or reorders, or that compose with others.

    Between any other two characters a text can be cut before it is normalized. Unicode promises that the normal forms
    of characters never change once they exist, so on these the browser and the library agree.
    """
    decompose = normalizers.NFKD() if "K" in form else normalizers.NFD()
    changed = [text != char for char, text in zip(TEXT, each(decompose), strict=True)]
    marks = [
        text != pattern.format(char)
        for pattern in ("{}\u0334", "\u05b0{}")  # combining classes 1 and 10: one of them reorders any other mark
        for char, text in zip(TEXT, each(normalizers.NFD(), pattern.format), strict=True)
    ]
    parts: set[str] = set()
    if form.endswith("C"):
        canonical = zip(TEXT, each(normalizers.NFD()), strict=True)
        parts = {part for char, text in canonical if text != char for part in text}
    size = len(CODES)
    flags = zip(changed, marks[:size], marks[size:], (char in parts for char in TEXT), strict=True)
    return to_ranges(any(row) for row in flags)


def each(normalizer: normalizers.Normalizer, write: Callable[[str], str] = str) -> list[str]:
    """The normalized form of each character, or of the text that `write` makes of it."""
    return normalizer.normalize_str(BETWEEN.join(map(write, TEXT))).split(BETWEEN)


def _removed_by(normalizer: normalizers.Normalizer) -> Ranges:
    left = set(normalizer.normalize_str(TEXT))
    return to_ranges(char not in left and not normalizer.normalize_str(char) for char in TEXT)


def _kept_by(pre_tokenizer: pre_tokenizers.PreTokenizer) -> list[bool]:
    """Whether a pre-tokenizer that removes characters keeps each one."""
    flags = [False] * len(CODES)
    for _, (start, stop) in pre_tokenizer.pre_tokenize_str(TEXT):
        flags[start:stop] = [True] * (stop - start)
    return flags


def _characters(ranges: Ranges) -> Iterable[str]:
    end = 0
    for gap, length in zip(ranges[::2], ranges[1::2], strict=True):
        yield from map(chr, range(end + gap, end + gap + length))
        end += gap + length
