"""Translation scores by sacrebleu, with its signature: two numbers compare only when their signatures agree.

    BLEU   precision of word sequences of length 1 to 4, with a penalty for brevity
    chrF   F-score of letter sequences of length 1 to 6

Japanese is cut into words before BLEU (MeCab, the extra `ja`); where words are cut otherwise, the number is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from chumoku.errors import MissingExtraError, UsageError

CUTTERS = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}


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
    translations: Sequence[str], references: Sequence[str], *, language: str = "en", tokenised: bool = False
) -> TranslationScore:
    """Score translations into `language`. `tokenised` texts are already cut into words by spaces."""
    import sacrebleu

    if len(translations) != len(references):
        raise UsageError(f"{len(translations)} translations cannot be scored against {len(references)} references.")
    if not translations:
        raise UsageError("There are no translations to score.")
    cutter = "none" if tokenised else CUTTERS.get(language, "13a")
    try:
        bleu = sacrebleu.BLEU(tokenize=cutter)
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"Scoring the language '{language}' needs a tokeniser. Install it with: pip install 'chumoku[ja]'."
        ) from error
    chrf = sacrebleu.CHRF()
    bleu_score = bleu.corpus_score(list(translations), [list(references)]).score
    chrf_score = chrf.corpus_score(list(translations), [list(references)]).score
    return TranslationScore(
        bleu_score, chrf_score, str(bleu.get_signature()), str(chrf.get_signature()), len(translations)
    )
