"""Special tokens are not typed:  a "</s>" in a text is four letters, and no text should have one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.text import Tokenizer


def run(patient: Patient) -> Iterator[Finding]:
    for name, tokenizer in patient.tokenizers().items():
        if tokenizer.specials:
            yield from taken(tokenizer, name)
            yield from typed(patient, tokenizer, name)


def taken(tokenizer: Tokenizer, name: str) -> Iterator[Finding]:
    numbers = set(tokenizer.specials.values()) - {tokenizer.roles.unknown}
    wrong = [token for token in tokenizer.specials if numbers & set(tokenizer.encode(f"a {token} b"))]
    if wrong:
        yield Finding(
            "specials",
            f"{wrong[0]}, typed in a text, becomes the special token: whoever writes a text can end it.",
            name,
            0.95,
            "Encode texts of others with special=False.",
        )


def typed(patient: Patient, tokenizer: Tokenizer, name: str) -> Iterator[Finding]:
    pattern = re.compile("|".join(map(re.escape, tokenizer.specials)))
    try:
        lines = patient.lines(name)
    except Skip:
        return
    found = [line for line in lines if pattern.search(line)]
    if found:
        yield Finding(
            "specials",
            f"{len(found):,} of {len(lines):,} lines have a special token typed in them, which is read as letters: "
            f"{found[0].strip()[:60]!r}.",
            f"the corpus of the {name}",
            0.7,
            "Take them out; begin, end and padding are put around texts by the batches.",
        )


CHECK = Check("specials", "no special token is typed in a text", cheap=True, run=run, of_model=False)
