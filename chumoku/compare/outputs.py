"""The files of an answer: comparison.json, comparison.png and comparison.html."""

from __future__ import annotations

from pathlib import Path

from chumoku.compare.answer import as_dict
from chumoku.compare.jobs import write_json
from chumoku.compare.page import write_page
from chumoku.compare.picture import draw_comparison
from chumoku.compare.results import Comparison
from chumoku.compare.verdicts import Decision

NAME = "comparison"


def write_outputs(comparison: Comparison, decision: Decision, folder: Path) -> Path:
    """Write the answer as JSON, as a picture and as a page; returns the path of the page."""
    write_json(folder / f"{NAME}.json", as_dict(comparison, decision))
    draw_comparison(comparison, decision, folder / f"{NAME}.png")
    return write_page(comparison, decision, folder / f"{NAME}.html")
