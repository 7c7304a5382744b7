"""The candidates of a beam search's step: the library's equal those of the plain formula."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chumoku.decoding import beam
from chumoku.decoding.beam import rank_plain
from chumoku.decoding.beam_rules import Rules
from chumoku.decoding.engines.native import build, ranking
from chumoku.nn.plain import plain

pytestmark = pytest.mark.skipif(build.library() is None, reason=build.why_not() or "")


def stable_rank(
    logits: torch.Tensor, totals: Sequence[Sequence[float]], forbidden: Sequence[int], wanted: int
) -> list[list[tuple[int, int]]]:
    """(row, token) by log p, equal ones by row and token: every continuation sorted."""
    live = len(totals[0])
    allowed = logits.index_fill(1, torch.tensor(forbidden, dtype=torch.int64), -math.inf)
    found = []
    for number, before in enumerate(totals):
        rows = slice(number * live, (number + 1) * live)
        ordered = allowed[rows].sort(dim=1, descending=True, stable=True)
        width = min(wanted, logits.shape[1])
        sums = ordered.values[:, :width] - logits[rows].logsumexp(1, keepdim=True) + torch.tensor(before)[:, None]
        order = sums.flatten().sort(descending=True, stable=True).indices[:wanted].tolist()
        tokens = ordered.indices[:, :width].flatten()
        found.append([(number * live + place // width, int(tokens[place])) for place in order])
    return found


@given(st.integers(1, 5), st.integers(1, 3), st.integers(2, 311), st.integers(1, 13), st.integers(0, 999))
def test_the_library_ranks_as_the_formula(sentences: int, live: int, vocabulary: int, wanted: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(sentences * live, vocabulary, generator=random) * 7
    totals = (-9 * torch.rand(sentences, live, generator=random)).tolist()
    forbidden = torch.randperm(vocabulary, generator=random)[: vocabulary // 3].sort().values.tolist()
    before = logits.clone()
    found, expected = (rank(logits, totals, forbidden, wanted) for rank in (ranking.rank, rank_plain))
    assert torch.equal(logits, before)
    for ours, plainly in zip(found, expected, strict=True):
        likely = [one for one in plainly if one[0] > -math.inf]
        assert [one[1:] for one in ours][: len(likely)] == [one[1:] for one in likely]
        assert [one[0] for one in ours] == pytest.approx([one[0] for one in plainly], rel=1e-5, abs=1e-5)


@given(st.integers(1, 3), st.integers(65, 311), st.integers(0, 999))
def test_equal_logits_are_ranked_by_row_and_token(sentences: int, vocabulary: int, seed: int) -> None:
    logits = torch.randint(-2, 3, (2 * sentences, vocabulary), generator=torch.Generator().manual_seed(seed)).float()
    logits[1::2] = logits[::2]  # so that two rows have the same normalizer
    totals, forbidden = [[-3.0, -3.0]] * sentences, [5, 61]
    found = ranking.rank(logits, totals, forbidden, 11)
    assert [[one[1:] for one in each] for each in found] == stable_rank(logits, totals, forbidden, 11)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(odd: float) -> None:
    """A row that has no distribution has no finite log p, and others keep theirs."""
    logits = torch.randn(3, 101, generator=torch.Generator().manual_seed(7))
    logits[1, :: 1 if odd == -math.inf else 13] = odd
    alone = [ranking.rank(logits[row : row + 1], [[-2.0]], [], 7)[0] for row in range(3)]
    for row, each in enumerate(ranking.rank(logits, [[-2.0]] * 3, [], 7)):
        assert [math.isfinite(one[0]) for one in each] == [row != 1] * 7
        assert [one[2] for one in each] == [one[2] for one in alone[row]]
    first = ranking.rank(logits, [[-2.0] * 3], [], 7)[0][0]
    assert math.isnan(first[0]) == math.isnan(rank_plain(logits, [[-2.0] * 3], [], 7)[0][0][0])


def test_plain_uses_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "rank", lambda *given: pytest.fail("the library was called"))
    rules = Rules(end=3, beam=2, best=1, length_penalty=1.0, forbidden=[], limits=[5])
    with plain():
        assert len(beam.rank_candidates(torch.randn(1, 17), [[0.0]], rules, length=1)[0]) == 4
    assert len(beam.rank_candidates(torch.randn(1, 17).double(), [[0.0]], rules, length=1)[0]) == 4
