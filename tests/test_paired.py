"""Paired statistics against published values and against their own definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chumoku.errors import UsageError
from chumoku.evaluation.paired import (
    holm,
    paired_bootstrap,
    paired_p_value,
    paired_t,
    sign_test,
    student_quantile,
    student_tails,
)

# Additional hours of sleep of ten patients with two drugs (Student 1908, table in section IX; R's data set "sleep").
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


@pytest.mark.parametrize(
    ("confidence", "degrees", "published"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.99, 4, 4.604),
        (0.95, 9, 2.262),
        (0.999, 10, 4.587),
        (0.9, 29, 1.699),
        (0.95, 120, 1.980),
        (0.95, 100_003, 1.960),
    ],
)
def test_students_quantiles_are_those_of_the_tables(confidence: float, degrees: int, published: float) -> None:
    assert round(student_quantile(confidence, degrees), 3) == published
    assert student_tails(student_quantile(confidence, degrees), degrees) == pytest.approx(1 - confidence)


def test_paired_t_gives_the_published_result() -> None:
    """R: t.test(drug1, drug2, paired = TRUE) gives t = −4.0621, p = 0.002833, [−2.4598858, −0.7001142]."""
    found = paired_t(DRUG_1, DRUG_2)
    assert (found.difference, found.low, found.high) == pytest.approx((-1.58, -2.4598858, -0.7001142))
    assert found.excludes_zero
    assert found.count == 10
    assert paired_p_value(DRUG_1, DRUG_2) == pytest.approx(0.002833, abs=1e-6)


def test_weights_count_tokens_of_documents() -> None:
    """The weighted mean is the loss per token, and equal weights change nothing."""
    found = paired_t([2.0, 3.0, 5.0], [1.0, 1.0, 1.0], weights=[7, 11, 13])
    assert found.difference == pytest.approx((7 * 1 + 11 * 2 + 13 * 4) / 31)
    assert paired_t(DRUG_1, DRUG_2, weights=[3] * 10).low == pytest.approx(paired_t(DRUG_1, DRUG_2).low)


def test_the_bootstrap_agrees_with_t_on_many_units() -> None:
    random = np.random.default_rng(0)
    first, weights = random.normal(0.3, 1, 211), random.integers(1, 23, 211)
    t, drawn = (method(first, np.zeros(211), weights=weights) for method in (paired_t, paired_bootstrap))
    assert drawn.difference == t.difference
    assert (drawn.low, drawn.high) == pytest.approx((t.low, t.high), abs=0.03)
    assert drawn == paired_bootstrap(first, np.zeros(211), weights=weights)


def test_holm_gives_the_published_result() -> None:
    """R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") gives 0.03, 0.06, 0.06, 0.02."""
    tests = holm([0.01, 0.04, 0.03, 0.005], 0.05)
    assert [test.adjusted for test in tests] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [test.rejected for test in tests] == [True, False, False, True]
    assert [test.level for test in tests] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2, 0.05 / 4])


def test_sign_test() -> None:
    assert sign_test(5, 0) == 2 / 32
    assert sign_test(9, 1) == pytest.approx(22 / 1024)
    assert sign_test(3, 3) == sign_test(0, 0) == 1.0


def test_equal_values_differ_by_nothing() -> None:
    found = paired_t([2.0, 3.0], [2.0, 3.0])
    assert (found.difference, found.low, found.high) == (0, 0, 0)
    assert not found.excludes_zero
    assert paired_p_value([2.0, 3.0], [2.0, 3.0]) == 1.0


@pytest.mark.parametrize(
    ("first", "second", "weights", "says"),
    [
        ([1.0], [2.0], None, "two pairs"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], None, "equal lengths"),
        ([1.0, math.nan], [1.0, 2.0], None, "finite"),
        ([1.0, 2.0], [1.0, 2.0], [1.0, 0.0], "above 0"),
    ],
)
def test_values_that_are_no_pairs_are_refused(
    first: list[float], second: list[float], weights: list[float] | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        paired_t(first, second, weights=weights)
