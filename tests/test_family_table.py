"""The table of families and formats: the documentation, the command and what is measured agree."""

from __future__ import annotations

import functools
import json
import re
import sys

import family_table
import pytest
from commands import Ask
from doc_blocks import DOCS

from chumoku.errors import MissingExtraError
from chumoku.weights.supported_formats import FORMATS, supported_formats

sys.path.insert(0, str(DOCS / "tools"))
from assemble import LANGUAGES, fill

variants = functools.cache(family_table.family_variants)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_the_documentation(language: str) -> None:
    page = fill((DOCS / language / "reference" / "families.md").read_text(encoding="utf-8"), language)
    head = rf"^\| .*{re.escape(' | '.join(FORMATS))} \|\n"
    lines = re.search(rf"{head}(?:\|.*\n)*", page, flags=re.MULTILINE)[0].splitlines()
    first, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = {title: dict(zip(first[1:], cells, strict=True)) for title, *cells in rows}
    expected = supported_formats()
    assert found == {
        title: {form: "✓" if yes else "–" for form, yes in cells.items()} for title, cells in expected.items()
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize("title", supported_formats())
def test_measured_formats(title: str) -> None:
    """Every format of the table can express a variant of the family exactly; the others refuse all variants."""
    found = family_table.measure_family(variants()[title])
    assert {form: form in found for form in FORMATS} == supported_formats()[title]
    assert max(found.values()) <= 1e-5


def test_the_command(ask: Ask) -> None:
    assert json.loads(ask("families", "--json").out)["families"] == supported_formats()
    lines = ask("families").out.splitlines()
    assert re.split(" {2,}", lines[0])[1:] == list(FORMATS)
    assert [line.count("yes") for line in lines[1:]] == [sum(cells.values()) for cells in supported_formats().values()]


def test_measuring_needs_transformers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> None:
        raise MissingExtraError(f"{name} is needed for this but not installed.")

    monkeypatch.setattr(family_table, "import_optional", missing)
    assert family_table.main() == 2
    assert "transformers is needed" in capsys.readouterr().err
