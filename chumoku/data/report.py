"""The report of reading a corpus: how much was read, kept and dropped, with examples for each reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chumoku.data.text_files import MAX_LINE_BYTES, MAX_RECORD_BYTES
from chumoku.errors import CorpusError, pluralize
from chumoku.text.byte_chars import fix_surrogates

MAX_EXAMPLES = 3
MAX_LENGTH = 80

REASONS = {
    "invalid UTF-8": "bytes that are not text",
    "too long": "more characters than allowed",
    "line too long": f"the limit is {MAX_RECORD_BYTES:,} bytes in JSONL and {MAX_LINE_BYTES:,} elsewhere",
    "empty": "only spaces on a side",
    "length ratio": "one side much longer than the other",
    "duplicate": "the same row again",
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

ADVICE = {  # what to do if nothing is left for this reason
    "invalid UTF-8": "If it is text, convert it, for example with: iconv -f SHIFT_JIS -t UTF-8.",
    "not JSON": "If it is a table, name it .tsv or .csv.",
}


class Example(NamedTuple):
    file: str
    line: int
    text: str


def show_printable(text: str) -> str:
    """The text with � for every character that a terminal would obey instead of showing it."""
    return "".join(
        char if char.isprintable() or char == "\u3000" else " " if char.isspace() else "�"
        for char in fix_surrogates(text)
    )


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
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES:
            shown = show_printable(text[: MAX_LENGTH + 1])
            examples.append(Example(file, line, shown if len(text) <= MAX_LENGTH else shown[: MAX_LENGTH - 1] + "…"))

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "examples": {reason: [one._asdict() for one in examples] for reason, examples in self.examples.items()},
        }

    def nothing_usable(self, what: str, advice: str) -> CorpusError:
        """The error of files of which nothing is left; `what` was expected, and `advice` says what to check."""
        reasons = "; ".join(row.strip() for row in self.lines()[1:3]) or "the files are empty"
        for reason, _ in self.dropped.most_common(1):
            advice = ADVICE.get(reason, advice)
        return CorpusError(f"No usable {what} in {', '.join(self.files[:3])}: {reasons}. {advice}")

    def lines(self) -> list[str]:
        """The report as readable lines."""
        return report_lines(self.as_dict())


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """The lines of a report that was made with `Report.as_dict`."""
    rows = [f"{report['read']:,} read from {pluralize(len(report['files']), 'file')}, {report['kept']:,} kept."]
    for reason, times in Counter(report["dropped"]).most_common():
        rows.append(f"  {times:,} dropped: {reason} ({REASONS.get(reason, '')})")
        rows += [f"      {one['file']}:{one['line']}  {one['text']}" for one in report["examples"][reason]]
    return rows
