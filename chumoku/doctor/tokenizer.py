"""The tokenizer preserves text and fits the model:

round trip   decode(encode(x)) = x for byte-level kinds. For others encode(decode(encode(x))) = encode(x), and the
             decoded text is x up to spaces, NFKC forms and, if the tokenizer lowercases, case and accents
unknown      very few tokens of the corpus are <unk>
size         every token id is below the model's vocabulary size
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.models.config import ModelConfig
from chumoku.text import Tokenizer

LINES, LONGEST = 2000, 2000
LOST, UNKNOWN = 0.01, 0.02  # largest allowed shares of lines and of tokens
WORDS = 0.1  # largest allowed share of unknown words for a word tokenizer
FEW = 0.05  # share of capitals that a lowercasing tokenizer may keep, in rare scripts
IGNORED = "\ufffd▁"  # the replacement character, and SentencePiece's space
EXAMPLES = ("こたつでみかんを食べる。", "I eat a mandarin at the kotatsu.", "x = 3.14; y[0] += 'é'")


def run(subject: Subject) -> Iterator[Finding]:
    for name, tokenizer in subject.tokenizers().items():
        if subject.model is not None:
            yield from check_size(tokenizer, name, subject.model.config)
        try:
            lines = subsample(subject.original_lines(name))
        except Skip:
            lines = list(EXAMPLES) if tokenizer.byte_level else []
        yield from check_round_trip(tokenizer, name, lines)


def run_unknown(subject: Subject) -> Iterator[Finding]:
    for name, tokenizer in subject.tokenizers().items():
        yield from check_unknown(tokenizer, name, subsample(subject.original_lines(name)))


def subsample(lines: Sequence[str]) -> list[str]:
    """About LINES lines, spread evenly over the corpus."""
    return [line[:LONGEST] for line in lines[:: max(1, len(lines) // LINES)] if line.strip()]


def check_size(tokenizer: Tokenizer, name: str, config: ModelConfig) -> Iterator[Finding]:
    known = config.source_tokens if name.startswith("source") else config.vocabulary
    if tokenizer.size > known:
        yield Finding(
            "tokenizer",
            f"The tokenizer has {tokenizer.size:,} tokens, but the model's vocabulary has {known:,}.",
            name,
            0.99,
            "This tokenizer belongs to another model; use the one that the model was trained with.",
        )


def check_round_trip(tokenizer: Tokenizer, name: str, lines: list[str]) -> Iterator[Finding]:
    number = tokenizer.roles.unknown
    encoded = tokenizer.encode_batch(lines)
    # Lines with <unk> are reported by the check 'unknown'.
    known = [(line, ids) for line, ids in zip(lines, encoded, strict=True) if number is None or number not in ids]
    decoded = tokenizer.decode_batch([ids for _, ids in known])
    if tokenizer.byte_level:
        lost = [line for (line, _), text in zip(known, decoded, strict=True) if text != line]
    else:
        again = tokenizer.encode_batch(decoded)
        lost = [line for (line, ids), other in zip(known, again, strict=True) if ids != other]
        lost = lost if len(lost) > LOST * len(known) else find_lossy([line for line, _ in known], decoded)
    if len(lost) > LOST * max(1, len(known)):
        back = tokenizer.decode(tokenizer.encode(lost[0]))
        yield Finding(
            "tokenizer",
            f"{len(lost):,} of {len(known):,} lines change when encoded and decoded: {lost[0][:40]!r} → {back[:40]!r}.",
            name,
            0.95,
            "Check the normalizer and the decoder: the decoder must restore what the normalizer removes.",
        )


def find_lossy(lines: list[str], decoded: list[str]) -> list[str]:
    """The lines that lost something which common normalizers keep."""
    before, after = (sum(map(str.isupper, "".join(texts))) for texts in (lines, decoded))
    lowercase = after <= FEW * before
    pairs = zip(lines, decoded, strict=True)
    return [
        line for line, text in pairs if strip_text(line, lowercase=lowercase) != strip_text(text, lowercase=lowercase)
    ]


def strip_text(text: str, *, lowercase: bool) -> str:
    """The text without spaces, control and unreadable characters; if `lowercase`, without case and accents."""
    text = unicodedata.normalize("NFKC", text)
    if lowercase:
        accented = unicodedata.normalize("NFD", text.casefold())
        text = "".join(char for char in accented if unicodedata.category(char) != "Mn")
    return "".join(char for char in text if unicodedata.category(char)[0] not in "ZC" and char not in IGNORED)


def check_unknown(tokenizer: Tokenizer, name: str, lines: list[str]) -> Iterator[Finding]:
    number = tokenizer.roles.unknown
    if number is None:
        return
    encoded = tokenizer.encode_batch(lines)
    tokens, lost = sum(map(len, encoded)), sum(ids.count(number) for ids in encoded)
    if lost > UNKNOWN * max(1, tokens):
        bad = "".join(line for line, ids in zip(lines, encoded, strict=True) if number in ids)[:10_000]
        common = [char for char, _ in Counter(bad).most_common() if number in tokenizer.encode(char)][:8]
        # The vocabulary size of a word tokenizer is a choice, so some <unk> are expected.
        intended = tokenizer.kind == "word" and lost <= WORDS * tokens
        yield Finding(
            "unknown",
            f"{lost / tokens:.1%} of the tokens are <unk>, for example for {' '.join(common)}."
            if common
            else f"{lost / tokens:.1%} of the tokens are <unk>.",
            name,
            0.4 if intended else 0.9,
            "Train the tokenizer on this corpus, with a larger vocabulary, or choose a byte-level kind.",
        )


CHECK = Check("tokenizer", "encoding and decoding preserves text", cheap=True, run=run, needs_model=False)
UNKNOWN_CHECK = Check("unknown", "few tokens are <unk>", cheap=True, run=run_unknown, needs_model=False)
