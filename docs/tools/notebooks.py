"""The chapters of the course as notebooks: docs/LANGUAGE/course/*.md → examples/course/LANGUAGE/*.ipynb.

    a Python block     a code cell, without output: run it
    a source block     a cell that prints the code as it is in the installed package
    a lab block        a cell for each claim that shows it
    a live block       a sentence that says where the figure is
    everything else    Markdown; links lead to the pages in docs/

`make notebooks` writes them. A test compares them with the chapters.
"""

from __future__ import annotations

import inspect
import json
import pydoc
import re
from pathlib import Path
from typing import Any

from quote import ROOT, DocsError

LANGUAGES = ("en", "ja")
OUT = ROOT / "examples" / "course"
_BLOCK = re.compile(r"^```(python|source|lab|live)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n", flags=re.MULTILINE)
LIVE_FIGURE = {
    "en": "*The live figure is on the page of this chapter: run `make docs` and open `site/index.html`.*",
    "ja": "*動く図は、この章のページにあります。`make docs` を実行して、`site/index.html` を開いてください。*",
}
_LINK = re.compile(r"\]\((?!https?:|#)")


def render_notebooks() -> dict[Path, str]:
    """The content of every notebook, by its file."""
    chapters = {
        (language, file): OUT / language / f"{file.stem}.ipynb"
        for language in LANGUAGES
        for file in sorted((ROOT / "docs" / language / "course").glob("[0-9]*.md"))
    }
    return {
        target: render_notebook(file.read_text(encoding="utf-8"), language)
        for (language, file), target in chapters.items()
    }


def render_notebook(text: str, language: str) -> str:
    """A chapter's Markdown as a notebook, which is JSON."""
    text = _COMMENT.sub("", text)
    cells: list[dict[str, Any]] = []
    end = 0
    for found in _BLOCK.finditer(text):
        _append(cells, "markdown", _lead_links_to_docs(text[end : found.start()], language))
        kind, content = found.groups()
        end = found.end()
        if kind == "live":
            _append(cells, "markdown", LIVE_FIGURE[language])
            continue
        for code in [content] if kind == "python" else [_cell_code(kind, name, language) for name in content.split()]:
            _append(cells, "code", code)
    _append(cells, "markdown", _lead_links_to_docs(text[end:], language))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _lead_links_to_docs(text: str, language: str) -> str:
    return _LINK.sub(f"](../../../docs/{language}/course/", text)


def _append(cells: list[dict[str, Any]], kind: str, text: str) -> None:
    if text.strip():
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
        cell |= {"execution_count": None, "outputs": []} if kind == "code" else {}
        cells.append(cell | {"source": text.strip().splitlines(keepends=True)})


def _cell_code(kind: str, name: str, language: str) -> str:
    """The code of a cell that shows a claim, or the source of a name."""
    if kind == "lab":
        return f'from chumoku.lab.claim_view import show_claim\n\nshow_claim("{name}", "{language}")'
    item = pydoc.locate(name)
    if item is None:
        raise DocsError(f"{name} is quoted, but cannot be imported.")
    if inspect.ismodule(item):
        return f'import pydoc\n\nprint(pydoc.locate("{name}").__doc__)'
    if not inspect.isclass(item) and not inspect.isfunction(item):
        return f'import pydoc\n\npydoc.locate("{name}")'
    return f'import inspect\nimport pydoc\n\nprint(inspect.getsource(pydoc.locate("{name}")))'


def main() -> None:
    """Write all notebooks and remove those without a chapter."""
    notebooks = render_notebooks()
    for old in set(OUT.glob("*/*.ipynb")) - set(notebooks):
        old.unlink()
    for file, text in notebooks.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(f"{len(notebooks)} notebooks are in {OUT}.")


if __name__ == "__main__":
    main()
