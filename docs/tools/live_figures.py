"""A `live` block: a figure in the page that computes while the reader moves its parts.

    ```live                              ```live
    softmax                              ja-en look?tab=heads&text=猫が庭で寝ている。
    ```                                  ```

One word is a figure of docs/figures: all of them are one small page, FIGURES, which is shown as soon as the reader
scrolls to it. Two words are the page of the shipped translator (`chumoku convert ja-en OUT.html --to web`) and one of
its views with parameters (viewer/core/address.js); the page is large, so a button opens it. Both pages are written
once, into the folder LIVE of the site, and theme/static/live.js puts them into frames. They make no request.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import quote as quote_address

from quote import ROOT, DocsError
from run_blocks import raw_html

from chumoku.web.export import export_page
from chumoku.web.page import Part, head_parts, inline_script, policy, read, render_document

LIVE, FIGURES, TRANSLATOR = "live", "figures.html", "ja-en.html"
SOURCES = ROOT / "docs" / "figures"
STYLES = ("core/base.css", "views/playground/playground.css")
WORDS = {
    "en": {"figure": "Live figure", "open": "Start the translator (about {size} MB)", "alone": "in a tab of its own"},
    "ja": {"figure": "動く図", "open": "翻訳モデルを動かす（約 {size} MB）", "alone": "別のタブで開く"},
}
TRANSLATOR_SIZE = 28  # MB; build() refuses another


def list_figures() -> list[str]:
    """The names of the figures, as docs/figures/main.js lists them."""
    listed = (SOURCES / "main.js").read_text(encoding="utf-8").partition("const FIGURES = {")[2].partition("}")[0]
    return re.findall(r"\w+", listed)


def embed_live(content: str, language: str) -> str:
    """The Markdown of a block. Without JavaScript there is a link; live.js replaces it by a frame or adds a button."""
    words = WORDS[language]
    name, _, view = content.strip().partition(" ")
    if not view and name not in list_figures():
        raise DocsError(f"there is no live figure {name}; there are {', '.join(list_figures())}.")
    if view and name != "ja-en":
        raise DocsError(f"the live page of {name} is not built, only that of ja-en.")
    path, _, given = (view or name).partition("?")
    hash = "&".join(filter(None, [quote_address(given, safe="=&"), f"language={language}"]))
    address = f"../../{LIVE}/{TRANSLATOR if view else FIGURES}#/{path}?{hash}"
    link = f'<a href="{html.escape(address)}" target="_blank">{words["alone" if view else "figure"]}</a>'
    button = f' data-open="{words["open"].format(size=TRANSLATOR_SIZE)}"' if view else ""
    return raw_html(f'<div class="live" data-title="{words["figure"]}"{button}>{link}</div>')


def write_live(folder: Path) -> None:
    """Write the page of the figures and that of the translator into a folder."""
    folder.mkdir(parents=True)
    (folder / FIGURES).write_text(render_figures(), encoding="utf-8")
    size = round(export_page("ja-en", folder / TRANSLATOR, check=False).size / 1e6)
    if size != TRANSLATOR_SIZE:
        raise DocsError(f"the page of ja-en has {size} MB, but the chapters say {TRANSLATOR_SIZE}.")


def render_figures() -> str:
    """The page of all figures."""
    script = inline_script("docs/figures/main.js", lambda name: (ROOT / name).read_text(encoding="utf-8"))
    scripts = [Part("early", "script", read("core/early.js")), Part("main", "script", script)]
    own = (SOURCES / "figures.css").read_text(encoding="utf-8")
    styles = [Part("style", "style", "".join(map(read, STYLES)) + own)]
    return render_document(
        [*head_parts(policy(scripts, styles)), *styles, Part("view", "main", "", {"id": "view"}), *scripts]
    )
