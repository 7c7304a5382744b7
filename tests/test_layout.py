"""Imports between packages go downward, there is no pickle or exec, and all files are part of the package."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANKS = [
    {"errors", "config", "safe_files", "partial_output", "pretrained", "messages"},
    {"nn", "text"},
    {"models", "data"},
    {"weights", "lora", "decoding", "probe"},
    {"model_path", "save_model"},
    {"training", "evaluation", "pipeline", "inspect_prompt"},
    {"lab", "doctor", "server", "search", "compare", "model_diff", "web"},
    {"hard_negatives", "harness"},
    {"cli"},
]
RANK = {package: rank for rank, packages in enumerate(RANKS) for package in packages}
FILES = sorted((ROOT / "chumoku").rglob("*.py"))


def package_of(file: Path) -> str:
    return file.relative_to(ROOT / "chumoku").with_suffix("").parts[0]


def imported_packages(source: str) -> set[str]:
    """Our packages that a file imports, at the top or inside functions."""
    packages = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "chumoku" else [f"chumoku.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        packages |= {name.split(".")[1] for name in names if name.startswith("chumoku.")}
    return packages


def wrong_imports(package: str, source: str) -> set[str]:
    """Imported packages of the same or a higher rank, which are not allowed."""
    if RANK[package] == 0:
        return {other for other in imported_packages(source) if RANK[other] > 0}
    return {other for other in imported_packages(source) if other != package and RANK[other] >= RANK[package]}


def test_imports_go_downward() -> None:
    for file in FILES:
        package = package_of(file)
        if package not in ("__init__", "__main__"):
            assert not wrong_imports(package, file.read_text(encoding="utf-8")), file


def test_an_upward_import_is_caught() -> None:
    assert wrong_imports("nn", "from chumoku.models.config import ModelConfig") == {"models"}
    assert wrong_imports("probe", "def f():\n    import chumoku.decoding.beam") == {"decoding"}
    assert wrong_imports("models", "from chumoku import cli") == {"cli"}
    assert not wrong_imports("models", "from chumoku.nn import masks")


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Our modules that a file imports when it runs, at the top or inside functions."""
    tree, names = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for full in (f"{node.module}.{alias.name}" for alias in node.names):
                names.add(full if full in modules else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & modules


def test_there_are_no_import_cycles() -> None:
    modules = {module_of(file): file for file in FILES}
    graph = {name: imported_modules(file.read_text("utf-8"), set(modules)) - {name} for name, file in modules.items()}
    graphlib.TopologicalSorter(graph).prepare()
    graph["chumoku.nn.masks"] = {"chumoku.cli.train"}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()


def test_every_package_has_a_rank() -> None:
    assert {package_of(file) for file in FILES} - {"__init__", "__main__"} <= set(RANK)


def test_nn_imports_only_errors() -> None:
    for file in (ROOT / "chumoku" / "nn").glob("*.py"):
        assert imported_packages(file.read_text(encoding="utf-8")) <= {"nn", "errors"}, file


def test_no_pickle_and_no_remote_code() -> None:
    forbidden = re.compile(r"\b(import pickle|torch\.load\(|trust_remote_code)|(?<![.\w])(exec|eval)\(")
    for file in FILES:
        found = forbidden.search(file.read_text(encoding="utf-8"))
        assert found is None, f"{file}: {found}"


@pytest.mark.parametrize("definition", ["_orig_mod", r"= -100\b", "get_close_matches"])
def test_a_definition_is_written_once(definition: str) -> None:
    """Removing the wrapper of torch.compile; the label without a loss; the suggestion of a similar name."""
    assert sum(len(re.findall(definition, file.read_text(encoding="utf-8"))) for file in FILES) == 1


def test_a_wheel_contains_all_files() -> None:
    """setuptools finds Python files; all others need a pattern."""
    folder = ROOT / "chumoku"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["chumoku"]
    packed = {file for pattern in patterns for file in folder.glob(pattern)}
    others = {file for file in folder.rglob("*.*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert others <= packed, others - packed


def test_every_requirement_that_make_installs_is_pinned() -> None:
    (extras,) = re.findall(r'--constraint constraints\.txt --editable "\.\[(.+)\]"', (ROOT / "Makefile").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = project["dependencies"] + [
        one for extra in extras.split(",") for one in project["optional-dependencies"][extra]
    ]
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {re.split("[<>=]", one)[0].lower() for one in required} <= pinned
