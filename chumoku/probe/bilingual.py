"""A self-contained HTML page in English and Japanese, without scripts.

It contains both languages; radio buttons and CSS choose which one is shown. Its content security policy forbids
everything but its own style and embedded images.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from chumoku.probe.csp import csp_hash

LANGUAGES = (("ja", "日本語", "日本語"), ("en", "English", "English"), ("both", "日本語 + English", "両方 both"))


class Words(NamedTuple):
    """A text in English and Japanese."""

    en: str
    ja: str


def bilingual(words: Words) -> str:
    """A text in both languages as HTML, escaped; CSS shows one of them. Equal texts are shown once.

    In texts that differ, which are prose, a command in `backticks` becomes code; equal ones may be a model's output.
    """
    if words.en == words.ja:
        return html.escape(words.en)
    return f'<span lang="ja">{with_code(words.ja)}</span><span lang="en">{with_code(words.en)}</span>'


def with_code(text: str) -> str:
    """A text as HTML, escaped; a command in `backticks` becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def language_switch() -> str:
    """The labels that choose a language; they belong into the page's body."""
    labels = "".join(f'<label for="l-{id}">{label}</label>' for id, _, label in LANGUAGES)
    return f'<p class="switch">{labels}</p>'


def render_bilingual_page(title: Words, *, css: str, body: str) -> str:
    """The page with this HTML as its body.

    css    the page's own rules and BASE_CSS, as one text
    """
    policy = f"default-src 'none'; img-src data:; style-src '{csp_hash(css)}'; base-uri 'none'; form-action 'none'"
    switch = "".join(
        f'<input class="pick" type="radio" name="lang" id="l-{id}" aria-label="{name}"{" checked" * (id == "ja")}>'
        for id, name, _ in LANGUAGES
    )
    return (
        '<!doctype html>\n<html lang="ja">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title.ja)} — {html.escape(title.en)}</title>\n<style>{css}</style>\n</head>\n"
        f'<body>\n{switch}\n<div class="page">\n{body}</div>\n</body>\n</html>\n'
    )


BASE_CSS = """
:root { --ink: #1c2733; --soft: #5b6670; --rule: #d8dee5; --paper: #fff; --tint: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--tint); color: var(--ink); line-height: 1.65; font-size: 16px;
  font-family: "Hiragino Sans", "Noto Sans JP", "Noto Sans CJK JP", "Yu Gothic", "IPAexGothic", "IPAGothic",
    system-ui, "Segoe UI", sans-serif; }
.pick { position: absolute; opacity: 0; }
#l-ja:checked ~ .page [lang="en"], #l-en:checked ~ .page [lang="ja"] { display: none; }
#l-both:checked ~ .page dd [lang], #l-both:checked ~ .page .summary [lang], #l-both:checked ~ .page .intro [lang],
#l-both:checked ~ .page figcaption [lang], #l-both:checked ~ .page h2 [lang], #l-both:checked ~ .page h1 [lang],
#l-both:checked ~ .page footer [lang] { display: block; }
#l-both:checked ~ .page [lang="ja"] + [lang="en"]::before { content: " "; }
#l-both:checked ~ .page dd [lang="en"], #l-both:checked ~ .page .summary [lang="en"],
#l-both:checked ~ .page figcaption [lang="en"], #l-both:checked ~ .page h2 [lang="en"] { color: var(--soft); }
.page { max-width: 1080px; margin: 0 auto; padding: 24px 28px 60px; background: var(--paper); }
.switch { display: flex; gap: 4px; justify-content: flex-end; margin: 0 0 8px; }
.switch label { padding: 4px 12px; border: 1px solid var(--rule); border-radius: 3px; cursor: pointer;
  font-size: 14px; }
#l-ja:checked ~ .page label[for="l-ja"], #l-en:checked ~ .page label[for="l-en"],
#l-both:checked ~ .page label[for="l-both"] { background: var(--ink); color: #fff; border-color: var(--ink); }
#l-ja:focus-visible ~ .page label[for="l-ja"], #l-en:focus-visible ~ .page label[for="l-en"],
#l-both:focus-visible ~ .page label[for="l-both"] { outline: 2px solid #3a6ea5; outline-offset: 2px; }
h1 { font-size: 30px; line-height: 1.3; margin: 0 0 10px; font-weight: 600; }
h2 { font-size: 21px; line-height: 1.35; margin: 0 0 12px; font-weight: 600; }
h3 { font-size: 13px; margin: 0; font-weight: 600; color: var(--soft); }
.intro { max-width: 46em; margin: 0 0 18px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th { text-align: left; font-weight: 600; color: var(--soft); }
.terms { display: grid; grid-template-columns: 9.5em 1fr; gap: 6px 16px; margin: 0 0 16px; }
.terms dt { color: var(--soft); font-size: 14px; padding-top: 1px; } .terms dd { margin: 0; }
.summary { margin: 0 0 16px; max-width: 56em; overflow-wrap: anywhere; }
figure { margin: 6px 0 16px; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: 14.5px; color: var(--soft); margin-top: 6px; }
footer { border-top: 1px solid var(--ink); padding-top: 14px; font-size: 13px; color: var(--soft); }
@media (max-width: 700px) {
  .page { padding: 14px 16px 40px; } h1 { font-size: 25px; } h2 { font-size: 19px; }
  .terms { grid-template-columns: 1fr; gap: 0; } .terms dt { margin-top: 8px; }
}
"""
