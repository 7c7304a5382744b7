"""Special tokens do not come from text: the characters "</s>" are encoded as characters, and the data has none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.text import Tokenizer


def run(subject: Subject) -> Iterator[Finding]:
    for name, tokenizer in subject.tokenizers().items():
        if tokenizer.specials:
            yield from check_injection(tokenizer, name)
            yield from check_corpus(subject, tokenizer, name)


def check_injection(tokenizer: Tokenizer, name: str) -> Iterator[Finding]:
    numbers = set(tokenizer.specials.values()) - {tokenizer.roles.unknown}
    wrong = [token for token in tokenizer.specials if numbers & set(tokenizer.encode(f"a {token} b"))]
    if wrong:
        yield Finding(
            "specials",
            f"{wrong[0]} in a text is encoded as the special token, so any text can inject it.",
            name,
            0.95,
            "Encode untrusted text with special=False.",
        )


def check_corpus(subject: Subject, tokenizer: Tokenizer, name: str) -> Iterator[Finding]:
    pattern = re.compile("|".join(map(re.escape, tokenizer.specials)))
    try:
        lines = subject.lines(name)
    except Skip:
        return
    found = [line for line in lines if pattern.search(line)]
    if found:
        yield Finding(
            "specials",
            f"{len(found):,} of {len(lines):,} lines contain a special token, which is encoded as plain text: "
            f"{found[0].strip()[:60]!r}.",
            f"the corpus of the {name}",
            0.7,
            "Remove them; the batches add begin, end and padding themselves.",
        )


CHECK = Check("specials", "no text contains a special token", cheap=True, run=run, needs_model=False)
