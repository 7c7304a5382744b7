"""Conversations: JSONL records of messages, or tables with a question and an answer → messages of a chat.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "tools": [ … ]}

This is OpenAI's form. `tools` and tool calls are optional. `"weight": 0` in a message of the assistant means that it is
not learned. Text parts ({"type": "text", "text": "…"}) are joined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.data.corpus import field_names, json_lines
from chumoku.data.pairs import read_rows
from chumoku.data.report import Report
from chumoku.data.text_files import inner_suffix, open_members
from chumoku.errors import CorpusError
from chumoku.text.chat_template import ROLES

JSON_SUFFIXES = (".jsonl", ".ndjson")
Messages = list[dict[str, Any]]
Columns = tuple[str | int, str | int] | None


class Conversation(NamedTuple):
    file: str
    line: int
    messages: Messages
    tools: list[dict[str, Any]] | None = None
    problem: str | None = None  # the reason for dropping it

    @property
    def contents(self) -> list[str]:
        return [message["content"] for message in self.messages]

    @property
    def identity(self) -> str:
        """A text that differs for different conversations."""
        return json.dumps([self.messages, self.tools])

    @property
    def questions(self) -> str:
        """All that the user says."""
        return join_questions(self.messages)


def read_conversations(paths: Sequence[Path], columns: Columns, report: Report) -> Iterator[Conversation]:
    """The conversations of these files.

    columns   question and answer: indices in TSV, names in JSONL and Parquet, either in CSV. None: JSONL records have
              messages, and other tables the question in column 0 and the answer in column 1.
    """
    records = [path for path in paths if columns is None and inner_suffix(path) in JSON_SUFFIXES]
    for path in records:
        for name, _, stream in open_members(path):
            for number, record in json_lines(name, stream, report):
                if number == 1 and "messages" not in record:
                    raise CorpusError(
                        f"{name}:1 has no field 'messages'; its fields are {field_names(record)}. Name the columns of "
                        "the question and the answer with data.columns."
                    )
                yield parse_conversation(name, number, record)
    tables = [path for path in paths if path not in records]
    if not tables:
        return
    for file, line, (question, answer), problem in read_rows(tables, columns or (0, 1), report):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield Conversation(file, line, messages, None, problem or find_problem(messages))


def read_records(
    paths: Sequence[Path], report: Report, *, required: Sequence[str], what: str, form: str
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """File, line number and record of JSONL files; CorpusError if the first record of a file lacks a required field.

    what    what the records are, for a message: "prompts"
    form    the fields of a record in words: "prompt and answer"
    """
    for path in paths:
        for name, suffix, stream in open_members(path):
            if suffix not in JSON_SUFFIXES:
                raise CorpusError(f"{name} is not JSONL (.jsonl). Write {what} as records with {form}.")
            for number, record in json_lines(name, stream, report):
                missing = next((key for key in required if key not in record), None)
                if number == 1 and missing is not None:
                    raise CorpusError(
                        f"{name}:1 has no field '{missing}'; its fields are {field_names(record)}. A record has {form}."
                    )
                yield name, number, record


def parse_conversation(file: str, line: int, record: dict[str, Any]) -> Conversation:
    """The conversation of a JSONL record."""
    messages, tools = parse_messages(record.get("messages")), record.get("tools") or None
    if messages is None or not are_tools(tools):
        return Conversation(file, line, [], None, "invalid messages")
    return Conversation(file, line, messages, tools, find_problem(messages))


def are_tools(tools: Any) -> bool:
    """Whether this is a list of objects, or None."""
    return tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))


def parse_messages(value: Any) -> Messages | None:
    """Messages with their content as one string, or None if this is not a list of messages."""
    if not isinstance(value, list) or not value:
        return None
    messages = [_parse_message(message) for message in value]
    return None if None in messages else messages  # type: ignore[return-value]


def _parse_message(message: Any) -> dict[str, Any] | None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return None
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else 0  # type: ignore[arg-type]
    if content is None and message.get("tool_calls"):
        content = ""
    return {**message, "content": content} if isinstance(content, str) else None


def find_problem(messages: Messages) -> str | None:
    """The reason for dropping a conversation, or None."""
    if not any(map(is_learned, messages)):
        return "no answer"
    if not all(message["content"].strip() or message.get("tool_calls") for message in messages):
        return "empty"
    return None


def join_questions(messages: Messages) -> str:
    return "\t".join(message["content"] for message in messages if message["role"] == "user")


def is_learned(message: dict[str, Any]) -> bool:
    """Whether this is a message of the assistant whose weight is not 0."""
    return bool(message["role"] == "assistant" and message.get("weight") != 0)
