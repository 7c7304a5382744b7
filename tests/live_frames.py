"""The live figures of the built site in a browser: in the frames of chapters, and each of them by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from browser import until
from doc_language import wrong_language

from chumoku.lab.claims.attention_cat import VECTORS
from chumoku.nn.attention import attend

KEY = re.compile(r"^[a-z]+(?:_[a-z]+)+$", flags=re.MULTILINE)  # a text that a language does not have
DRAG = """input => { input.value = input.value === input.max ? input.min : input.max;
  input.dispatchEvent(new Event('input')); }"""
SHOWN = """main => { const copy = main.cloneNode(true); copy.querySelectorAll('.slider').forEach(one => one.remove());
  return copy.innerHTML }"""  # without the sliders, which change when they are moved


def check_figures(page: Any, site: Path, names: list[str]) -> None:
    """Each figure draws something in both languages, says it in one, fits a phone, and answers when a part is moved."""
    page.set_viewport_size({"width": 360, "height": 640})
    for name in names:
        for language in ("en", "ja"):
            page.goto("about:blank")
            page.goto(f"{(site / 'live' / 'figures.html').as_uri()}#/{name}?language={language}&theme=dark&embedded")
            shown = page.inner_text("main")
            assert not KEY.search(shown), (name, KEY.findall(shown))
            assert not wrong_language(shown, language), name
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        before = page.eval_on_selector("main", SHOWN)
        if page.query_selector("input[type=range]") is None:
            page.focus(".point")
            page.keyboard.press("ArrowRight")
        else:
            page.eval_on_selector("input[type=range]", DRAG)
        assert page.eval_on_selector("main", SHOWN) != before, name


def check_attention(page: Any, site: Path) -> None:
    """The figure of attention starts with the vectors of the notes, and has the weights that Python computes."""
    page.goto("about:blank")
    page.goto(f"{(site / 'live' / 'figures.html').as_uri()}#/attention")
    cells = page.eval_on_selector_all(".matrix td", "cells => cells.map(cell => Number(cell.textContent))")
    x = torch.tensor(VECTORS)[None, None]
    weights = attend(x, x, x)[1].flatten()
    assert torch.allclose(torch.tensor(cells), weights, atol=0.00501), cells


def check_small_frame(page: Any, chapter: Path) -> None:
    """A figure of a chapter is as high as its content, follows the theme of the chapter, and moves."""
    page.set_viewport_size({"width": 1200, "height": 800})
    page.goto(chapter.as_uri())
    page.wait_for_selector(".live iframe")
    place = page.query_selector_all(".live iframe")[-1]
    place.scroll_into_view_if_needed()
    frame = place.content_frame()
    frame.wait_for_selector(".bars")
    until(page, "document.querySelectorAll('.live iframe')[1].style.height !== ''")
    assert frame.evaluate("document.documentElement.scrollHeight <= innerHeight")
    before = frame.inner_text(".bars")
    frame.eval_on_selector("input[type=range]", DRAG)
    assert frame.inner_text(".bars") != before
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.body.dataset.theme = theme; }", theme)
        until(frame, f"document.documentElement.dataset.theme === '{theme}'")


def check_translator(page: Any, chapter: Path, text: str) -> None:
    """The translator of a Japanese chapter starts with a button, in Japanese, and shows its heads for this text."""
    page.goto(chapter.as_uri())
    assert page.query_selector(".live iframe") is None
    page.click(".live button")
    frame = page.wait_for_selector(".live iframe").content_frame()
    frame.wait_for_selector(".heads-grid canvas", timeout=60_000)
    assert frame.input_value("#look-text") == text
    assert frame.evaluate("document.documentElement.lang") == "ja"
    assert not frame.is_visible("header")
