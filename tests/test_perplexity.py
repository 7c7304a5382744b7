"""Perplexity and bits per byte equal the formula, token by token, for any windows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import chumoku
from chumoku.errors import UsageError
from chumoku.evaluation.perplexity import score_text
from chumoku.evaluation.predictions import windows
from chumoku.models.model import Model
from chumoku.text import Tokenizer, train


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train(["abcdefghij klmn"], kind="byte")


def model_for(tokenizer: Tokenizer, kind: str = "decoder", context: int = 11) -> Model:
    return chumoku.build(chumoku.preset(f"tiny-{kind}", vocabulary=tokenizer.size, context=context, layers=1), seed=3)


def test_a_short_text_is_its_formula(letters: Tokenizer) -> None:
    model, text = model_for(letters), "abc de"
    score = score_text(model, [text], tokenizer=letters)
    end = letters.roles.end
    ids = [end, *letters.encode(text), end]
    with torch.inference_mode():
        logs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    expected = -sum(float(logs[place, token]) for place, token in enumerate(ids[1:]))
    assert score.loss * score.tokens == pytest.approx(expected, rel=1e-5)
    assert (score.tokens, score.bytes) == (7, 6)
    assert score.perplexity == pytest.approx(math.exp(expected / 7), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(expected / math.log(2) / 6, rel=1e-5)


@given(length=st.integers(2, 97), context=st.integers(1, 23))
def test_windows_cover_every_token_once(length: int, context: int) -> None:
    seen = []
    for inputs, labels, new in windows(range(length), context):
        assert torch.equal(inputs + 1, labels)
        assert inputs.shape[1] <= context
        seen += labels[:, -new:].flatten().tolist()
        if seen[0] < int(labels[0, 0]):
            assert int(labels[0, -new]) - int(inputs[0, 0]) >= min(context, length - 1) - max(1, context // 2)
    assert seen == list(range(1, length))


def test_a_long_text_is_scored_whole(letters: Tokenizer) -> None:
    model = model_for(letters)
    score = score_text(model, ["ab" * 40, "c"], tokenizer=letters)
    assert (score.tokens, score.bytes) == (83, 81)


def test_encoders_guess_and_translators_do_not(letters: Tokenizer) -> None:
    reports: list[int] = []
    score = score_text(
        model_for(letters, "encoder"),
        ["abcdefg" * 20],
        tokenizer=letters,
        progress=lambda step, tokens, unit: reports.append(tokens),
    )
    assert 5 < score.tokens < 50
    assert score.bits_per_byte is None
    assert len(reports) > 1, "a long text reports more than once"
    assert reports == sorted(reports)
    assert reports[-1] == score.tokens
    assert score == score_text(model_for(letters, "encoder"), ["abcdefg" * 20], tokenizer=letters)
    with pytest.raises(UsageError, match="scored on pairs"):
        score_text(model_for(letters, "encoder-decoder"), ["a"], tokenizer=letters)
    with pytest.raises(UsageError, match="no token"):
        score_text(model_for(letters), [], tokenizer=letters)
    with pytest.raises(UsageError, match="Every text is empty"):
        score_text(model_for(letters), ["", ""], tokenizer=letters)
