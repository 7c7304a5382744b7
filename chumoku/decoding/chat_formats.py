"""The chat formats for models without a chat template: messages become the parts of a prompt.

    chatml   <|im_start|>user⏎ text <|im_end|>⏎  …  <|im_start|>assistant⏎          ends at the token <|im_end|>
    llama3   <|begin_of_text|>  <|start_header_id|>user<|end_header_id|>⏎⏎ text <|eot_id|>  …     ends at <|eot_id|>
    plain    User: text⏎  Assistant: text⏎  …  Assistant:                            ends at the words ⏎User:

The marks of ChatML and Llama 3 are special tokens, and text that a user types is never encoded as one. The marks of
plain chat are ordinary text, so a line of a message that looks like a mark is indented by a space. Tokens that the
tokenizer puts before every text also come before the prompt.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chumoku.text.tokenizer import Tokenizer

FORMATS = ("chatml", "llama3", "plain")
START, END = "<|im_start|>", "<|im_end|>"
BEGIN, HEAD, TEXT, TURN = "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
MARKS = {"chatml": (START, END), "llama3": (BEGIN, HEAD, TEXT, TURN)}  # the last of them ends a reply
NAMES = {"user": "User:", "assistant": "Assistant:"}
STOPS = {"plain": ["\nUser:"]}
TURNS = tuple(name.casefold() for name in NAMES.values())


class Message(NamedTuple):
    role: str  # system, user or assistant; tool for the result of a tool
    text: str
    extra: Mapping[str, Any] = {}  # what a chat template gets beside role and content, such as tool_calls


class Part(NamedTuple):
    """A part of a prompt: text, or the name of one special token."""

    text: str
    mark: bool = False


EDGES = {  # before all messages and after them
    "chatml": ([Part(START, mark=True)], [Part("assistant\n")]),
    "llama3": (
        [Part(BEGIN, mark=True)],
        [Part(HEAD, mark=True), Part("assistant"), Part(TEXT, mark=True), Part("\n\n")],
    ),
    "plain": ([], [Part(NAMES["assistant"])]),
}


def render(messages: Sequence[Message], format: str) -> list[Part]:
    """The parts of the prompt, up to where the assistant's reply begins."""
    opening, closing = EDGES[format]
    return join_parts([*opening, *(part for one in messages for part in render_message(one, format)), *closing], format)


def render_message(message: Message, format: str) -> list[Part]:
    """One message with its marks."""
    role, text = message.role, message.text
    if format == "chatml":
        return [Part(f"{role}\n{text}"), Part(END, mark=True), Part("\n"), Part(START, mark=True)]
    if format == "llama3":
        head = [Part(HEAD, mark=True), Part(role), Part(TEXT, mark=True)]
        return [*head, Part(f"\n\n{text.strip()}"), Part(TURN, mark=True)]
    text = "\n".join(f" {line}" if looks_like_a_turn(line) else line for line in text.split("\n"))
    return [Part(f"{text}\n\n" if role == "system" else f"{NAMES[role]} {text}\n")]


def join_parts(parts: Sequence[Part], format: str) -> list[Part]:
    """Join all parts into one for plain chat, which has no marks: tokens may then span two messages."""
    return list(parts) if format in MARKS else [Part("".join(part.text for part in parts))]


def looks_like_a_turn(line: str) -> bool:
    """Whether a line starts like a mark, also after a tokenizer's normalization (full width, case …)."""
    normalized = "".join(filter(str.isprintable, unicodedata.normalize("NFKC", line)))
    return normalized.casefold().startswith(TURNS)


def encode(parts: Sequence[Part], tokenizer: Tokenizer) -> list[int]:
    """Encode marks as their special tokens, and everything else as ordinary text."""
    encoded = ([tokenizer.specials[part.text]] if part.mark else tokenizer.encode(part.text) for part in parts)
    return [token for tokens in encoded for token in tokens]
