"""Text survives:

round trip   decode(encode(x)) = x for byte-level kinds; for others encode(decode(encode(x))) = encode(x), and what
             comes back is x but for spaces, forms of letters (NFKC) and, where a tokenizer lowers all, case and accents
unknown      hardly any token of the corpus is <unk>
size         every number the tokenizer gives is one that the model knows
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer

LINES, LONGEST = 2000, 2000
LOST, UNKNOWN = 0.01, 0.02  # shares of lines, and of tokens, that are too many
WORDS = 0.1  # of words
FEW = 0.05  # capitals that a tokenizer which lowers may leave, in odd scripts
GONE = "\ufffd▁"  # what could not be read, and how some write a space
TRIED = ("こたつでみかんを食べる。", "I eat a mandarin at the kotatsu.", "x = 3.14; y[0] += 'é'")


def run(patient: Patient) -> Iterator[Finding]:
    for name, tokenizer in patient.tokenizers().items():
        if patient.model is not None:
            yield from sizes(tokenizer, name, patient.model.config)
        try:
            lines = spread(patient.written(name))
        except Skip:
            lines = list(TRIED) if tokenizer.byte_level else []
        yield from round_trip(tokenizer, name, lines)


def run_unknown(patient: Patient) -> Iterator[Finding]:
    for name, tokenizer in patient.tokenizers().items():
        yield from unknown(tokenizer, name, spread(patient.written(name)))


def spread(lines: Sequence[str]) -> list[str]:
    """Some of the lines, from all over the corpus."""
    return [line[:LONGEST] for line in lines[:: max(1, len(lines) // LINES)] if line.strip()]


def sizes(tokenizer: Tokenizer, name: str, config: ModelConfig) -> Iterator[Finding]:
    known = config.source_tokens if name.startswith("source") else config.vocabulary
    if tokenizer.size > known:
        yield Finding(
            "tokenizer",
            f"The tokenizer has {tokenizer.size:,} tokens and the model knows {known:,}.",
            name,
            0.99,
            "This tokenizer belongs to another model; open the one that the model was trained with.",
        )


def round_trip(tokenizer: Tokenizer, name: str, lines: list[str]) -> Iterator[Finding]:
    number = tokenizer.roles.unknown
    encoded = tokenizer.encode_batch(lines)
    # What became <unk> is lost, which is another finding.
    known = [(line, ids) for line, ids in zip(lines, encoded, strict=True) if number is None or number not in ids]
    decoded = tokenizer.decode_batch([ids for _, ids in known])
    if tokenizer.byte_level:
        lost = [line for (line, _), text in zip(known, decoded, strict=True) if text != line]
    else:
        again = tokenizer.encode_batch(decoded)
        lost = [line for (line, ids), other in zip(known, again, strict=True) if ids != other]
        lost = lost if len(lost) > LOST * len(known) else missing([line for line, _ in known], decoded)
    if len(lost) > LOST * max(1, len(known)):
        back = tokenizer.decode(tokenizer.encode(lost[0]))
        yield Finding(
            "tokenizer",
            f"{len(lost):,} of {len(known):,} lines do not come back: {lost[0][:40]!r} → {back[:40]!r}.",
            name,
            0.95,
            "Look at the normalizer and the decoder: what one takes off, the other must put back.",
        )


def missing(lines: list[str], decoded: list[str]) -> list[str]:
    """Lines of which something is gone that no usual normalizer takes off."""
    before, after = (sum(map(str.isupper, "".join(texts))) for texts in (lines, decoded))
    lowers = after <= FEW * before
    pairs = zip(lines, decoded, strict=True)
    return [line for line, text in pairs if bare(line, lowers=lowers) != bare(text, lowers=lowers)]


def bare(text: str, *, lowers: bool) -> str:
    """Without spaces, control characters and what could not be read; in lower case and without accents if so asked."""
    text = unicodedata.normalize("NFKC", text)
    if lowers:
        accented = unicodedata.normalize("NFD", text.casefold())
        text = "".join(char for char in accented if unicodedata.category(char) != "Mn")
    return "".join(char for char in text if unicodedata.category(char)[0] not in "ZC" and char not in GONE)


def unknown(tokenizer: Tokenizer, name: str, lines: list[str]) -> Iterator[Finding]:
    number = tokenizer.roles.unknown
    if number is None:
        return
    encoded = tokenizer.encode_batch(lines)
    tokens, lost = sum(map(len, encoded)), sum(ids.count(number) for ids in encoded)
    if lost > UNKNOWN * max(1, tokens):
        bad = "".join(line for line, ids in zip(lines, encoded, strict=True) if number in ids)[:10_000]
        common = [char for char, _ in Counter(bad).most_common() if number in tokenizer.encode(char)][:8]
        seen = f", as of {' '.join(common)}" if common else ""
        # Whoever counts words chooses how many of them are known.
        chosen = tokenizer.kind == "word" and lost <= WORDS * tokens
        yield Finding(
            "unknown",
            f"{lost / tokens:.1%} of the tokens are <unk>{seen}.",
            name,
            0.4 if chosen else 0.9,
            "Train the tokenizer on this corpus, with a larger vocabulary, or choose a byte-level kind.",
        )


CHECK = Check("tokenizer", "texts come back from their numbers", cheap=True, run=run, of_model=False)
UNKNOWN_CHECK = Check("unknown", "the tokenizer knows its texts", cheap=True, run=run_unknown, of_model=False)
