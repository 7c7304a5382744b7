from __future__ import annotations

import pytest

from chumoku.errors import UsageError
from chumoku.evaluation.translation import score_translations

JAPANESE = ["猫が好きです。", "こたつでみかんを食べる。", "昨日は雨が降っていました。"]
ENGLISH = ["I like cats very much.", "I eat a mandarin at the kotatsu.", "It was raining all day yesterday."]


@pytest.mark.parametrize(("texts", "language"), [(JAPANESE, "ja"), (ENGLISH, "en")])
def test_the_same_text_scores_a_hundred_and_another_nothing(texts: list[str], language: str) -> None:
    same = score_translations(texts, texts, language=language)
    assert (round(same.bleu, 6), round(same.chrf, 6), same.sentences) == (100, 100, 3)
    turned = score_translations(texts, texts[1:] + texts[:1], language=language)
    assert turned.bleu < 30


def test_the_signature_says_how_words_were_cut() -> None:
    assert "tok:ja-mecab" in score_translations(JAPANESE, JAPANESE, language="ja").bleu_signature
    assert "tok:13a" in score_translations(ENGLISH, ENGLISH).bleu_signature
    assert "tok:none" in score_translations(ENGLISH, ENGLISH, tokenized=True).bleu_signature
    assert "version:" in score_translations(ENGLISH, ENGLISH).chrf_signature


def test_japanese_cut_as_english_is_another_number() -> None:
    """The reason for the default: without words, a Japanese sentence is one word or two."""
    others = ["猫がとても好きです。", "こたつで魚を食べる。", "昨日は雪が降っていました。"]
    cut = score_translations(others, JAPANESE, language="ja").bleu
    uncut = score_translations(others, JAPANESE, language="en").bleu
    assert cut > 30 > uncut


def test_invalid_comparisons_are_refused() -> None:
    with pytest.raises(UsageError, match="2 translations cannot be scored against 3 references"):
        score_translations(ENGLISH[:2], ENGLISH)
    with pytest.raises(UsageError, match="no translations to score"):
        score_translations([], [])


def test_the_interval_contains_the_score_and_is_wider_for_fewer_sentences():
    texts = [f"the number {number} is {number % 7} and {number % 11}" for number in range(211)]
    others = [text.replace(" 3", " four").replace("is 5", "was 5") for text in texts]
    widths = []
    for count in (211, 23):
        score = score_translations(others[:count], texts[:count])
        low, high = score.bleu_interval
        assert low < score.bleu < high
        widths.append(high - low)
    assert widths[1] > 1.5 * widths[0]
    assert score_translations(others, texts).bleu_interval == score_translations(others, texts).bleu_interval
