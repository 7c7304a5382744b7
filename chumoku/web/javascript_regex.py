r"""Regular expressions of the `tokenizers` library (Oniguruma, Ruby's syntax) as JavaScript's.

    \p{L}  [^\s\p{N}]  .  (?i:s)    a set of characters, which the library itself lists (see character_classes)
    ^  $                            beginning and end of each line: lookarounds
    \A  \z  \b                      lookarounds
    a++  (?>a)                      (?=(a+))\1: JavaScript has no possessive quantifiers
    (a)                             (?:a)

The result is a list of texts and sets, which the page joins. What has no exact counterpart is refused.
"""

from __future__ import annotations

import functools
import re

from chumoku.errors import UsageError
from chumoku.web.character_classes import TEXT, Ranges, matching

Part = str | Ranges

NONE_BEFORE, NONE_AFTER = "(?<![^])", "(?![^])"
SYNTAX = set(r"^$\.*+?()[]{}|/")
CLASS_ESCAPE = re.compile(r"\\(?:[pP]\{\^?[A-Za-z0-9_ -]+\}|[sSdDwWhH])")
CODE_ESCAPE = re.compile(r"\\(?:[nrtfvae]|x[0-7][0-9A-Fa-f]|x\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4})")
QUANTIFIER = re.compile(r"[*+?]|\{(\d+)\}|\{(\d*),(\d*)\}")
GROUP = re.compile(r"\((?!\?)|\(\?(?::|=|!|<=|<!|>|i:|-i:|i\))")
MAX_DEPTH = 50


