"""Draw the pictures of the README again: `make pictures`, or `python docs/tools/pictures.py`.

docs/assets/page.en.png, page.ja.png             the page of `chumoku serve` with a translation
docs/assets/attention.en.png, attention.ja.png   which Japanese words each English word attended to

Both show the translator that ships with chumoku. The page needs playwright and Chromium.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assemble import DOCS, LANGUAGES
from PIL import Image
from quote import DocsError

import chumoku
from chumoku.cli.demo import SHIPPED, attention_between_words
from chumoku.errors import ChumokuError
from chumoku.messages import use_language
from chumoku.probe.plot_style import draw_attention_maps
from chumoku.web.chromium import open_chromium

ASSETS = DOCS / "assets"
SHORT, LONG = "猫は窓のそばで寝ています。", "彼女は子どものころから音楽が好きで、毎日ピアノの練習をしていました。"
SHOWN = {"x": 0, "y": 0, "width": 1400, "height": 852}  # of the page: without what is cut off below
TITLES = {
    "en": ("Where each English word looks", "mean over layers and heads"),
    "ja": ("英語の各単語の注目先", "全層・全ヘッドの平均"),
}


@contextmanager
def start_server() -> Iterator[str]:
    """The address of `chumoku serve` with the translator, which runs until the end of the block."""
    command = [sys.executable, "-m", "chumoku", "serve", SHIPPED, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stderr.readline() if server.stderr else ""
            if "http://" not in line:
                raise DocsError(f"the server did not start: {line}")
            yield line.split()[-1]
        finally:
            server.terminate()


def draw_pages() -> None:
    """Translate a sentence in the page, in each of its languages, and save what a reader sees."""
    with start_server() as address, open_chromium() as browser:
        for language in LANGUAGES:
            context = browser.new_context(
                viewport={"width": 1400, "height": 900}, locale=language, color_scheme="light", reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(f"{address}/#/translate")
            page.fill("#tr-source", SHORT)
            page.wait_for_selector(".answer .line")
            page.wait_for_load_state("networkidle")
            page.locator("#tr-source").blur()
            page.screenshot(path=ASSETS / f"page.{language}.png", animations="disabled", clip=SHOWN)
            context.close()


def draw_attention() -> None:
    """Draw the attention of a translation in each language."""
    pipeline = chumoku.load(SHIPPED)
    for language, (title, subtitle) in TITLES.items():
        use_language(language)
        _, names, keys, weights = attention_between_words(pipeline, LONG)
        draw_attention_maps(
            weights[None],
            queries=names,
            keys=keys,
            titles=[subtitle],
            title=title,
            path=ASSETS / f"attention.{language}.png",
        )


def reduce_colors(file: Path) -> None:
    """Store a picture with a palette, which takes a third of the bytes."""
    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def main() -> None:
    """Draw all pictures and print their sizes."""
    try:
        draw_attention()
        draw_pages()
    except (ChumokuError, DocsError) as error:
        sys.exit(str(error))
    for file in sorted(ASSETS.glob("*.png")):
        reduce_colors(file)
        print(f"{file.relative_to(DOCS.parent)}: {file.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
