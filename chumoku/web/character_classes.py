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
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, normalizers, pre_tokenizers

Ranges = tuple[int, ...]

# Planes 4 to 16 are empty or private, but for tags at the start of plane 14. The others are probed completely; a code
# point that is not probed is like the one before it that is.
_HIGH = [(plane << 16) + place for plane in range(4, 17) for place in (0, 0xFFFE, 0xFFFF)]
CODES = np.array(sorted({*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1001), *_HIGH}))
TEXT = "".join(map(chr, CODES.tolist()))
BETWEEN = "\n0\n"  # has no effect on the characters next to it
Flags = npt.NDArray[np.bool_]


def to_ranges(flags: Flags | Iterable[bool]) -> Ranges:
    """The ranges of the code points in `CODES` whose flag is true."""
    members = flags if isinstance(flags, np.ndarray) else np.fromiter(flags, bool, len(CODES))
    edges = np.flatnonzero(np.diff(members, prepend=False, append=False))  # a start, a stop, a start …
    return tuple(np.diff(np.append(CODES, 0x110000)[edges], prepend=0).tolist())


def neither(*sets: Ranges) -> Ranges:
    """The characters that are in none of the sets."""
    inside = [np.searchsorted(np.cumsum(one), CODES, side="right") % 2 == 1 for one in sets]
    return to_ranges(~np.logical_or.reduce(inside))


@functools.cache
def matching(pattern: str) -> Ranges:
    """The characters that a regular expression of the library matches alone."""
    return to_ranges(~_contained(normalizers.Replace(Regex(pattern), "").normalize_str(TEXT)))


@functools.cache
def whitespace() -> Ranges:
    """Characters with Unicode's property White_Space: Rust's is_whitespace, and \\s in its regular expressions."""
    return to_ranges(~_kept_by(pre_tokenizers.WhitespaceSplit()))


@functools.cache
def punctuation() -> Ranges:
    """What the library takes for punctuation, including all symbols of ASCII."""
    return to_ranges(~_kept_by(pre_tokenizers.Punctuation("removed")))


@functools.cache
def numeric() -> Ranges:
    """What the library takes for digits."""
    pieces = pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str(TEXT)
    flags = np.zeros(len(CODES), bool)
    for _, (start, stop) in pieces[1::2]:  # pieces alternate, and the first begins with U+0000
        flags[start:stop] = True
    return to_ranges(flags)


@functools.cache
def word() -> Ranges:
    """\\w in Rust's regular expressions."""
    split = pre_tokenizers.Whitespace()
    flags = np.zeros(len(CODES), bool)
    for text, (start, stop) in split.pre_tokenize_str(TEXT):
        flags[start:stop] = len(split.pre_tokenize_str("a" + text[0])) == 1
    return to_ranges(flags)


@functools.cache
def invisible() -> Ranges:
    """Characters that a token's label shows as numbers: Python's categories C (control, unassigned …) and Z (space)."""
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
    for code, text in zip(CODES.tolist(), each(normalizers.Lowercase()), strict=True):
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
    flags = _combining() | [text != char for char, text in zip(TEXT, each(decompose), strict=True)]
    if form.endswith("C"):
        canonical = zip(TEXT, each(normalizers.NFD()), strict=True)
        flags = flags | _contained("".join(text for char, text in canonical if text != char))
    return to_ranges(flags)


@functools.cache
def _combining() -> Flags:
    """Whether each character may change places with other marks: whether its combining class is not 0."""
    flags = np.zeros(len(CODES), bool)
    for pattern in ("{}\u0334", "\u05b0{}"):  # marks of classes 1 and 10: one of them changes places with any other
        rows = [pattern.format(char) for char in TEXT]
        flags |= [row != text for row, text in zip(rows, each(normalizers.NFD(), rows), strict=True)]
    return flags


def each(normalizer: normalizers.Normalizer, texts: Iterable[str] = TEXT) -> list[str]:
    """The normalized form of each text; by default, of each character of Unicode."""
    return normalizer.normalize_str(BETWEEN.join(texts)).split(BETWEEN)


def _removed_by(normalizer: normalizers.Normalizer) -> Ranges:
    missing = ~_contained(normalizer.normalize_str(TEXT))  # removed, or replaced by another character
    missing[missing] = [not normalizer.normalize_str(chr(code)) for code in CODES[missing]]
    return to_ranges(missing)


def _contained(text: str) -> Flags:
    """Whether a text contains each character."""
    flags = np.zeros(0x110000, bool)
    flags[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
    contained: Flags = flags[CODES]
    return contained


def _kept_by(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Flags:
    """Whether a pre-tokenizer that removes characters keeps each one."""
    flags = np.zeros(len(CODES), bool)
    for _, (start, stop) in pre_tokenizer.pre_tokenize_str(TEXT):
        flags[start:stop] = True
    return flags
