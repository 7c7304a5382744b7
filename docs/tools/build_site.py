"""Build the site in both languages: `make docs`, or `python docs/tools/build_site.py [FOLDER]`.

FOLDER/index.html     leads to the language of the browser
FOLDER/en, FOLDER/ja  the pages, with their own search
FOLDER/live           the pages of live figures, for both languages
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from pathlib import Path

from assemble import DOCS, LANGUAGES, assemble
from live_figures import LIVE, write_live
from quote import ROOT, DocsError
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace, patch_docutils
from translations import read_translations

START = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>chumoku</title>
<script>location.replace((navigator.language.startsWith("ja") ? "ja" : "en") + "/index.html");</script></head>
<body><p><a href="en/index.html" lang="en">English</a> · <a href="ja/index.html" lang="ja">日本語</a></p></body></html>
"""


def build(out: Path) -> None:
    """Write the whole site into a folder, replacing what is there. Any warning of Sphinx raises DocsError."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "site"
        for language in LANGUAGES:
            build_language(language, Path(folder) / language, made / language)
        write_live(made / LIVE)
        (made / "index.html").write_text(START, encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)


def build_language(language: str, work: Path, out: Path) -> None:
    """Write the pages of one language; `work` is for the assembled Markdown and what Sphinx stores."""
    sources = work / "sources"
    for name, text in assemble(language).items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text, encoding="utf-8")
    warnings = io.StringIO()
    with patch_docutils(str(DOCS)), docutils_namespace():
        app = Sphinx(
            *(str(sources), str(DOCS), str(out), str(work / "doctrees"), "html"),
            confoverrides={"language": language},
            status=None,
            warning=warnings,
        )
        app.build()
    if warnings.getvalue():
        raise DocsError(f"Sphinx, {language}:\n{warnings.getvalue()}")
    if language == "ja":
        translate_theme(out)


def translate_theme(out: Path) -> None:
    """Replace the English words that the theme writes into every page, in texts and attributes."""
    words = read_translations("theme")
    pattern = re.compile(rf"""(?<=[">])(\s*)({"|".join(map(re.escape, words))})(?=\s*["<])""")
    for file in out.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        file.write_text(pattern.sub(lambda found: found[1] + words[found[2]], text), encoding="utf-8")


def main() -> None:
    """Build the site and print where it is."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    try:
        build(out)
    except (DocsError, SphinxError) as error:
        sys.exit(str(error))
    print(f"Open {out / 'index.html'} in a browser.")


if __name__ == "__main__":
    main()
