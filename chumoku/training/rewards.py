"""Rewards: named rules that compare a generated text with the answer of its prompt, from 0 (wrong) to 1 (right).

exact     1 if both texts are equal, apart from spaces around them and the width of characters (NFKC)
number    1 if the last number of the text equals the last number of the answer: "12 + 7 is 19." for "19"
words     F1 of the words:  2 · shared / (words of the text + words of the answer), each as often as it occurs
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

NUMBER = re.compile(r"[-−]?\d{1,40}(?:,\d{3})*(?:\.\d{1,40})?", re.ASCII)
WORD = re.compile(r"\w+")


def exact(text: str, answer: str) -> float:
    return float(normalize(text) == normalize(answer))


def number(text: str, answer: str) -> float:
    found, expected = last_number(text), last_number(answer)
    return float(found is not None and found == expected)


def words(text: str, answer: str) -> float:
    found, expected = (Counter(WORD.findall(normalize(one).casefold())) for one in (text, answer))
    total = found.total() + expected.total()
    return 2 * (found & expected).total() / total if total else 0.0


RULES: dict[str, Callable[[str, str], float]] = {"exact": exact, "number": number, "words": words}


def normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip()


def last_number(text: str) -> Decimal | None:
    found = NUMBER.findall(normalize(text))
    return Decimal(found[-1].replace(",", "").replace("−", "-")) if found else None
