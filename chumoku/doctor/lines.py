"""Lines say something once:  few are duplicates of others, and few are empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.patient import Patient

TWICE, EMPTY = 0.05, 0.01
SAYS = 40  # letters from which on a line of a text should not come again


def run(patient: Patient) -> Iterator[Finding]:
    if patient.pairs is not None:
        rows = [f"{pair.source}\t{pair.target}" for pair in patient.pairs]
        empty = sum(not (pair.source.strip() and pair.target.strip()) for pair in patient.pairs)
        read = len(rows) + sum(patient.dropped.values())
        yield from told(rows, read, patient.dropped.get("duplicate", 0), "pairs")
        yield from holes(empty + patient.dropped.get("empty", 0), read)
    elif patient.texts is not None:
        rows = [line for line in patient.texts if len(line.strip()) >= SAYS]
        yield from told(rows, len(rows), 0, "lines")
    else:
        raise Skip("there is no corpus")


def told(rows: Sequence[str], read: int, dropped: int, what: str) -> Iterator[Finding]:
    seen: set[str] = set()
    again = next((row for row in rows if row in seen or seen.add(row)), "")  # type: ignore[func-returns-value]
    twice = len(rows) - len(set(rows))
    if twice + dropped > TWICE * max(1, read):
        taken = f" ({dropped:,} of them were taken out)" if dropped else ""
        example = f": {again[:60]!r}" if again else ""
        yield Finding(
            "lines",
            f"{twice + dropped:,} of {read:,} {what} stand there more than once{taken}{example}.",
            "the corpus",
            0.9 if twice > TWICE * max(1, read) else 0.6,
            "Take duplicates out before dividing: what comes again is learnt by heart, and may stand on both sides.",
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
