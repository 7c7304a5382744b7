"""A `lab` block: what the laboratory says about claims of the notes.

    ```lab
    dot
    scale
    ```

A claim without training is run when the site is built: its verdict, its numbers and its figure are those of this run.
The others take minutes; the page says what is tried, how it is judged, and which command does it.
"""

from __future__ import annotations

import base64
import functools
import re
import tempfile
from pathlib import Path

from quote import DocsError
from run_blocks import raw_html

from chumoku.errors import UsageError
from chumoku.lab.claims import SINGLE_SEED, select_claims
from chumoku.lab.experiment import QUICK, Words, load_claims
from chumoku.lab.report import VERDICTS
from chumoku.lab.runner import FAILED, Result, run
from chumoku.probe.bilingual import with_code

WORDS = {
    "stated": Words("Claim", "主張"),
    "tried": Words("Tried", "試したこと"),
    "found": Words("Found", "結果"),
    "when": Words("Only when", "条件"),
    "rule": Words("Rule", "判定の規則"),
    "run": Words("Run it (it trains for minutes)", "実行（数分の学習をします）"),
}
_BRACKETS = re.compile(r" ?\(([^()]*[\u3040-\u30ff\u3400-\u9fff][^()]*)\) ?")


def describe_claims(content: str, language: str) -> str:
    """The Markdown of a block, one claim id per line."""
    ids = content.split()
    try:
        select_claims(ids)
    except UsageError as error:
        raise DocsError(str(error)) from error
    return "\n\n".join(raw_html(describe_claim(id, language)) for id in ids)


def describe_claim(id: str, language: str) -> str:
    """A claim as HTML: with its verdict and its figure if it needs no training, else with the command that trains."""
    claim = load_claims()[id]
    rows, verdict, figure = [("stated", claim.stated), ("tried", claim.tried)], "", ""
    if id in SINGLE_SEED:
        result, picture = run_claim(id)
        mark, words = VERDICTS[result.verdict]
        verdict = f" {mark} {_prose(words, language)}"
        rows += [("found", result.outcome.summary)] if result.outcome else []
        rows += [("when", result.outcome.when)] if result.outcome and result.outcome.when else []
        figure = _figure(picture, _prose(claim.reading, language)) if picture and claim.reading else ""
    else:
        command = f"`chumoku lab run {id}`"
        rows += [("rule", claim.rule), ("run", Words(command, command))]
    terms = "".join(f"<dt>{_prose(WORDS[name], language)}</dt><dd>{_prose(text, language)}</dd>" for name, text in rows)
    title = f"<b>{_prose(claim.title, language)}</b> <code>{id}</code>{verdict}"
    return f'<div class="claim"><p>{title}</p><dl>{terms}</dl>{figure}</div>'


@functools.cache
def run_claim(id: str) -> tuple[Result, bytes | None]:
    """The result of a claim that needs no training, and its figure."""
    with tempfile.TemporaryDirectory() as folder:
        result = run([id], QUICK, Path(folder))[0]
        if result.verdict == FAILED:
            raise DocsError(f"the claim {id} could not be run: {result.error}")
        figure = Path(folder) / id / "figure.png"
        return result, figure.read_bytes() if figure.exists() else None


def _figure(picture: bytes, caption: str) -> str:
    data = base64.b64encode(picture).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt=""><figcaption>{caption}</figcaption></figure>'


def _prose(words: Words, language: str) -> str:
    """A text of the lab as HTML; brackets around Japanese are full-width."""
    if language == "en":
        return with_code(words.en)
    return with_code(_BRACKETS.sub(r"（\1）", words.ja))
