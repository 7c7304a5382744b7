"""Settings of the site for Sphinx. `docs/tools/build_site.py` adds the language of each build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "tools"))

from formulas import setup_formulas  # noqa: E402
from japanese_search import SearchJapanesePairs  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

project = "chumoku"
author = "chumoku"
project_copyright = "chumoku, Apache-2.0"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
nitpicky = True
smartquotes = False  # -- stays as it is
highlight_language = "none"  # a block without a language is plain text

html_math_renderer = "mathml"

html_theme = "furo"  # its fonts are the reader's, its icons are inline: nothing is loaded from another host
html_title = "chumoku"
html_static_path = [str(DOCS / "theme" / "static")]
templates_path = [str(DOCS / "theme" / "templates")]
html_css_files = ["site.css"]
html_js_files = ["live.js"]
html_show_sphinx = False
html_show_search_summary = False  # a summary fetches the page, which browsers refuse on pages opened from disk
html_copy_source = False
html_use_index = False  # the reference has its own lists
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "language.html", "sidebar/search.html"),
        *("sidebar/scroll-start.html", "sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}


def name_other_language(app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Give the template the address of the same page in the other language."""
    other = "en" if app.config.language == "ja" else "ja"
    known = page in app.env.found_docs
    up = "../" * (page.count("/") + 1)
    context["other_language"] = {"en": "English", "ja": "日本語"}[other]
    context["other_code"] = other
    context["other_page"] = f"{up}{other}/{page if known else 'index'}.html"


def setup(app: Sphinx) -> None:
    setup_formulas(app)
    app.add_search_language(SearchJapanesePairs)
    app.connect("html-page-context", name_other_language)
