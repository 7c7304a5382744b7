"""Lines say something once:  few are duplicates of others, few are empty, and none has lost its letters (U+FFFD).

What stands in every document (a prompt, a rule) is no duplicate of a text: each line counts as few times too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient

TWICE, EMPTY = 0.05, 0.01
SAYS, LETTERS = 40, 20  # how long a line of a text is that should not come again, and its letters
MOST = 3  # times too many that one line of a text counts
LOST = 0.005


def run(patient: Patient) -> Iterator[Finding]:
    yield from garbled(patient)
    if patient.pairs is not None:
        rows = [f"{pair.source}\t{pair.target}" for pair in patient.pairs]
        empty = sum(not (pair.source.strip() and pair.target.strip()) for pair in patient.pairs)
        read = len(rows) + sum(patient.dropped.values())
        yield from told(rows, read, patient.dropped.get("duplicate", 0), "pairs")
        yield from holes(empty + patient.dropped.get("empty", 0), read)
    elif patient.texts is not None:
        rows = [line for line in patient.texts if says(line)]
        yield from told(rows, len(rows), 0, "lines", most=MOST)
    else:
        raise Skip("there is no corpus")


def told(rows: Sequence[str], read: int, dropped: int, what: str, *, most: int = 1 << 60) -> Iterator[Finding]:
    seen: set[str] = set()
    again = next((row for row in rows if row in seen or seen.add(row)), "")  # type: ignore[func-returns-value]
    twice = sum(min(times - 1, most) for times in Counter(rows).values())
    if twice + dropped > TWICE * max(1, read):
        taken = f" ({dropped:,} of them were taken out)" if dropped else ""
        example = f": {again[:60]!r}" if again else ""
        yield Finding(
            "lines",
            f"{twice + dropped:,} of {read:,} {what} stand there more than once{taken}{example}.",
            "the corpus",
            0.9 if twice > TWICE * max(1, read) else 0.6,
            "Take duplicates out before dividing: what comes again is learned by heart, and may stand on both sides.",
        )


def says(line: str) -> bool:
    return len(line.strip()) >= SAYS and sum(map(str.isalpha, line)) >= LETTERS


def garbled(patient: Patient) -> Iterator[Finding]:
    """Letters that someone could not read, before us, and replaced."""
    rows = [line for lines in patient.originals.values() for line in lines]
    rows = rows or [*(patient.texts or ()), *(side for pair in patient.pairs or () for side in pair)]
    bad = [row for row in rows if "\ufffd" in row]
    if len(bad) > LOST * len(rows):
        yield Finding(
            "lines",
            f"{len(bad):,} of {len(rows):,} lines hold U+FFFD, which stands for a letter that was lost: "
            f"{bad[0].strip()[:40]!r}.",
            "the corpus",
            0.85,
            "Read the files again in the encoding that they were written in.",
        )


def holes(empty: int, read: int) -> Iterator[Finding]:
    if empty > EMPTY * max(1, read):
        yield Finding(
            "lines",
            f"{empty:,} of {read:,} pairs have nothing on one side.",
            "the corpus",
            0.9,
            "Look at the columns, and at lines that were lost on one side: after them nothing may be aligned.",
        )


CHECK = Check("lines", "lines say something, once", cheap=False, run=run, of_model=False)
