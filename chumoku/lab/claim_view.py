"""One claim as HTML: what it says, what was tried, and for a claim without training the verdict and the figure.

A claim that needs no training is run, in a second; the same result is shown again afterwards. The others take minutes:
their stored result is shown, or the rule and the command that runs them.
"""

from __future__ import annotations

import base64
import functools
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from chumoku.errors import UsageError
from chumoku.lab.claims import SINGLE_SEED, select_claims
from chumoku.lab.experiment import QUICK, Words, load_claims
from chumoku.lab.report import VERDICTS
from chumoku.lab.runner import read_result, run
from chumoku.nn.html_view import View
from chumoku.probe.bilingual import with_code

WORDS = {
    "stated": Words("Claim", "主張"),
    "tried": Words("Tried", "試したこと"),
    "found": Words("Found", "結果"),
    "when": Words("Only when", "条件"),
    "rule": Words("Rule", "判定の規則"),
    "run": Words("Run it (it trains for minutes)", "実行（数分の学習をします）"),
}
_JAPANESE = r"\u3040-\u30ff\u3400-\u9fff"
# Around Japanese or an interval; or after Japanese or a number, but not those of a vector (1, 2).
_BRACKETS = re.compile(
    rf" ?\(([^()]*[{_JAPANESE}][^()]*|\d[^()]*–[^()]*)\) ?|(?<=[{_JAPANESE}\d]) ?\((?!\d+,)([A-Za-z\d][^()]*)\) ?"
)


class Finding(NamedTuple):
    """What a run of a claim found."""

    verdict: str
    summary: Words
    when: Words | None  # the condition under which it holds
    figure: bytes | None  # PNG


def show_claim(id: str, language: str = "en", *, folder: Path | str = "runs/lab") -> View:
    """A claim as HTML for notebooks and the site.

    language    en or ja
    folder      results of `chumoku lab run`, for claims that need training
    """
    select_claims([id])
    if language not in Words._fields:
        raise UsageError(f"The claims are in {' and '.join(Words._fields)}, not in '{language[:20]}'.")
    claim, finding = load_claims()[id], run_claim(id) if id in SINGLE_SEED else read_finding(id, Path(folder))
    rows, verdict, figure = [("stated", claim.stated), ("tried", claim.tried)], "", ""
    if finding is None:
        command = f"`chumoku lab run {id}`"
        rows += [("rule", claim.rule), ("run", Words(command, command))]
    else:
        mark, words = VERDICTS[finding.verdict]
        verdict = f" {mark} {_prose(words, language)}"
        rows += [("found", finding.summary), *([("when", finding.when)] if finding.when else [])]
        if finding.figure and claim.reading:
            figure = _figure(finding.figure, _prose(claim.reading, language))
    terms = "".join(f"<dt>{_prose(WORDS[name], language)}</dt><dd>{_prose(text, language)}</dd>" for name, text in rows)
    title = f"<b>{_prose(claim.title, language)}</b> <code>{id}</code>{verdict}"
    markup = f'<div class="claim"><p>{title}</p><dl>{terms}</dl>{figure}</div>'
    return View(markup, f"{getattr(claim.title, language)} ({id}){verdict}")


@functools.cache
def run_claim(id: str) -> Finding:
    """Run a claim that needs no training."""
    with tempfile.TemporaryDirectory() as folder:
        result = run([id], QUICK, Path(folder))[0]
        if result.outcome is None:
            raise UsageError(f"The claim {id} could not be run: {result.error}")
        figure = Path(folder) / id / "figure.png"
        picture = figure.read_bytes() if figure.exists() else None
        return Finding(result.verdict, result.outcome.summary, result.outcome.when, picture)


def read_finding(id: str, folder: Path) -> Finding | None:
    """The stored result of a claim; None if it has not been run, or failed to run."""
    found = read_result(folder, id)
    if found is None or not found[0].get("summary"):
        return None
    result, figure = found
    when = Words(**result["when"]) if result.get("when") else None
    return Finding(result["verdict"], Words(**result["summary"]), when, figure)


def _figure(picture: bytes, caption: str) -> str:
    data = base64.b64encode(picture).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt=""><figcaption>{caption}</figcaption></figure>'


def _prose(words: Words, language: str) -> str:
    """A text of the lab as HTML; brackets in Japanese are full-width, except those of formulas."""
    if language == "en":
        return with_code(words.en)
    return with_code(_BRACKETS.sub(lambda found: f"（{found[1] or found[2]}）", words.ja))
