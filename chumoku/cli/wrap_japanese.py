"""Line breaks of Japanese in rich's tables and panels.

rich breaks lines between words, which Japanese does not separate: it would cut a sentence off at the edge of a column.
Here each Japanese character is a word, together with brackets that open before it and marks that follow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

OPENING = "（「『"
CLOSING = "、。）」』：？！・…ーゃゅょっャュョッァィゥェォぁぃぅぇぉ"
JAPANESE = "\u3005-\u3007\u3040-\u30ff\u4e00-\u9fff"
WORD = rf"(?=\s*\S)\s*[{OPENING}]*(?:[{JAPANESE}]|[^\s{OPENING}{CLOSING}{JAPANESE}]+)?[{CLOSING}]*\s*"


@contextmanager
def break_between_characters() -> Iterator[None]:
    """Inside, rich may break a line after each Japanese character."""
    from rich import _wrap

    usual, _wrap.re_word = _wrap.re_word, re.compile(WORD)
    try:
        yield
    finally:
        _wrap.re_word = usual
