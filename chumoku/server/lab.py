"""The laboratory's report, as it may be shown in a frame of the page.

policy    nothing but its own style (known by its sum) and its own figures; framed by this server's page alone
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from chumoku.probe.page import fingerprint
from chumoku.server.checkpoints import open_regular
from chumoku.untrusted import leads_out

LARGEST = 64 << 20
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


class Report(NamedTuple):
    html: bytes
    policy: str  # its Content-Security-Policy


def report(folder: Path) -> Report | None:
    """report.html of a folder of results; None where there is none."""
    path = folder / "report.html"
    try:
        if not exists(folder):
            return None
        with open_regular(path) as stream:
            html = stream.read(LARGEST + 1)
    except OSError:  # gone meanwhile
        return None
    if len(html) > LARGEST:
        return None
    styles = " ".join(f"'{fingerprint(css)}'" for css in STYLE.findall(html.decode("utf-8", "replace"))[:8])
    allowed = ("default-src 'none'", "img-src data:", "style-src " + (styles or "'none'"))
    return Report(html, "; ".join((*allowed, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'")))


def exists(folder: Path) -> bool:
    """Whether there is one, and no link leads to it from elsewhere."""
    path = folder / "report.html"
    return path.is_file() and not leads_out(folder) and not leads_out(path)
