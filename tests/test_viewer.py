"""The page in a browser: its frame, and the view Translate."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from browser import OpenPage, until, visit
from fake_server import MODELS, VIEWER, FakeServer

SENTENCE = "one two three five seven"
IN_SIGHT = """link => { const [box, own] = [link.parentElement, link].map(one => one.getBoundingClientRect());
    return own.left >= box.left - 1 && own.right <= box.right + 1 }"""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    one = FakeServer()
    yield one
    one.close()


def translate(page: Any, text: str = SENTENCE) -> None:
    page.fill("#tr-source", text)
    page.wait_for_selector(".answer .line")


# ---- files ----


def test_page_files_follow_the_policy_and_insert_no_markup() -> None:
    wrong = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3)"
    )
    for file in (file for file in VIEWER.rglob("*.*") if file.suffix != ".wasm"):
        text = file.read_text(encoding="utf-8")
        assert not wrong.search(text), (file.name, wrong.search(text))
        assert text.count("\n") < 300, file.name
    html = (VIEWER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<script>|<style", html)


def test_all_texts_exist_in_both_languages(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    scripts = [file for file in VIEWER.rglob("*.js") if "export const strings" in file.read_text("utf-8")]
    modules = sorted(file.relative_to(VIEWER).as_posix() for file in scripts)
    assert {"core/strings.js", "views/translate/strings.js", "views/chat/strings.js"} <= set(modules)
    all_keys: set[str] = set()
    for name in modules:
        keys = page.evaluate(
            "async (name) => { const { strings } = await import('/viewer/' + name);"
            " return [Object.keys(strings.en), Object.keys(strings.ja)] }",
            name,
        )
        assert set(keys[0]) == set(keys[1]), name
        assert not all_keys & set(keys[0]), f"{name} repeats a key of another file"
        all_keys |= set(keys[0])


# ---- frame ----


def test_first_paint_within_a_second(server: FakeServer, open_page: OpenPage) -> None:
    visited = open_page(server.url)
    visited.page.wait_for_selector("#tr-source")
    paint = visited.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 1000


def test_language_and_theme_are_saved(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, language="ja-JP", theme="dark").page
    assert page.text_content("nav a[aria-current]") == "翻訳"
    assert page.get_attribute("html", "data-theme") == "dark"
    translate(page)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#language")
    page.click("#theme")
    assert page.text_content("nav a[aria-current]") == "Translate"
    assert page.text_content(".align h2") == "What each word attended to"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    page.wait_for_selector(".answer .line")
    assert page.get_attribute("html", "lang") == "en"
    assert page.get_attribute("html", "data-theme") == "light"
    assert page.input_value("#tr-source") == SENTENCE, "the text is kept"


def test_dead_server_is_reported_within_three_seconds_and_text_is_kept(browser: Any) -> None:
    server = FakeServer()
    page = visit(browser, server.url).page
    translate(page)
    server.close()
    began = time.monotonic()
    page.wait_for_selector("#dead:visible", timeout=3000)
    assert time.monotonic() - began < 3
    page.fill("#tr-source", "typed while it was away")
    page.wait_for_selector(".error:visible")
    again = FakeServer(server.port)
    page.wait_for_selector("#dead", state="hidden")
    until(page, "document.querySelector('.answer').textContent.includes('typed')")
    assert page.input_value("#tr-source") == "typed while it was away"
    again.close()


def test_hanging_server_is_reported_as_dead(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    page.wait_for_selector("#tr-source")
    page.route("**/health", lambda route: None)
    page.wait_for_selector("#dead:visible", timeout=3000)
    assert page.is_visible("#dead")


def test_wrong_key_is_refused(browser: Any) -> None:
    server = FakeServer(key="open-sesame")
    page = visit(browser, server.url).page
    page.wait_for_selector("dialog")
    assert page.text_content("dialog .hint code") == "chumoku serve", "no literal backticks"
    assert "`" not in page.text_content("dialog")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .error:visible")
    assert page.text_content("dialog .error") == "This is not the key."
    page.fill("#key", "open-sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tr-source")
    assert "open-sesame" not in page.evaluate(
        "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    )
    server.close()


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("language", ["en-GB", "ja-JP"])
def test_no_horizontal_overflow(server: FakeServer, open_page: OpenPage, width: int, language: str) -> None:
    page = open_page(server.url, width=width, language=language).page
    translate(page, "W" * 300 + " and then " + "word " * 41)
    page.wait_for_selector(".chip")
    fits = f"document.documentElement.scrollWidth <= {width}"  # once observers of sizes have run, hence `until`
    until(page, fits)
    page.click("nav a[href='#/chat']")
    page.fill("#ch-draft", "W" * 300)
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant footer")
    until(page, fits)
    rows = 100 if width == 390 else 60  # two, or one
    until(page, f"document.querySelector('.top').offsetHeight < {rows}")
    page.goto(f"{server.url}/#/playground")
    page.wait_for_selector(".view-playground")
    link_in_sight = f"({IN_SIGHT})(document.querySelector(`nav a[href='#/%s']`))"
    until(page, link_in_sight % "playground")
    for view in ("lab", "translate"):
        page.focus(f"nav a[href='#/{view}']")
        until(page, link_in_sight % view)  # the keyboard reaches every link
    until(page, f"document.querySelectorAll('nav.more-after').length === {int(width == 390)}")  # hidden links fade out


# ---- Translate ----


def test_view_starts_with_an_example_of_the_model_until_the_user_clears_it(browser: Any) -> None:
    models = [
        {**MODELS[0], "examples": ["one two", "three"]},
        {**MODELS[0], "id": "other", "examples": ["five", "six"]},
    ]
    server = FakeServer(models=models)
    page = visit(browser, server.url).page
    page.wait_for_selector(".answer .line")
    assert page.input_value("#tr-source") == "one two"
    assert page.text_content(".answer .line") == "two one"
    page.select_option("#model", "other")
    until(page, "document.querySelector('.answer .line').textContent === 'five'")
    page.click("[data-t=tr_clear]")
    page.reload()
    page.wait_for_selector(".answer .waiting")
    assert page.input_value("#tr-source") == ""
    server.close()


def test_pointing_at_a_word_shows_its_attention(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url).page
    translate(page)
    shares = (
        "(row) => [...document.querySelectorAll(row + ' .chip')].map(c => Number(c.style.getPropertyValue('--share')))"
    )
    page.hover(".stage .row:last-child .chip:nth-child(2)")
    source = page.evaluate(shares, ".stage .row:first-child")
    # The fake model attends to word t + 2 when it generates word t.
    assert max(source) == source[3] > source[2] > source[0] > 0
    assert len(source) == 6, "five words and the end"
    assert "five" in page.text_content(".told")
    assert page.text_content(".answer .at").strip() == "five"
    assert page.locator(".step.at strong").text_content() == "five"
    page.hover(".stage .row:first-child .chip:nth-child(1)")
    target = page.evaluate(shares, ".stage .row:last-child")
    assert max(target) == target[4]
    assert page.evaluate(shares, ".stage .row:first-child") == [0] * 6


def test_arrow_keys_move_between_words(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    translate(page)
    page.focus(".stage .row:last-child .chip:nth-child(1)")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "five"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.closest('.row') === document.querySelector('.stage .row')")
    assert page.evaluate("document.activeElement.textContent") == "five", "the source word it looked at most"


def test_lines_are_translated_separately_and_each_has_its_tree(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url).page
    translate(page, "one two\n\n  three five seven  \n")
    assert page.locator(".answer .line").all_text_contents() == ["two one", "seven five three"]
    page.click(".tree summary")
    page.wait_for_selector(".beam-tree")
    page.click(".answer .line:nth-child(2)")
    until(page, "document.querySelectorAll('.beam-tree circle').length === 7")
    assert server.requests[-1][1]["text"] == "three five seven"
    assert page.locator(".beam-tree g.dropped").count() == 3


def test_typing_sends_one_request_and_ctrl_enter_sends_at_once(browser: Any, server: FakeServer) -> None:
    """With the page's clock stopped, so that slow typing is no pause."""
    page = visit(browser, server.url).page
    page.wait_for_selector("#tr-source")
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") + 1000)

    def texts() -> list[list[str]]:
        return [body["text"] for _, body in server.requests]

    page.type("#tr-source", "abcdefg")
    assert texts() == []
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".answer .line")
    page.clock.run_for(600)
    assert texts() == [["abcdefg"]]
    page.type("#tr-source", "hi")
    page.clock.run_for(600)
    until(page, "document.querySelector('.answer').textContent.includes('abcdefghi')")
    assert texts() == [["abcdefg"], ["abcdefghi"]]


def test_choosing_another_hypothesis(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    translate(page)
    assert page.locator(".nbest button").count() == 4
    page.click(".nbest li:nth-child(3) button")
    assert page.get_attribute(".nbest li:nth-child(3) button", "aria-pressed") == "true"
    page.select_option(".translate .controls select:visible >> nth=0", "1")
    page.wait_for_selector(".others", state="hidden")
    assert server.requests[-1][1]["beam"] == server.requests[-1][1]["n"] == 1


def test_errors_are_shown_and_long_texts_are_cut(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    page.fill("#tr-source", "refuse me")
    page.wait_for_selector(".translate .error:visible")
    assert page.text_content(".translate .error") == "This text <b>was refused</b>: try another."
    page.fill("#tr-source", "\n".join(["x"] * 67))
    page.wait_for_selector(".translate .cut:visible")
    page.wait_for_selector(".answer .line:nth-child(64)")
    assert len(server.requests[-1][1]["text"]) == 64
    page.fill("#tr-source", "a" + "😀" * 1500)
    until(page, "document.querySelectorAll('.answer .line').length === 1")
    assert server.requests[-1][1]["text"] == ["a" + "😀" * 999], "no half letter at the cut"
    assert not page.locator(".translate .error:visible").count()
