"""Translation scores by sacrebleu, with its signatures: two scores are comparable only if their signatures are equal.

    BLEU   precision of word sequences of length 1 to 4, with a penalty for brevity
    chrF   F-score of letter sequences of length 1 to 6

Japanese is split into words before BLEU (MeCab, the extra `ja`); another word splitter gives another score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from chumoku.errors import MissingExtraError, UsageError, pluralize

POOR = 5.0  # below this BLEU, swapped files are suspected
MARGIN = 0.1  # of cosine similarity, to decide that two texts have the same language
COMPARED = 1000  # sentences used to compare languages
WORD_SPLITTERS = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}


@dataclass(frozen=True)
class TranslationScore:
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def as_dict(self) -> dict[str, float | str | int]:
        return asdict(self)


def score_translations(
    translations: Sequence[str], references: Sequence[str], *, language: str = "en", tokenized: bool = False
) -> TranslationScore:
    """BLEU and chrF of translations into `language`. `tokenized` texts are already split into words by spaces."""
    import sacrebleu

    if len(translations) != len(references):
        raise UsageError(
            f"{pluralize(len(translations), 'translation')} cannot be scored against "
            f"{pluralize(len(references), 'reference')}."
        )
    if not translations:
        raise UsageError("There are no translations to score.")
    splitter = "none" if tokenized else WORD_SPLITTERS.get(language, "13a")
    try:
        bleu = sacrebleu.BLEU(tokenize=splitter)
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"Scoring the language '{language}' needs a tokenizer. Install it with: pip install 'chumoku[ja]'."
        ) from error
    chrf = sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(list(translations), [list(references)]).score
    chrf_score = chrf.corpus_score(list(translations), [list(references)]).score
    return TranslationScore(
        bleu_score, chrf_score, str(bleu.get_signature()), str(chrf.get_signature()), len(translations)
    )


def seems_swapped(translations: Sequence[str], *, sources: Sequence[str], references: Sequence[str]) -> bool:
    """Whether the translations seem to be in the language of the sources, not in that of the references.

    Languages are compared by their frequencies of character trigrams.
    """
    translation, source, reference = (_trigrams(texts[:COMPARED]) for texts in (translations, sources, references))
    return _cosine(translation, source) > _cosine(translation, reference) + MARGIN


def _trigrams(texts: Sequence[str]) -> Counter[str]:
    lines = (f" {text.lower()} " for text in texts)
    return Counter(line[place : place + 3] for line in lines for place in range(len(line) - 2))


def _cosine(a: Counter[str], b: Counter[str]) -> float:
    product = sum(number * b[key] for key, number in a.items())
    lengths = math.hypot(*a.values()) * math.hypot(*b.values())
    return product / lengths if lengths else 0.0
