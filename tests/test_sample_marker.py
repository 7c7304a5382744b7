"""The marker `sample(n)`: make test runs n cases of a test, spread evenly, and make test-slow runs the others."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import conftest
import pytest

pytest_plugins = ["pytester"]

SETTINGS = Path(__file__).parent.parent / "pyproject.toml"
COUNTS = (1, 2, 5, 6, 7, 29, 30, 31)
SIZES = ((7,), (2, 3), (3, 2, 5))  # of each parametrize decorator


def write_test(name: str, count: int, sizes: tuple[int, ...]) -> str:
    arguments = "abc"[: len(sizes)]
    decorators = [f"@pytest.mark.parametrize('{one}', range({n}))" for one, n in zip(arguments, sizes, strict=True)]
    return "\n".join([f"@pytest.mark.sample({count})", *decorators, f"def {name}({', '.join(arguments)}): pass"])


def test_every_case_is_either_fast_or_slow(pytester: pytest.Pytester) -> None:
    choices = {f"test_{number}": choice for number, choice in enumerate(itertools.product(COUNTS, SIZES))}
    tests = [write_test(name, *choice) for name, choice in choices.items()]
    file = pytester.makepyfile("\n".join(["import pytest", *tests, "def test_without_marker(): pass"]))
    options = ("-c", SETTINGS, "-p", "no:cacheprovider", "-m", "not slow")
    record = pytester.inline_run(*options, file, plugins=[conftest])
    collected = [call.item.name for call in record.getcalls("pytest_itemcollected")]
    run = [report.nodeid.partition("::")[2] for report in record.listoutcomes()[0]]
    left_out = [item.name for call in record.getcalls("pytest_deselected") for item in call.items]
    assert "test_without_marker" in run
    for name, (count, sizes) in choices.items():
        cases, fast, slow = ([one for one in some if one.startswith(f"{name}[")] for some in (collected, run, left_out))
        assert len(set(cases)) == math.prod(sizes)
        assert sorted(fast + slow) == sorted(cases)
        assert len(fast) == min(count, len(cases))
        middles = [(number + 0.5) * len(cases) / len(fast) for number in range(len(fast))]
        assert list(map(cases.index, fast)) == pytest.approx(middles, abs=1), "spread evenly"
