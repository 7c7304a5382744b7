"""Every test can fail: it has an assertion of its own, or calls a function of the tests that has one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.glob("*.py"))
RAISING = ("pytest.raises", "pytest.warns", "pytest.fail")


def functions(source: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]


def asserts(function: ast.FunctionDef, asserting: set[str]) -> bool:
    """Whether a function has an assertion, or calls one of the `asserting` functions by its name."""
    nodes = list(ast.walk(function))
    called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    return any(isinstance(node, ast.Assert) for node in nodes) or any(
        name in RAISING or name in asserting or name.rpartition(".")[2].startswith("assert_") for name in called
    )


def find_tests_without_assertions(sources: Iterable[str]) -> list[str]:
    found = [function for source in sources for function in functions(source)]
    asserting: set[str] = set()
    while more := {one.name for one in found if asserts(one, asserting)} - asserting:
        asserting |= more
    return [one.name for one in found if one.name.startswith("test_") and one.name not in asserting]


def test_every_test_has_an_assertion() -> None:
    assert find_tests_without_assertions(file.read_text("utf-8") for file in FILES) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_a(): f()", ["test_a"]),
        ("def test_a(): f()\ndef f(): return 1", ["test_a"]),
        ("def test_a(): f()\ndef f(): g()\ndef g(): assert 1", []),
        ("def test_a():\n with pytest.raises(E): f()", []),
        ("def test_a(): visited.assert_clean()", []),
        ("def test_a(): visited.f()\ndef f(): assert 1", ["test_a"]),
    ],
)
def test_missing_assertions_are_found(source: str, expected: list[str]) -> None:
    assert find_tests_without_assertions([source]) == expected
