"""A chat template as a pattern: the texts before, between and after messages. A page has no template engine.

    prompt = gap(start, m₁) · text(m₁) · gap(m₁, m₂) · text(m₂) · … · gap(mₙ, end)

    gap     a list of pieces: text, {"mark": id, "text": name} for a special token, {"system": true} for the system
            message, {"date": format}. Which list depends on the roles of both neighbors, on whether there is a system
            message, and on whether the right neighbor is the last message.
    text    a message's content, changed by one of CHANGES, as trim; which one depends on role and place

The gaps are what the template writes around marked messages, and the change is the one that explains what it makes of
PROBES. `web.chat_pattern_check` compares a pattern with its template. Special tokens are found here, in the template's
own text alone, so that text that a user types never becomes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from chumoku.decoding.chat import TEMPLATE, format_for
from chumoku.decoding.chat_formats import Message, render
from chumoku.errors import ChumokuError, UsageError
from chumoku.text.chat_template import Mark, Span, find_marks
from chumoku.text.tokenizer import Tokenizer

Turn = tuple[str, str]  # role and text
Piece = str | dict[str, Any]
THINK = "</think>"
CHANGES: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "trim": str.strip,
    "trim_start": str.lstrip,
    "trim_end": str.rstrip,
    "trim_newlines": lambda text: text.strip("\n"),
    "trim_first_newlines": lambda text: text.lstrip("\n"),
    "after_thoughts": lambda text: text.split(THINK)[-1],
    "after_thoughts_and_newlines": lambda text: text.split(THINK)[-1].lstrip("\n") if THINK in text else text,
}
PROBES = (" \n\tx\t\n ", "\n\nx y \n", f"<think>\nx\n{THINK}\n\ny", f" x {THINK} y ")
REGULAR = (("user",), ("user", "assistant", "user"), ("user", "assistant", "user", "assistant", "user"))
IRREGULAR = (
    ("user", "user"),
    ("assistant", "user"),
    ("user", "user", "user"),
    ("assistant", "user", "user"),
    ("assistant", "user", "assistant", "user"),
    ("user", "assistant", "assistant", "user"),
    ("assistant", "assistant", "user"),
)
DATE_FORMAT = re.compile(r"""strftime_now\(\s*["']([^"']{1,40})["']""")
KNOWN_DATE = re.compile(r"(?:%[dmYyBbHM]|[^%])+")  # what in_page/decoding/chat.js can write


class NoPattern(ChumokuError):
    """A chat template cannot be written as a pattern; the message is the reason."""


class Prompt(NamedTuple):
    text: str
    marks: list[Mark]


def make_renderer(tokenizer: Tokenizer) -> Callable[[Sequence[Turn]], list[Span]]:
    """The function that writes messages as `decoding.chat` does, with the tokenizer's own template or format."""
    template, format = tokenizer.chat_template, format_for(tokenizer)
    if format == TEMPLATE and template is not None:
        return lambda turns: template.render([{"role": role, "content": text} for role, text in turns])

    def render_format(turns: Sequence[Turn]) -> list[Span]:
        return [Span(part.text, own=part.mark) for part in render([Message(*turn) for turn in turns], format)]

    return render_format


def derive_pattern(tokenizer: Tokenizer) -> dict[str, Any]:
    """The pattern of a tokenizer's chat template or format, not compared with it yet; raises NoPattern."""
    return _Derivation(tokenizer).pattern()


def apply_pattern(pattern: dict[str, Any], turns: Sequence[Turn]) -> Prompt | None:
    """The prompt for messages; None if the pattern refuses them. in_page/decoding/chat.js does the same."""
    system = turns[0][1] if turns[0][0] == "system" else None
    turns = turns[1:] if system is not None else turns
    if (system is not None and pattern["refusals"]["system"]) or (
        pattern["refusals"]["turns"] and not _take_turns(turns)
    ):
        return None
    text, marks = "", []
    for place in range(len(turns) + 1):
        for piece in pattern["gaps"].get(gap_key(system is not None, turns, place), [{"missing": True}]):
            if isinstance(piece, str):
                text += piece
            elif "mark" in piece:
                marks.append(Mark(piece["mark"], len(text), len(text) + len(piece["text"])))
                text += piece["text"]
            elif "date" in piece:
                text += datetime.now().strftime(piece["date"])
            elif "system" in piece:
                text += CHANGES[pattern["changes"]["system"]](system or "")
            else:
                return None
        if place < len(turns):
            change = pattern["changes"][change_key(system is not None, turns, place)]
            text += CHANGES[change](turns[place][1])
    return Prompt(text, marks)


def gap_key(system: bool, turns: Sequence[Turn], place: int) -> str:
    """The name of the gap before the message at a place, or after the last one."""
    left = turns[place - 1][0] if place else "start"
    right = turns[place][0] if place < len(turns) else "end"
    return " ".join(("system" if system else "none", left, right, "last" if place >= len(turns) - 1 else "more"))


def change_key(system: bool, turns: Sequence[Turn], place: int) -> str:
    """The name of the change of the message at a place."""
    first, last = "first" if place == 0 else "later", "last" if place == len(turns) - 1 else "more"
    return " ".join(("system" if system else "none", turns[place][0], first, last))


def _take_turns(turns: Sequence[Turn]) -> bool:
    return all(role == ("user", "assistant")[place % 2] for place, (role, _) in enumerate(turns))


def _marked(roles: Sequence[str]) -> list[Turn]:
    """Messages whose texts occur nowhere else."""
    return [(role, f"Qz{place}zQ") for place, role in enumerate(roles)]


class _Derivation:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._render = tokenizer, make_renderer(tokenizer)
        template = tokenizer.chat_template
        source = "" if template is None else template.select(tools=False)
        self._dates = {format for format in DATE_FORMAT.findall(source) if KNOWN_DATE.fullmatch(format)}
        self._gaps: dict[str, list[Piece]] = {}
        self._changes: dict[str, str] = {}
        self._texts: dict[tuple[Turn, ...], str] = {}

    def pattern(self) -> dict[str, Any]:
        refusals = {"system": self._refusal(("system", "user")), "turns": self._refuses_irregular()}
        shapes = REGULAR if refusals["turns"] else (*REGULAR, *IRREGULAR)
        rows = [
            (*system, *shape) for system in ([(), ("system",)][: 1 if refusals["system"] else 2]) for shape in shapes
        ]
        for roles in rows:
            self._add_gaps(_marked(roles))
        pattern = {"gaps": self._gaps, "changes": self._changes, "refusals": refusals}
        for roles in rows:
            self._add_changes(pattern, _marked(roles))
        return pattern

    def _text(self, turns: tuple[Turn, ...]) -> str:
        """The prompt for messages, rendered once."""
        if turns not in self._texts:
            self._texts[turns] = "".join(span.text for span in self._render(turns))
        return self._texts[turns]

    def _refusal(self, roles: Sequence[str]) -> str | None:
        """Why the template does not render messages of these roles, or None."""
        try:
            self._render(_marked(roles))
        except UsageError as error:
            return str(error)
        return None

    def _refuses_irregular(self) -> str | None:
        """Why the template renders only messages where user and assistant take turns, or None."""
        if (reason := self._refusal(REGULAR[0])) is not None:
            raise NoPattern(reason)
        found = [self._refusal(roles) for roles in IRREGULAR]
        if any(found) and not all(found):
            raise NoPattern("it accepts some orders of roles and refuses others")
        return found[0]

    def _add_gaps(self, turns: list[Turn]) -> None:
        spans = self._render(turns)
        text, own = "".join(span.text for span in spans), [span.own for span in spans for _ in span.text]
        system, rest = (turns[0][1], turns[1:]) if turns[0][0] == "system" else (None, turns)
        start = 0
        for place in range(len(rest) + 1):
            end = text.find(rest[place][1], start) if place < len(rest) else len(text)
            if end < 0 or any(text.count(content) != 1 for _, content in rest):
                raise NoPattern("it leaves out, repeats or moves messages")
            pieces = self._to_pieces(text[start:end], own[start:end], system)
            if self._gaps.setdefault(gap_key(system is not None, rest, place), pieces) != pieces:
                raise NoPattern("what it writes between two messages depends on more than their roles")
            start = end + len(rest[place][1]) if place < len(rest) else end

    def _to_pieces(self, text: str, own: Sequence[bool], system: str | None) -> list[Piece]:
        """The pieces of a gap; text that the template itself contains is searched for special tokens."""
        pieces: list[Piece] = []
        while text:
            count = next((n for n in range(1, len(text)) if own[n] != own[0]), len(text))
            part = text[:count]
            if own[0]:
                start = 0
                for mark in find_marks(self._tokenizer, [Span(part, own=True)]):
                    pieces += [part[start : mark.start], {"mark": mark.id, "text": part[mark.start : mark.end]}]
                    start = mark.end
                pieces.append(part[start:])
            else:
                pieces += self._split_typed(part, system)
            text, own = text[count:], own[count:]
        return _join(pieces)

    def _split_typed(self, text: str, system: str | None) -> list[Piece]:
        """The pieces of text that the template does not contain itself: the system message, dates."""
        names: dict[str, Piece] = {datetime.now().strftime(format): {"date": format} for format in self._dates}
        names |= {} if system is None else {system: {"system": True}}
        for name, piece in names.items():
            before, found, after = text.partition(name)
            if found:
                return [*self._split_typed(before, system), piece, *self._split_typed(after, system)]
        return [text]

    def _add_changes(self, pattern: dict[str, Any], turns: list[Turn]) -> None:
        """Find how the template changes each message of a marked conversation."""
        system = turns[0][0] == "system"
        for place in range(len(turns)):
            key = "system" if system and place == 0 else change_key(system, turns[system:], place - system)
            if key not in self._changes:
                made = [self._made_of(turns, place, probe) for probe in PROBES]
                fitting = [name for name, change in CHANGES.items() if made == [change(probe) for probe in PROBES]]
                if not fitting:
                    raise NoPattern("it changes the text of messages in a way of its own")
                self._changes[key] = fitting[0]

    def _made_of(self, turns: list[Turn], place: int, probe: str) -> str | None:
        """What the template makes of a probe in place of a message; None if it writes other text around it, too."""
        marked, probed = (
            self._text((*turns[:place], (turns[place][0], text), *turns[place + 1 :]))
            for text in (turns[place][1], probe)
        )
        if turns[place][1] not in marked:  # a system message that is left out
            return probe if marked == probed else None
        before, _, after = marked.partition(turns[place][1])
        same = probed.startswith(before) and probed.endswith(after) and len(probed) >= len(before) + len(after)
        return probed[len(before) : len(probed) - len(after)] if same else None


def _join(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of text next to each other as one."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    return joined
