"""Compares a chat pattern with its template, on random conversations.

texts        letters, spaces, line ends, symbols, special tokens, and the words that the template itself compares with
shapes       1 to 9 messages, with and without a system message, also orders of roles that templates refuse
blank        user and system messages without text: a pattern may be right for all others only
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from chumoku.decoding.chat import format_for
from chumoku.errors import UsageError
from chumoku.text.chat_template import Span, find_marks
from chumoku.text.tokenizer import Tokenizer
from chumoku.web.chat_pattern import NoPattern, Turn, apply_pattern, derive_pattern, make_renderer

CONVERSATIONS, BLANK_CONVERSATIONS = 300, 60
FRAGMENTS = (*"aZ7 \n\t{}<>'\"\\&|%", "é", "猫", "😀", "\u3000", "\x85", "\u200b", "{{ x }}", "{% y %}", "  ", "\n\n")
LITERAL = re.compile(r"""'([^'\n]{1,60})'|"([^"\n]{1,60})\"""")


def find_chat_pattern(tokenizer: Tokenizer) -> tuple[dict[str, Any] | None, str | None]:
    """The chat pattern of a tokenizer, or None and the reason, as the rest of a sentence.

    A tokenizer without chat template and without the special tokens of a chat format has neither.
    """
    if format_for(tokenizer) == "plain":
        return None, None
    try:
        pattern = derive_pattern(tokenizer)
        check_pattern(pattern, tokenizer)
    except (NoPattern, UsageError) as error:
        return None, str(error).rstrip(".")
    template = tokenizer.chat_template is not None
    before = () if template else tokenizer.prefix_and_suffix[0]
    return {**pattern, "blank": _allows_blank(pattern, tokenizer), "whole": template, "prefix": [*before]}, None


def check_pattern(pattern: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Raise NoPattern unless the pattern writes random conversations as the template does."""
    if _find_difference(pattern, tokenizer, CONVERSATIONS, blank=False) is not None:
        raise NoPattern("what it writes depends on the text of the messages, or on their number")


def _allows_blank(pattern: dict[str, Any], tokenizer: Tokenizer) -> bool:
    return _find_difference(pattern, tokenizer, BLANK_CONVERSATIONS, blank=True) is None


def _find_difference(pattern: dict[str, Any], tokenizer: Tokenizer, count: int, *, blank: bool) -> list[Turn] | None:
    """The first of some conversations that pattern and template write differently."""
    chance, render = random.Random(count), make_renderer(tokenizer)
    words = find_words(tokenizer)
    for _ in range(count):
        turns = random_conversation(chance, words, blank=blank)
        try:
            spans: list[Span] | None = render(turns)
        except UsageError:
            spans = None
        found = apply_pattern(pattern, turns)
        if spans is None or found is None:
            if spans is not None or found is not None:
                return turns
        elif (found.text, found.marks) != ("".join(span.text for span in spans), find_marks(tokenizer, spans)):
            return turns
    return None


def find_words(tokenizer: Tokenizer) -> list[str]:
    """Texts that a template may react to: its own string constants, and special tokens."""
    template = tokenizer.chat_template
    source = "" if template is None else template.select(tools=False)
    literals = {one or other for one, other in LITERAL.findall(source)}
    return [*sorted(text.replace("\\n", "\n") for text in literals), *list(tokenizer.specials)[:20]]


def random_conversation(chance: random.Random, words: Sequence[str], *, blank: bool = False) -> list[Turn]:
    """Messages of which the last is the user's; with `blank`, those of user and system may be blank, too."""
    length = chance.choice([1, 3, 3, 5, 9])
    roles = [("user", "assistant")[place % 2] for place in range(length)]
    if chance.random() < 0.2:
        roles = [*chance.choices(("user", "assistant"), k=length - 1), "user"]
    roles = ["system", *roles] if chance.random() < 0.5 else roles
    turns = []
    for place, role in enumerate(roles):
        may_be_blank = role == "assistant" or (blank and place < len(roles) - 1)
        text = random_text(chance, words)
        while not may_be_blank and not text.strip():
            text = random_text(chance, words)
        turns.append((role, chance.choice(["", " ", "\n"]) if may_be_blank and chance.random() < 0.3 else text))
    return turns


def random_text(chance: random.Random, words: Sequence[str]) -> str:
    texts = [*FRAGMENTS, *words[: 4 * len(FRAGMENTS)]]
    return "".join(chance.choices(texts, k=chance.randint(0, 7)))
