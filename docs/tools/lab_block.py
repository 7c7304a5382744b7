"""A `lab` block: what the laboratory says about claims of the notes, one id per line.

    ```lab
    dot
    scale
    ```

A claim without training is run when the site is built, so its verdict, numbers and figure are those of this run. The
result of another is in docs/lab, if `chumoku lab run ID --out docs/lab` has been run; otherwise its rule is shown.
"""

from __future__ import annotations

from quote import ROOT, DocsError
from run_blocks import raw_html

from chumoku.errors import UsageError
from chumoku.lab.claim_view import show_claim

RESULTS = ROOT / "docs" / "lab"


def describe_claims(content: str, language: str) -> str:
    """The Markdown of a block."""
    try:
        return "\n\n".join(raw_html(show_claim(id, language, folder=RESULTS)._repr_html_()) for id in content.split())
    except UsageError as error:
        raise DocsError(str(error)) from error
