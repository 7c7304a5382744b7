"""Every test can fail: it has an assertion of its own, or calls a function of the tests that has one.

A name that a test calls is a function of its own file, or else one that the file imports.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

FILES = sorted(Path(__file__).parent.glob("*.py"))
RAISING = ("pytest.raises", "pytest.warns", "pytest.fail")


class Function(NamedTuple):
    name: str  # module.function
    asserts: bool  # in its own body
    calls: set[str]  # functions of the tests as module.function, others as written


def read_functions(module: str, sources: Mapping[str, str]) -> list[Function]:
    """The tests of a file and the other functions at its top level."""
    tree = ast.parse(sources[module])
    nodes = list(ast.walk(tree))
    names = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in sources:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    names |= {node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [
        read_function(module, node, names)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and (node in tree.body or node.name.startswith("test_"))
    ]


def read_function(module: str, function: ast.FunctionDef, names: Mapping[str, str]) -> Function:
    nodes = list(ast.walk(function))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    asserts = any(isinstance(node, ast.Assert) for node in nodes) or any(
        name in RAISING or (name not in names and name.rpartition(".")[2].startswith("assert_")) for name in called
    )
    return Function(f"{module}.{function.name}", asserts, {names.get(name, name) for name in called})


def find_tests_without_assertions(sources: Mapping[str, str]) -> list[str]:
    """The tests, as module.test, of these files (module → source)."""
    found = [function for module in sources for function in read_functions(module, sources)]
    asserting = {one.name for one in found if one.asserts}
    while more := {one.name for one in found if one.calls & asserting} - asserting:
        asserting |= more
    return [one.name for one in found if ".test_" in one.name and one.name not in asserting]


def test_every_test_has_an_assertion() -> None:
    assert find_tests_without_assertions({file.stem: file.read_text("utf-8") for file in FILES}) == []


HELPERS = "def f(): return 1\ndef g(): assert 1\ndef h(): g()"


@pytest.mark.parametrize(
    ("source", "finds"),
    [
        ("def test_a(): f()", True),
        ("def test_a(): f()\ndef f(): return 1", True),
        ("def test_a(): f()\ndef f(): g()\ndef g(): assert 1", False),
        ("def test_a():\n with pytest.raises(E): f()", False),
        ("def test_a(): visited.assert_clean()", False),
        ("from torch.testing import assert_close\ndef test_a(): assert_close()", False),
        ("def test_a(): assert_clean()\ndef assert_clean(): return 1", True),
        ("def test_a(): visited.f()\ndef f(): assert 1", True),
        ("def test_a(): f()\nclass A:\n def f(self): assert 1", True),
        ("class A:\n def test_a(self): f()", True),
        ("def test_a(): g()", True),
        ("from helpers import g\ndef test_a(): g()", False),
        ("from helpers import h as f\ndef test_a(): f()", False),
        ("from helpers import f\ndef test_a(): f()", True),
        ("from helpers import g\ndef test_a(): g()\ndef g(): return 1", True),
        ("import helpers\ndef test_a(): helpers.g()", False),
    ],
)
def test_missing_assertions_are_found(source: str, finds: bool) -> None:
    assert find_tests_without_assertions({"tests": source, "helpers": HELPERS}) == ["tests.test_a"] * finds
