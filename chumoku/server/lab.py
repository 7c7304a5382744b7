"""The laboratory's report, as it may be shown in a frame of the page.

policy      nothing but its own style (known by its sum) and its own figures; framed by this server's page alone
language    the radio button that is checked at first        theme    "dark" adds a style to the report's own
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from chumoku.probe.page import csp_hash
from chumoku.safe_files import leads_out
from chumoku.server.checkpoints import open_regular

LARGEST = 64 << 20
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


def report(folder: Path, language: str | None = None, theme: str | None = None) -> Report | None:
    """report.html of a folder of results, as it is or opened in a language and a theme; None where there is none."""
    path = folder / "report.html"
    try:
        if not exists(folder):
            return None
        with open_regular(path) as stream:
            data = stream.read(LARGEST + 1)
    except OSError:  # gone meanwhile
        return None
    if len(data) > LARGEST:
        return None
    html = opened_in(data.decode("utf-8", "replace"), language, theme)
    styles = " ".join(f"'{csp_hash(css)}'" for css in STYLE.findall(html)[:8])
    allowed = ("default-src 'none'", "img-src data:", "style-src " + (styles or "'none'"))
    policy = "; ".join((*allowed, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'"))
    return Report(html.encode(), policy)


def opened_in(html: str, language: str | None, theme: str | None) -> str:
    """The report with another button checked at first, and in other colors. No script has a part in it."""
    if language is not None:
        html = ROOT.sub(f'<html lang="{language}">', html, count=1)
        html = RADIO.sub(lambda found: f"{found[1]}{' checked' * (found[2] == language)}>", html)
    if theme == "dark":
        # The report's own policy knows its own style alone; the policy in the header knows both.
        html = POLICY.sub("", html, count=1).replace("</style>", f"</style><style>{DARK}</style>", 1)
    return html


def exists(folder: Path) -> bool:
    """Whether there is one, and no link leads to it from elsewhere."""
    path = folder / "report.html"
    return path.is_file() and not leads_out(folder) and not leads_out(path)
