"""The course: blocks that run in the build, and its notebooks, which are in step with the chapters and run."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import DOCS, ROOT, read_blocks

from chumoku.lab.claims import SINGLE_SEED
from chumoku.lab.experiment import FAILS, load_claims
from chumoku.lab.report import VERDICTS
from chumoku.lab.runner import read_result

sys.path.insert(0, str(DOCS / "tools"))
from lab_block import RESULTS, describe_claims
from notebooks import OUT, render_notebook, render_notebooks
from quote import DocsError
from run_blocks import run_block, run_blocks, show_outputs

NOTEBOOKS = sorted(OUT.glob("*/*.ipynb"))
PAGE = "# 1\n\n```python\nx = 3\n```\n\n<!-- answer -->\n```python\nprint(x, '<')\nx * 2\n```\n"


def test_output_is_below_its_block() -> None:
    shown = run_blocks(("x = 3\n", "print(x, '<')\nx * 2\n"))
    assert [one.text for one in shown] == ["", "3 <\n6\n"]
    assert "<summary>答え</summary><pre>3 &lt;\n6\n</pre>" in show_outputs(PAGE, PAGE, "ja")
    assert "print(x" in show_outputs(PAGE, PAGE, "en")


def test_a_block_that_raises_fails_the_build() -> None:
    with pytest.raises(DocsError, match="raised ZeroDivisionError"):
        run_block("1 / 0", {})
    with pytest.raises(DocsError, match="more Python blocks"):
        show_outputs(PAGE + PAGE, PAGE, "ja")


def test_the_notebooks_are_those_of_the_chapters() -> None:
    made = render_notebooks()
    assert made
    assert sorted(made) == NOTEBOOKS, "run `make notebooks`"
    for file, text in made.items():
        assert file.read_text(encoding="utf-8") == text, f"{file.relative_to(ROOT)} is old: run `make notebooks`"


def read_cells(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["cells"])


def test_a_chapter_becomes_cells() -> None:
    text = (
        PAGE.replace("x = 3", "x = [abs][0](3)")
        + "[a](02-b.md)\n\n```source\nchumoku.nn.attention.attend\n```\n\n```lab\ndot\n```\n"
    )
    cells = read_cells(render_notebook(text, "ja"))
    kinds = [cell["cell_type"] for cell in cells]
    assert kinds == ["markdown", "code", "code", "markdown", "code", "code"]
    assert cells[1]["source"] == ["x = [abs][0](3)"]
    assert cells[3]["source"] == ["[a](../../../docs/ja/course/02-b.md)"]
    assert "".join(cells[5]["source"]).endswith('show_claim("dot", "ja")')
    with pytest.raises(DocsError, match="cannot be imported"):
        render_notebook("```source\nchumoku.nn.attention.attendd\n```\n", "en")


@pytest.mark.parametrize("file", [file for file in NOTEBOOKS if file.parent.name == "en"], ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell but those of claims, which run when the site is built, and in the tests of the lab."""
    monkeypatch.chdir(tmp_path)
    cells = ["".join(cell["source"]) for cell in read_cells(file.read_text("utf-8")) if cell["cell_type"] == "code"]
    shown = run_blocks(tuple(code for code in cells if "show_claim(" not in code))
    assert any(one.html or one.text for one in shown), "no cell shows anything"


def disagreements(result: dict[str, Any]) -> list[str]:
    """What in a stored result is not as the claim says and as its rule decides today."""
    claim = load_claims()[result["id"]]
    wrong = [part for part in ("stated", "tried", "rule") if result["claim"][part] != getattr(claim, part)._asdict()]
    judge = importlib.import_module(f"chumoku.lab.claims.{claim.id.replace('-', '_')}").judge
    wrong += ["verdict"] if judge(result["numbers"]) != result["verdict"] else []
    return wrong + (["budget"] if result["budget"]["scale"] < 1 else [])


def test_stored_results_are_those_of_the_claims() -> None:
    """A result that the site shows; after a change of a claim: `chumoku lab run ID --out docs/lab`."""
    stored = [read_result(RESULTS, folder.name) for folder in RESULTS.iterdir() if folder.is_dir()]
    results = [found[0] for found in stored if found is not None]
    assert results
    for result in results:
        assert not disagreements(result), result["id"]
    claim = results[0]["claim"] | {"rule": {"en": "Another.", "ja": "別の規則。"}}
    assert disagreements({**results[0], "claim": claim, "verdict": FAILS}) == ["rule", "verdict"]


def test_stored_verdicts_are_in_the_chapters() -> None:
    """A chapter has every claim that trains, and its verdict and figure as soon as docs/lab has them."""
    blocks = [block for file in DOCS.glob("en/course/[0-9]*.md") for block in read_blocks(file.read_text("utf-8"))]
    shown = {id for block in blocks if block.kind == "lab" for id in block.code.split()}
    trained = set(load_claims()) - set(SINGLE_SEED)
    assert not trained - shown
    stored = {folder.name for folder in RESULTS.iterdir() if folder.is_dir()}
    assert stored <= trained
    for id in trained:
        text = describe_claims(id, "ja")
        assert any(words.ja in text.partition("<dl>")[0] for _, words in VERDICTS.values()) == (id in stored), id
        assert ("<img" in text) == (id in stored), id
        assert not re.search(r"[ぁ-ん一-龠\d%] ?\([ぁ-ん一-龠\dA-Za-z]", re.sub("<[^>]*>", "", text)), id
        assert ("chumoku lab run" in text) == (id not in stored), id
