"""Corpus lines are unique and readable:  few duplicates, few empty lines, no lost characters (U+FFFD).

A line that repeats in every document (a prompt, a separator) counts at most MOST times as a duplicate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject

TWICE, EMPTY = 0.05, 0.01
LENGTH, LETTERS = 40, 20  # shorter lines, and lines with fewer letters, may repeat
MOST = 3  # duplicates counted per line of a text
LOST = 0.005


def run(subject: Subject) -> Iterator[Finding]:
    yield from find_unreadable(subject)
    if subject.pairs is not None:
        rows = [f"{pair.source}\t{pair.target}" for pair in subject.pairs]
        empty = sum(not (pair.source.strip() and pair.target.strip()) for pair in subject.pairs)
        read = len(rows) + sum(subject.dropped.values())
        yield from find_duplicates(rows, read, subject.dropped.get("duplicate", 0), "pairs")
        yield from find_empty(empty + subject.dropped.get("empty", 0), read)
    elif subject.texts is not None:
        rows = [line for line in subject.texts if is_sentence(line)]
        yield from find_duplicates(rows, len(rows), 0, "lines", most=MOST)
    else:
        raise Skip("there is no corpus")


def find_duplicates(
    rows: Sequence[str], read: int, dropped: int, what: str, *, most: int = 1 << 60
) -> Iterator[Finding]:
    known: set[str] = set()
    example_row = next((row for row in rows if row in known or known.add(row)), "")  # type: ignore[func-returns-value]
    duplicates = sum(min(times - 1, most) for times in Counter(rows).values())
    if duplicates + dropped > TWICE * max(1, read):
        all_of_them = f"{duplicates + dropped:,} of {read:,} {what}"
        yield Finding(
            "lines",
            f"{all_of_them} are duplicates, and {dropped:,} of them were removed."
            if not duplicates
            else f"{all_of_them} are duplicates, and {dropped:,} of them were removed, but not {example_row[:60]!r}."
            if dropped
            else f"{all_of_them} are duplicates: {example_row[:60]!r}.",
            "the corpus",
            0.9 if duplicates > TWICE * max(1, read) else 0.6,
            "Remove duplicates before splitting: they are memorized, and may be in both training and validation data.",
        )


def is_sentence(line: str) -> bool:
    return len(line.strip()) >= LENGTH and sum(map(str.isalpha, line)) >= LETTERS


def find_unreadable(subject: Subject) -> Iterator[Finding]:
    """Findings about characters that were replaced when the text was decoded."""
    rows = [line for lines in subject.originals.values() for line in lines]
    rows = rows or [*(subject.texts or ()), *(side for pair in subject.pairs or () for side in pair)]
    bad = [row for row in rows if "\ufffd" in row]
    if len(bad) > LOST * len(rows):
        yield Finding(
            "lines",
            f"{len(bad):,} of {len(rows):,} lines contain U+FFFD, the mark of a lost character: "
            f"{bad[0].strip()[:40]!r}.",
            "the corpus",
            0.85,
            "Read the original files again with the right encoding.",
        )


def find_empty(empty: int, read: int) -> Iterator[Finding]:
    if empty > EMPTY * max(1, read):
        yield Finding(
            "lines",
            f"{empty:,} of {read:,} pairs are empty on one side.",
            "the corpus",
            0.9,
            "Check the columns, and look for lines missing on one side: the pairs after them may be misaligned.",
        )


CHECK = Check("lines", "lines are unique and readable", cheap=False, run=run, needs_model=False)