def translate(pattern: str) -> list[Part]:
    """A pattern as texts and sets of characters that, joined, are a JavaScript pattern for the flag u."""
    return _Translator(pattern).translate()


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at, self._captures = pattern, 0, 0
        self._depth = 0

    def translate(self) -> list[Part]:
        parts = self._alternatives(ignore_case=False, backward=False)
        if self._at < len(self._pattern):
            raise self._refuse("a bracket that closes nothing")
        return parts

    def _alternatives(self, *, ignore_case: bool, backward: bool) -> list[Part]:
        """The alternatives up to the end of the group."""
        parts: list[Part] = []
        start = self._at
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse("more than 50 nested groups")
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._skip("|"):
                parts.append("|")
            elif self._skip("(?i)"):
                ignore_case = True
            else:
                parts += self._quantified(ignore_case=ignore_case, backward=backward)
        self._depth -= 1
        if ignore_case:
            self._check_folding(self._pattern[start : self._at])
        return parts

    def _quantified(self, *, ignore_case: bool, backward: bool) -> list[Part]:
        """One atom with its quantifier."""
        captures = self._captures
        atom = self._atom(ignore_case=ignore_case, backward=backward)
        found = QUANTIFIER.match(self._pattern, self._at)
        if found is None or found[0] == "{,}":
            return atom
        self._at = found.end()
        exact, low, high = found.groups()
        text = found[0] if exact is not None or low is None else f"{{{low or 0},{high}}}"
        follows = self._pattern[self._at : self._at + 1]
        if follows == "?" and exact is None:
            text, self._at = text + "?", self._at + 1
        elif follows == "+" and found[0] in "*+?":
            self._at += 1
            if captures != self._captures:
                raise self._refuse("a possessive quantifier in another one")
            return self._atomic([*atom, text], backward=backward)
        if self._pattern[self._at : self._at + 1] in ("*", "+", "?") or QUANTIFIER.match(self._pattern, self._at):
            raise self._refuse("two quantifiers in a row")
        return [*atom, text]

    def _atom(self, *, ignore_case: bool, backward: bool) -> list[Part]:
        for pattern in (CLASS_ESCAPE, CODE_ESCAPE):
            if found := pattern.match(self._pattern, self._at):
                self._at = found.end()
                return [self._set(found[0], ignore_case)]
        char = self._pattern[self._at]
        if char == "[":
            return [self._set(self._bracket(), ignore_case)]
        if char == "(":
            return self._group(ignore_case=ignore_case, backward=backward)
        self._at += 1
        if char == ".":
            return [self._set(char, ignore_case)]
        if char == "^":
            return [rf"(?:{NONE_BEFORE}|(?<=\n)(?=[^]))"]
        if char == "$":
            return [rf"(?:(?=\n)|{NONE_AFTER})"]
        if char in "*+?":
            raise self._refuse("a quantifier after nothing")
        return self._escape(ignore_case) if char == "\\" else [self._literal(char, ignore_case)]

    def _escape(self, ignore_case: bool) -> list[Part]:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        anchors = {"A": NONE_BEFORE, "z": NONE_AFTER, "Z": rf"(?=\n?{NONE_AFTER})"}
        if char in anchors and char:
            return [anchors[char]]
        if char in ("b", "B"):
            word = matching(r"\w")
            after_word, after_other = ("(?!", "(?=") if char == "b" else ("(?=", "(?!")
            return ["(?:(?<=", word, f"){after_word}", word, ")|(?<!", word, f"){after_other}", word, "))"]
        if not char or char.isalnum():
            raise self._refuse(f"\\{char}")
        return [self._literal(char, ignore_case)]

    def _group(self, *, ignore_case: bool, backward: bool) -> list[Part]:
        found = GROUP.match(self._pattern, self._at)
        if found is None:
            raise self._refuse(self._pattern[self._at : self._at + 3])
        self._at = found.end()
        opening = found[0]
        if opening in ("(?i:", "(?-i:"):
            ignore_case = opening == "(?i:"
            opening = "(?:"
        inside = self._alternatives(ignore_case=ignore_case, backward=backward or opening in ("(?<=", "(?<!"))
        if not self._skip(")"):
            raise self._refuse("a group that does not end")
        if opening == "(?>":
            return self._atomic(inside, backward=backward)
        return ["(?:" if opening == "(" else opening, *inside, ")"]

    def _atomic(self, parts: list[Part], *, backward: bool) -> list[Part]:
        if backward:
            raise self._refuse("an atomic group in a lookbehind")
        self._captures += 1
        return ["(?:(?=(", *parts, f"))\\{self._captures})"]

    def _bracket(self) -> str:
        """The source of the bracket expression at this place."""
        pattern, place, depth = self._pattern, self._at, 0
        while place < len(pattern):
            if pattern[place] == "\\":
                place += 2
            elif pattern.startswith("[:", place):
                place = pattern.find(":]", place) + 2
                if place < 2:
                    break
            elif pattern[place] == "[":
                depth += 1
                place += 2 if pattern.startswith("[^", place) else 1
                if pattern.startswith("]", place):
                    raise self._refuse("a bracket expression that begins with ]")
            else:
                depth -= pattern[place] == "]"
                place += 1
            if depth == 0:
                source, self._at = pattern[self._at : place], place
                return source
        raise self._refuse("a bracket expression that does not end")

    def _set(self, source: str, ignore_case: bool) -> Part:
        return matching(f"(?i:{source})" if ignore_case else source)

    def _literal(self, char: str, ignore_case: bool) -> Part:
        if ignore_case and char.casefold() != char.upper():
            return matching(f"(?i:{re.escape(char)})")
        return f"\\{char}" if char in SYNTAX else char

    def _check_folding(self, source: str) -> None:
        """Refuse letters that equal several characters if case is ignored, as ß equals ss."""
        folded = source.casefold()
        if any(several in folded for several in _several_letters()):
            raise self._refuse("ignored case for letters that may be several characters")

    def _skip(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _refuse(self, what: str) -> UsageError:
        return UsageError(
            f"The tokenizer's pattern {self._pattern[:80]!r} has {what} near character {self._at}, which a web page "
            "cannot reproduce exactly. Serve this model with: chumoku serve"
        )


@functools.cache
def _several_letters() -> frozenset[str]:
    return frozenset(folded for char in TEXT if len(folded := char.casefold()) > 1)
