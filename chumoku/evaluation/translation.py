"""Translation scores by sacrebleu, with its signatures: two scores are comparable only if their signatures are equal.

    BLEU   precision of word sequences of length 1 to 4, with a penalty for brevity
    chrF   F-score of letter sequences of length 1 to 6

The interval of BLEU is sacrebleu's bootstrap: in 95 of 100 test sets drawn like this one, the score lies within it. Two
systems are compared by its paired bootstrap: both are scored on the same drawn test sets.
Japanese is split into words before BLEU (MeCab, the extra `ja`); another word splitter gives another score.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from chumoku.errors import MissingExtraError, UsageError, pluralize

POOR = 5.0  # below this BLEU, swapped files are suspected
MARGIN = 0.1  # of cosine similarity, to decide that two texts have the same language
COMPARED = 1000  # sentences used to compare languages
RESAMPLED = 1000  # test sets drawn for the interval
WORD_SPLITTERS = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}


@dataclass(frozen=True)
class TranslationScore:
    bleu: float
    bleu_interval: tuple[float, float]  # 95 %
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

    _check_lengths(translations, references)
    bleu, chrf = open_bleu(language, tokenized), sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(list(translations), [list(references)], n_bootstrap=RESAMPLED)
    chrf_score = chrf.corpus_score(list(translations), [list(references)]).score
    signature = str(bleu.get_signature())
    drawn = json.loads(bleu_score.format(width=2, signature=signature, is_json=True))
    # If all test sets have the same score, sacrebleu leaves these numbers out.
    middle, margin = float(drawn.get("confidence_mean", bleu_score.score)), float(drawn.get("confidence_var", 0))
    interval = (round(middle - margin, 2), round(middle + margin, 2))
    return TranslationScore(
        bleu_score.score, interval, chrf_score, signature, str(chrf.get_signature()), len(translations)
    )


def compare_bleu(
    systems: Sequence[Sequence[str]], references: Sequence[str], *, language: str = "en", tokenized: bool = False
) -> list[BleuComparison]:
    """sacrebleu's paired bootstrap of BLEU: each system but the first, compared with the first."""
    from sacrebleu.significance import PairedTest

    for translations in systems:
        _check_lengths(translations, references)
    named: list[tuple[str, Sequence[str]]] = [(str(number), list(one)) for number, one in enumerate(systems)]
    bleu = open_bleu(language, tokenized)
    test = PairedTest(named, {"BLEU": bleu}, [list(references)], test_type="bs", n_samples=RESAMPLED)
    found: list[Any] = test()[1]["BLEU"]
    differences = [one.score - found[0].score for one in found[1:]]
    # For equal systems sacrebleu's p-value is the smallest possible one, because no draw differs more than they do.
    return [
        BleuComparison(difference, float(one.p_value) if difference else 1.0)
        for difference, one in zip(differences, found[1:], strict=True)
    ]


class BleuComparison(NamedTuple):
    difference: float  # BLEU − BLEU of the first system
    p_value: float


def _check_lengths(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references):
        raise UsageError(
            f"{pluralize(len(translations), 'translation')} cannot be scored against "
            f"{pluralize(len(references), 'reference')}."
        )
    if not translations:
        raise UsageError("There are no translations to score.")


def detect_language(references: Sequence[str]) -> str:
    """The language of references that `score_translations` needs: "ja" for Japanese, or else "en"."""
    from chumoku.text.japanese import share_of_japanese

    return "ja" if share_of_japanese("".join(references[:1000])) > 0.1 else "en"


def open_bleu(language: str, tokenized: bool = False) -> Any:
    """sacrebleu's BLEU; raises a MissingExtraError if the splitter of the language's words is not installed."""
    import sacrebleu

    splitter = "none" if tokenized else WORD_SPLITTERS.get(language, "13a")
    try:
        return sacrebleu.BLEU(tokenize=splitter)
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"Scoring the language '{language}' needs a tokenizer. Install it with: pip install 'chumoku[ja]'."
        ) from error


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
