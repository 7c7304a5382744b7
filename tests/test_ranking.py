"""The candidates of a beam search's step: the library's equal those of the plain formula."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chumoku.decoding import beam
from chumoku.decoding.beam import rank_plain
from chumoku.decoding.beam_rules import Numbers, Rules
from chumoku.decoding.engines.native import build, ranking
from chumoku.nn.plain import plain

pytestmark = pytest.mark.skipif(build.library() is None, reason=build.why_not() or "")


def pairs(candidates: Sequence[Numbers]) -> list[list[tuple[int, int]]]:
    """(row, token) of the candidates of each sentence."""
    _, rows, tokens = (part.tolist() for part in candidates)
    return [list(zip(*each, strict=True)) for each in zip(rows, tokens, strict=True)]


def stable_rank(
    logits: torch.Tensor, totals: Numbers, forbidden: Sequence[int], wanted: int
) -> list[list[tuple[int, int]]]:
    """(row, token) by log p, equal ones by row and token: every continuation sorted."""
    live = totals.shape[1]
    allowed = logits.index_fill(1, torch.tensor(forbidden, dtype=torch.int64), -math.inf)
    found = []
    for number, before in enumerate(totals):
        rows = slice(number * live, (number + 1) * live)
        ordered = allowed[rows].sort(dim=1, descending=True, stable=True)
        width = min(wanted, logits.shape[1])
        sums = ordered.values[:, :width] - logits[rows].logsumexp(1, keepdim=True) + torch.from_numpy(before)[:, None]
        order = sums.flatten().sort(descending=True, stable=True).indices[:wanted].tolist()
        tokens = ordered.indices[:, :width].flatten()
        found.append([(number * live + place // width, int(tokens[place])) for place in order])
    return found


@given(st.integers(1, 5), st.integers(1, 3), st.integers(2, 311), st.integers(1, 13), st.integers(0, 999))
def test_the_library_ranks_as_the_formula(sentences: int, live: int, vocabulary: int, wanted: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(sentences * live, vocabulary, generator=random) * 7
    totals = (-9 * torch.rand(sentences, live, generator=random)).numpy()
    forbidden = torch.randperm(vocabulary, generator=random)[: vocabulary // 3].sort().values.tolist()
    before = logits.clone()
    found, expected = (rank(logits, totals, forbidden, wanted) for rank in (ranking.rank, rank_plain))
    assert torch.equal(logits, before)
    likely = np.isfinite(expected.totals)  # those that are not come last
    assert all(
        ours[: flags.sum()] == plainly[: flags.sum()]
        for ours, plainly, flags in zip(pairs(found), pairs(expected), likely, strict=True)
    )
    assert found[0] == pytest.approx(expected.totals, rel=1e-5, abs=1e-5)


@given(st.integers(1, 3), st.integers(65, 311), st.integers(0, 999))
def test_equal_logits_are_ranked_by_row_and_token(sentences: int, vocabulary: int, seed: int) -> None:
    logits = torch.randint(-2, 3, (2 * sentences, vocabulary), generator=torch.Generator().manual_seed(seed)).float()
    logits[1::2] = logits[::2]  # so that two rows have the same normalizer
    totals, forbidden = np.full((sentences, 2), -3.0, dtype=np.float32), [5, 61]
    found = ranking.rank(logits, totals, forbidden, 11)
    assert pairs(found) == stable_rank(logits, totals, forbidden, 11)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(odd: float) -> None:
    """A row that has no distribution has no finite log p, and others keep theirs."""
    logits = torch.randn(3, 101, generator=torch.Generator().manual_seed(7))
    logits[1, :: 1 if odd == -math.inf else 13] = odd
    each_alone = np.full((3, 1), -2.0)
    alone = [ranking.rank(logits[row : row + 1], each_alone[:1], [], 7)[2][0].tolist() for row in range(3)]
    totals, _, tokens = ranking.rank(logits, each_alone, [], 7)
    assert np.isfinite(totals).tolist() == [[row != 1] * 7 for row in range(3)]
    assert tokens.tolist() == alone
    first = [rank(logits, each_alone.T, [], 7)[0][0, 0] for rank in (ranking.rank, rank_plain)]
    assert math.isnan(first[0]) == math.isnan(first[1])


def test_plain_uses_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "rank", lambda *given: pytest.fail("the library was called"))
    rules = Rules(end=3, beam=2, best=1, length_penalty=1.0, forbidden=[], limits=[5])
    with plain():
        assert len(beam.rank_candidates(torch.randn(1, 17), np.zeros((1, 1)), rules, length=1).tokens[0]) == 4
    assert len(beam.rank_candidates(torch.randn(1, 17).double(), np.zeros((1, 1)), rules, length=1).tokens[0]) == 4
