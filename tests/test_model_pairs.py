"""Several models on the same data: blocks, documents, and Holm over the pairs."""

from __future__ import annotations

import math

import pytest
import torch

from chumoku.errors import UsageError
from chumoku.evaluation.model_pairs import BLOCK, compare_losses, compare_translations
from chumoku.evaluation.paired import paired_p_value, paired_t
from chumoku.evaluation.perplexity import DocumentLoss, summarize_losses


def document(losses: torch.Tensor, ids: list[int] | None = None, size: int = 101) -> DocumentLoss:
    return DocumentLoss(ids or list(range(len(losses) + 1)), torch.arange(1, len(losses) + 1), losses, size)


def draw(seed: int, tokens: int = 5 * BLOCK + 17, shift: float = 0.0) -> torch.Tensor:
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed)).double() + shift


def test_equal_tokens_are_compared_in_blocks() -> None:
    noise = 0.05 * draw(3)
    one, other = [document(draw(0))], [document(draw(0, shift=0.3) + noise)]
    (pair,) = compare_losses({"bad": other, "good": one}, whole_text=True)
    assert (pair.first, pair.second, pair.better, pair.unit) == ("good", "bad", True, "nats per token")
    assert pair.interval is not None
    assert pair.interval.count == 6
    total = [summarize_losses(side, whole_text=True).loss for side in (other, one)]
    assert pair.difference == pytest.approx(total[0] - total[1])
    parts = [float((noise + 0.3)[start : start + BLOCK].mean()) for start in range(0, len(noise), BLOCK)]
    weights = [BLOCK] * 5 + [17]
    assert pair.interval.low == pytest.approx(paired_t(parts, [0.0] * 6, weights=weights).low)
    assert pair.p_value == pytest.approx(paired_p_value(parts, [0.0] * 6, weights=weights))


def test_models_that_differ_by_chance_cannot_be_told_apart() -> None:
    pairs = compare_losses({name: [document(draw(seed))] for seed, name in enumerate("abc")}, whole_text=True)
    assert len(pairs) == 3
    assert not any(pair.better for pair in pairs)


def test_other_tokenizers_are_compared_by_documents() -> None:
    sizes = (101, 53, 211)
    one = [document(draw(seed, 7 * size), size=size) for seed, size in enumerate(sizes)]
    other = [document(draw(seed, 3 * size, shift=2.0), ids=[1], size=size) for seed, size in enumerate(sizes)]
    (pair,) = compare_losses({"a": one, "b": other}, whole_text=True)
    assert (pair.unit, pair.interval is not None and pair.interval.count) == ("bits per byte", 3)
    bits = [sum(float(part.losses.sum()) for part in side) / math.log(2) / sum(sizes) for side in (one, other)]
    assert pair.difference == pytest.approx(abs(bits[0] - bits[1]))
    with pytest.raises(UsageError, match="two files or more"):
        compare_losses({"a": one[:1], "b": other[:1]}, whole_text=True)
    with pytest.raises(UsageError, match="masked tokens"):
        compare_losses({"a": one, "b": other}, whole_text=False)
    with pytest.raises(UsageError, match="more than 128 tokens"):
        compare_losses({"a": [document(draw(0, 5))], "b": [document(draw(1, 5))]}, whole_text=True)


def test_translations_are_compared_with_the_first() -> None:
    right = [f"the cat sat on the mat number {number} today" for number in range(17)]
    texts = {"base": [line[::-1] for line in right], "same": [line[::-1] for line in right], "good": right}
    same, good = compare_translations(texts, right, language="en")
    assert (good.first, good.second, good.better) == ("good", "base", True)
    assert good.difference > 90
    assert not same.better
