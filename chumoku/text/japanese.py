"""Japanese: detecting it, and splitting it into words.

    サンディーが元気に走る → サンディー | が | 元気 | に | 走る

Unigram and byte-level BPE need no dictionary. For words, SudachiPy (the extra `ja`) segments the text, and an invisible
separator (U+2063) marks the word boundaries for the tokenizer.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

from chumoku.errors import MissingExtraError

SEPARATOR = "\u2063"
JAPANESE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f々〆]")
# Sudachi accepts at most 49,149 bytes per call; a character has at most four.
MAX_CHARACTERS = 12_000
_thread = threading.local()


def share_of_japanese(text: str) -> float:
    """The fraction of non-space characters that are kana or kanji."""
    letters = sum(not char.isspace() for char in text)
    return len(JAPANESE.findall(text)) / letters if letters else 0.0


def segment(text: str) -> str:
    """The text with the separator between its words. Separators already in the text are removed."""
    words = [word for piece in _split_pieces(text.replace(SEPARATOR, "")) for word in _split_words(piece)]
    return SEPARATOR.join(words)


def _split_pieces(text: str) -> list[str]:
    """Split after line ends and full stops, and split longer pieces at the length limit."""
    pieces: list[str] = []
    for piece in re.findall(r"[^\n。]*[\n。]|[^\n。]+", text):
        pieces.extend(piece[start : start + MAX_CHARACTERS] for start in range(0, len(piece), MAX_CHARACTERS))
    return pieces


def _split_words(piece: str) -> list[str]:
    return [word.surface() for word in _sudachi().tokenize(piece) if word.surface()]


def _sudachi() -> Any:
    """This thread's Sudachi tokenizer; one object cannot be used by two threads at once."""
    if not hasattr(_thread, "sudachi"):
        dictionary, split = _dictionary()
        _thread.sudachi = dictionary.tokenizer(split)
    return _thread.sudachi


@functools.cache
def _dictionary() -> tuple[Any, Any]:
    try:
        from sudachipy import Dictionary, SplitMode
    except ImportError as error:
        raise MissingExtraError(
            "Splitting Japanese into words needs SudachiPy. Install it with: pip install 'chumoku[ja]'. "
            "Or choose the kind unigram or bpe, which need no dictionary."
        ) from error
    return Dictionary(dict="small"), SplitMode.C
