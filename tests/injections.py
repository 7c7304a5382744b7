"""Texts that try to become code in a page, and models that say nothing else.

    200 strings = what runs it × how it is broken out of the place it stands in

If one is taken for markup, it sets `window.hit`, opens a dialog, or is stopped by the page's policy, which the browser
then complains of: any of the three fails a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bundles import made
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
# Names of tokens are cut to 24 letters where they are shown: these do their work within that.
SHORT = ("<img/src=x>", "<svg/onload=alert(1)>", "<iframe/srcdoc=x>", "<base/href=//x>", "<p/onclick=alert(1)>x")
MARKS = ("<pad>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")

# What must not be there: nothing of ours is such an element, or has such an attribute.
FOUND = """() => [...document.querySelectorAll('*')].filter(one =>
    ['IMG', 'BASE', 'VIDEO', 'SOURCE', 'TEMPLATE', 'STYLE'].includes(one.tagName.toUpperCase())
    || (one.tagName === 'SCRIPT' && !one.src)
    || (one.tagName === 'IFRAME' && !one.src.startsWith(location.origin + '/lab/'))
    || [...one.attributes].some(a => /^(on|srcdoc|action)/i.test(a.name) || /^\\s*javascript:/i.test(a.value))
  ).map(one => one.outerHTML)"""


def unbroken(text: str) -> str:
    """The same without blanks: between attributes a slash does as well."""
    return text.replace(" ", "/")


def tokenizer() -> Ours:
    """Every token is one of the strings."""
    names = [*MARKS, *SHORT, *(unbroken(text) for text in STRINGS)]
    vocabulary = {name: number for number, name in enumerate(names)}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Ours(backend)


def hostile_models(folder: Path, **changes: Any) -> dict[str, Path | str]:
    """A translator and a talker, by names that are no better than what they say."""
    words = tokenizer()
    sizes = {"context": 257, "heads": 3, "width": 24, **changes}
    return {
        unbroken(STRINGS[10]): made(folder / "translator", "encoder-decoder", words, **sizes),
        unbroken(STRINGS[21]): made(folder / "talker", "decoder", words, **sizes),
    }


def hostile_runs(folder: Path) -> Path:
    """Runs whose folders are named so, with a recipe that says so."""
    for text in SHORT:
        run = folder / text.replace("/", " ")
        run.mkdir(parents=True)
        lines = [json.dumps({"step": step, "loss": 1 / step, "rate": 0.1, "norm": 1.0}) for step in range(1, 8)]
        (run / "metrics.jsonl").write_text("\n".join([*lines, text, ""]), encoding="utf-8")
        (run / "recipe.json").write_text(json.dumps({"model": {"kind": text}, text: text}), encoding="utf-8")
    return folder
