"""The lab report, prepared for a frame of the web page.

policy      allows only the report's own style (by its hash) and figures, and only this server's page as its frame
language    selects the radio button that is checked first        theme    "dark" adds a second style
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from chumoku.probe.csp import csp_hash
from chumoku.safe_files import is_outside_link
from chumoku.server.checkpoints import open_regular

MAX_BYTES = 64 << 20
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
ROOT = re.compile(r'<html lang="\w+">')
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n?')
RADIO = re.compile(r'(<input class="pick" type="radio" name="lang" id="l-(\w+)"[^>]*?)(?: checked)?>')
LANGUAGES, THEMES = ("ja", "en"), ("light", "dark")
DARK = """
@media screen {
:root { color-scheme: dark; --ink: #e4eaf0; --soft: #9aa8b6; --rule: #303b46; --paper: #1a2128; --tint: #12171c;
  --holds: #6cc792; --partly: #e8a35c; --fails: #f08793; --failed: #9aa8b6;
  --unjudged: #9db4e0; }
#l-ja:checked ~ .page label[for="l-ja"], #l-en:checked ~ .page label[for="l-en"],
#l-both:checked ~ .page label[for="l-both"] { color: var(--paper); }
figure img { background: #fff; border-radius: 4px; }
}
"""


class Report(NamedTuple):
    html: bytes
    policy: str  # its Content-Security-Policy


def read_report(folder: Path, language: str | None = None, theme: str | None = None) -> Report | None:
    """The report that `find_report` finds, optionally in a language and a theme; None if there is no report."""
    try:
        found = find_report(folder)
        if found is None:
            return None
        with open_regular(found[0] / "report.html") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError:  # deleted in the meantime
        return None
    if len(data) > MAX_BYTES:
        return None
    html = apply_view(data.decode("utf-8", "replace"), language, theme)
    styles = " ".join(f"'{csp_hash(css)}'" for css in STYLE.findall(html)[:8])
    allowed = ("default-src 'none'", "img-src data:", "style-src " + (styles or "'none'"))
    policy = "; ".join((*allowed, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'"))
    return Report(html.encode(), policy)


def apply_view(html: str, language: str | None, theme: str | None) -> str:
    """Check the button of the language and add the theme's style; this works without scripts."""
    if language is not None:
        html = ROOT.sub(f'<html lang="{language}">', html, count=1)
        html = RADIO.sub(lambda found: f"{found[1]}{' checked' * (found[2] == language)}>", html)
    if theme == "dark":
        # The policy in the report allows only its own style; the policy in the HTTP header allows both.
        html = POLICY.sub("", html, count=1).replace("</style>", f"</style><style>{DARK}</style>", 1)
    return html


def find_report(folder: Path) -> tuple[Path, bool] | None:
    """The folder of the report, and whether it is that of a short run: `folder`, or else the one beside it.

    `chumoku lab run --quick` writes to runs/lab-quick, so that it does not replace the results of a full run.
    """
    short = folder.with_name(f"{folder.name}-quick")
    return (folder, False) if report_exists(folder) else (short, True) if report_exists(short) else None


def report_exists(folder: Path) -> bool:
    """Whether the folder contains a report that is not reached through a symbolic link."""
    path = folder / "report.html"
    return path.is_file() and not is_outside_link(folder) and not is_outside_link(path)
