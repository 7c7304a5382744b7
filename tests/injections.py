"""Strings that try to run as code in the web page, and models that generate nothing else.

    200 strings = code × way to escape from the surrounding markup

If one is parsed as markup, it sets `window.hit`, opens a dialog, or is blocked by the page's policy, which the browser
reports. Each of the three fails a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bundles import make_bundle
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from chumoku.text.tokenizer import Tokenizer as Ours

RUN = "window.hit=1;alert(1)"
CODES = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'>",
    f"<body onload={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<a href=javascript:{RUN}>x</a>",
    "<script src=//127.0.0.1:9/x.js></script>",
    "<link rel=stylesheet href=//127.0.0.1:9/x.css>",
    "<img src=//127.0.0.1:9/x.png>",
    "<iframe src=//127.0.0.1:9></iframe>",
    "<meta http-equiv=refresh content=0;url=//127.0.0.1:9>",
    "<base href=//127.0.0.1:9/>",
    "<style>*{background:url(//127.0.0.1:9/x)}</style>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<template><img src=x onerror={RUN}></template>",
    f"<form action=javascript:{RUN}><button autofocus>x",
)
WAYS = ("{}", '">{}', "'>{}", "</textarea>{}", "</title>{}", "</script>{}", "-->{}", "]]>{}", "${{{}}}", "&lt;b&gt;{}")
STRINGS = tuple(way.format(code) for code in CODES for way in WAYS)
# Labels of tokens are cut to 24 characters; these strings are short enough.
SHORT = ("<img/src=x>", "<svg/onload=alert(1)>", "<iframe/srcdoc=x>", "<base/href=//x>", "<p/onclick=alert(1)>x")
MARKS = ("<pad>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Elements and attributes that the page itself never uses.
FOUND = """() => [...document.querySelectorAll('*')].filter(one =>
    ['IMG', 'BASE', 'VIDEO', 'SOURCE', 'TEMPLATE', 'STYLE'].includes(one.tagName.toUpperCase())
    || (one.tagName === 'SCRIPT' && !one.src)
    || (one.tagName === 'IFRAME' && !one.src.startsWith(location.origin + '/lab/'))
    || [...one.attributes].some(a => /^(on|srcdoc|action)/i.test(a.name) || /^\\s*javascript:/i.test(a.value))
  ).map(one => one.outerHTML)"""

# Point at everything, as a reader might: words tell more when they are.
POINTED = """() => { for (const one of [...document.querySelectorAll('main *')].slice(0, 1000))
    for (const name of ['pointerenter', 'pointerover', 'pointerleave']) one.dispatchEvent(new PointerEvent(name)) }"""
FIELDS = ", ".join(
    f"main {field}:visible" for field in ("textarea", "input[type=text]", "input[type=search]", "input:not([type])")
)


def without_spaces(text: str) -> str:
    """The text with slashes instead of spaces; HTML accepts them between attributes."""
    return text.replace(" ", "/")


def tokenizer() -> Ours:
    """A tokenizer whose tokens are these strings."""
    names = [*MARKS, *SHORT, *(without_spaces(text) for text in STRINGS)]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Ours(backend)


def hostile_models(folder: Path, **changes: Any) -> dict[str, Path | str]:
    """A translator and a chat model, with hostile names and vocabularies."""
    words = tokenizer()
    sizes = {"context": 257, "heads": 3, "width": 24, **changes}
    return {
        without_spaces(STRINGS[10]): make_bundle(folder / "translator", "encoder-decoder", words, **sizes),
        without_spaces(STRINGS[21]): make_bundle(folder / "talker", "decoder", words, **sizes),
    }


def hostile_runs(folder: Path) -> Path:
    """Runs with hostile folder names, metrics and recipes."""
    for text in SHORT:
        run = folder / text.replace("/", " ")
        run.mkdir(parents=True)
        lines = [json.dumps({"step": step, "loss": 1 / step, "rate": 0.1, "norm": 1.0}) for step in range(1, 8)]
        (run / "metrics.jsonl").write_text("\n".join([*lines, text, ""]), encoding="utf-8")
        (run / "recipe.json").write_text(json.dumps({"model": {"kind": text}, text: text}), encoding="utf-8")
    return folder
