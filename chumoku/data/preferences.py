"""Preferences: a prompt, a better and a worse answer → pairs of samples.

    {"prompt": "…" or [messages], "chosen": "…" or [messages], "rejected": "…" or [messages], "tools": [ … ]}

`messages` may be used instead of `prompt`. Without a prompt, it is what the messages of both answers begin with. Of
each answer, the last message is learned, which is the assistant's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.data.chat_samples import ConversationEncoder, EncodedConversation
from chumoku.data.conversations import Messages, are_tools, join_questions, parse_messages, read_records
from chumoku.data.prepared_chat import ChatSamples, open_chat, prepare_records
from chumoku.data.report import Report
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

SIDES = ("chosen", "rejected")


class Preference(NamedTuple):
    file: str
    line: int
    prompt: Messages
    chosen: Messages
    rejected: Messages
    tools: list[dict[str, Any]] | None = None
    problem: str | None = None  # the reason for dropping it

    @property
    def contents(self) -> list[str]:
        return [message["content"] for message in (*self.prompt, *self.chosen, *self.rejected)]

    @property
    def identity(self) -> str:
        """A text that differs for different preferences."""
        return json.dumps([self.prompt, self.chosen, self.rejected, self.tools])

    @property
    def questions(self) -> str:
        """All that the user says before the answers."""
        return join_questions(self.prompt)


class PreferencePairs:
    """Encoded preferences: `chosen[i]` and `rejected[i]` are samples that begin with the same prompt."""

    def __init__(self, chosen: ChatSamples, rejected: ChatSamples) -> None:
        self.chosen, self.rejected = chosen, rejected

    def __len__(self) -> int:
        return len(self.chosen)


def read_preferences(paths: Sequence[Path], report: Report) -> Iterator[Preference]:
    """The preferences of JSONL files."""
    form = "prompt, chosen and rejected"
    for name, number, record in read_records(paths, report, required=SIDES, what="preferences", form=form):
        yield parse_preference(name, number, record)


def parse_preference(file: str, line: int, record: dict[str, Any]) -> Preference:
    """The preference of a JSONL record."""
    asked = record.get("prompt", record.get("messages"))
    prompt = [] if asked is None else _as_messages(asked, "user")
    chosen, rejected = (_as_messages(record.get(side), "assistant") for side in SIDES)
    tools = record.get("tools") or None
    if prompt is None or chosen is None or rejected is None or not are_tools(tools):
        return Preference(file, line, [], [], [], None, "invalid messages")
    if not prompt:
        pairs = zip(chosen[:-1], rejected[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    found = Preference(file, line, prompt, chosen, rejected, tools)
    return found._replace(problem=_find_problem(found))


def _as_messages(value: Any, role: str) -> Messages | None:
    return [{"role": role, "content": value}] if isinstance(value, str) else parse_messages(value)


def _find_problem(found: Preference) -> str | None:
    if not found.prompt or any(side[-1]["role"] != "assistant" for side in (found.chosen, found.rejected)):
        return "no answer"
    if not all(content.strip() for content in found.contents):
        return "empty"
    return "equal answers" if found.chosen == found.rejected else None


def encode_preference(one: Preference, encoder: ConversationEncoder) -> EncodedConversation:
    """The chosen and the rejected sample of a preference; both must fit."""
    samples = []
    for answer in (one.chosen, one.rejected):
        before = [{**message, "weight": 0} for message in (*one.prompt, *answer[:-1])]
        encoded = encoder([*before, answer[-1]], one.tools)
        if encoded.problem is not None:
            return encoded
        samples += encoded.samples
    return EncodedConversation(samples)


def prepare_preferences(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    length: int,
    validation: float = 0.1,
    progress: Progress = silent,
) -> Path:
    """Read, encode and split preferences into `folder`, and return it; the arguments are those of `prepare_chat`."""
    encoder = ConversationEncoder(tokenizer, length)
    return prepare_records(
        files,
        tokenizer,
        Path(folder),
        inputs={"length": length},
        sides=SIDES,
        read=read_preferences,
        encode=lambda one: encode_preference(one, encoder),
        validation=validation,
        progress=progress,
    )


def open_preferences(folder: Path | str, part: str = "train") -> PreferencePairs:
    """The preferences of a part, "train" or "validation"."""
    return PreferencePairs(*(open_chat(folder, part, side) for side in SIDES))
