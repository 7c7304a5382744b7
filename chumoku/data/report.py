"""The report of reading a corpus: how much was read, kept and dropped, with examples for each reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chumoku.data.text_files import MAX_LINE_BYTES, MAX_RECORD_BYTES
from chumoku.text.byte_chars import fix_surrogates

MAX_EXAMPLES = 3
MAX_LENGTH = 80

REASONS = {
    "invalid UTF-8": "bytes that are not text",
    "too long": "more characters than allowed",
    "line too long": f"the limit is {MAX_RECORD_BYTES:,} bytes in JSONL and {MAX_LINE_BYTES:,} elsewhere",
    "empty": "only spaces on a side",
    "length ratio": "one side much longer than the other",
    "duplicate": "the same pair again",
    "wrong script": "a side that is not in its language's script",
    "missing column": "too few columns, or no such field",
    "not JSON": "a record that cannot be parsed",
    "invalid messages": "not a list of messages with a role and a text",
    "equal answers": "the chosen answer is the rejected one",
    "no answer": "no message of the assistant to learn",
    "too many tokens": "the first answer does not fit train.sequence_length",
    "refused by the template": "the chat template cannot render it",
    "equal negative": "a negative that is the anchor or the positive",
    "different lengths": "not as many tags as words",
    "label too long": "a label of more than 1,024 characters; is it the right column?",
}


class Example(NamedTuple):
    file: str
    line: int
    text: str


@dataclass
class Report:
    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    kept_by_file: Counter[str] = field(default_factory=Counter)  # in the order of reading

    def drop(self, reason: str, file: str, line: int, text: str) -> None:
        self.dropped[reason] += 1
        examples, text = self.examples.setdefault(reason, []), fix_surrogates(text)
        if len(examples) < MAX_EXAMPLES:
            examples.append(Example(file, line, text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"))

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "examples": {reason: [one._asdict() for one in examples] for reason, examples in self.examples.items()},
        }

    def lines(self) -> list[str]:
        """The report as readable lines."""
        rows = [f"{self.read:,} read from {len(self.files)} file(s), {self.kept:,} kept."]
        for reason, times in self.dropped.most_common():
            rows.append(f"  {times:,} dropped: {reason} ({REASONS.get(reason, '')})")
            rows += [f"      {file}:{line}  {text}" for file, line, text in self.examples[reason]]
        return rows
