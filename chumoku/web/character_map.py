"""SentencePiece's character maps for JavaScript: what they write for which characters, and where they look.

    ﬁ → fi    e + ´ → é    Ａ → A

The library cuts a text into what readers see as one character (a grapheme: a letter with its accents) and looks for the
shortest start of each that the map has. It does so only below six bytes; of others, every character is mapped alone.
Which characters join a grapheme is asked of the library, with a map of one entry.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from tokenizers import normalizers

from chumoku.errors import UsageError
from chumoku.web.character_classes import TEXT, Ranges, each, to_ranges

MAX_BYTES = 5  # of a grapheme that is looked up
MAX_ENTRIES = 1 << 16
IS_VALUE = 1 << 31
ACUTE, CIRCUMFLEX = "\u0301", "\u0302"


class Graphemes(NamedTuple):
    """Sets of characters that decide where a grapheme ends."""

    extending: Ranges  # joins the character before
    prepending: Ranges  # joins the character after
    controls: Ranges  # joins none


def read_entries(data: bytes) -> dict[str, str]:
    """The entries that a text can reach. The layout is described in text/formats/sentencepiece.py."""
    size = int.from_bytes(data[:4], "little")
    units = np.frombuffer(data, "<u4", size // 4, 4).tolist()
    texts = data[4 + size :]
    found: dict[str, str] = {}
    pending = [(b"", _offset(units[0]))]
    while pending:
        key, base = pending.pop()
        for byte in range(1, 256):
            unit = units[base ^ byte]
            if unit & (IS_VALUE | 255) != byte:
                continue
            longer, below = key + bytes([byte]), (base ^ byte) ^ _offset(unit)
            if unit & 256:  # a longer key cannot be reached
                start = units[below] & (IS_VALUE - 1)
                found[longer.decode("utf-8")] = texts[start : texts.index(b"\0", start)].decode("utf-8")
            elif len(longer) < MAX_BYTES:
                pending.append((longer, below))
        if len(found) + len(pending) > MAX_ENTRIES:
            raise UsageError("The tokenizer's character map is too large for a web page.")
    return found


@functools.cache
def graphemes() -> Graphemes:
    letter, mark = (_one_entry(key, "b") for key in ("a", ACUTE))
    extending = (text == "b" for text in each(letter, (f"a{char}" for char in TEXT)))
    prepending = (text.endswith(ACUTE) for text in each(letter, (f"{char}a{ACUTE}" for char in TEXT)))
    controls = (text.endswith("b") for text in each(mark, (f"{char}{ACUTE}{CIRCUMFLEX}" for char in TEXT)))
    return Graphemes(to_ranges(extending), to_ranges(prepending), to_ranges(controls))


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 512) >> 6)


def _one_entry(key: str, text: str) -> normalizers.Normalizer:
    """A character map that writes `text` for `key` alone."""
    codes = key.encode()
    units = [0] * 256 * (len(codes) + 2)
    units[0] = 256 << 10
    for level, code in enumerate(codes, 1):
        place, below = 256 * level ^ code, 256 * (level + 1)
        units[place] = code | (256 if level == len(codes) else 0) | (place ^ below) << 10
    units[-256] = IS_VALUE
    trie = np.array(units, "<u4").tobytes()
    return normalizers.Precompiled(len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0")
