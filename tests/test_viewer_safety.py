"""The page in a browser with the real server: it shows the models' output and never executes untrusted text."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import OpenPage, until, visit
from bundles import chat_tokenizer, make_bundle
from injections import FIELDS, FOUND, POINTED, SHORT, STRINGS, hostile_models, hostile_runs, without_spaces
from serving import KEY, Serving, serving

import chumoku

VIEWS = ("translate", "chat", "look", "playground", "runs", "lab")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    models: dict[str, Any] = {
        "little": make_bundle(folder / "little", "encoder-decoder"),
        "talker": make_bundle(folder / "talker", "decoder", chat_tokenizer(), context=211),
    }
    with serving(models, runs=folder) as one:
        yield one


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Iterator[Serving]:
    with serving(hostile_models(folder / "hostile"), runs=hostile_runs(folder / "runs")) as one:
        yield one


def test_there_are_200_hostile_strings() -> None:
    assert len(set(STRINGS)) == len({without_spaces(one) for one in STRINGS}) == 200


# ---- the real server ----


def test_translate_shows_the_models_output(server: Serving, open_page: OpenPage, folder: Path) -> None:
    page = open_page(server.url).page
    page.fill("#tr-source", "猫と犬")
    page.wait_for_selector(".answer .line")
    assert page.text_content(".answer .line") == chumoku.load(folder / "little").translate("猫と犬")
    assert page.locator(".stage .row:first-child .chip").count() == 4, "three characters and the end"
    page.click(".tree summary")
    page.wait_for_selector(".beam-tree g.chosen")


def test_chat_shows_the_models_output_and_probabilities(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/chat").page
    page.fill("#ch-draft", "hello")
    page.wait_for_selector(".chances .bar.strong")
    page.fill(".figure-row input >> nth=0", "13")
    page.evaluate("const s = document.querySelector('.slider input'); s.value = 0; s.dispatchEvent(new Event('input'))")
    page.keyboard.press("Tab")
    page.click(".composer .go")
    page.wait_for_selector(".message.assistant footer")
    result = server.post(
        "/v1/chat/completions",
        model="talker",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=13,
        temperature=0,
    ).json()
    assert page.text_content(".message.assistant .written") == result["choices"][0]["message"]["content"]
    page.click("[data-mode=complete]")
    page.fill("#ch-prompt", "ab")
    page.wait_for_selector(".chances .bar")
    result = server.post("/v1/look/next", model="talker", text="ab", count=3).json()
    assert page.locator(".bar .name").first.text_content() == result["candidates"][0]["text"]


def test_text_longer_than_the_context_is_cut_with_a_notice(browser: Any, server: Serving) -> None:
    page = visit(browser, server.url, hash="#/chat").page
    page.click("[data-mode=complete]")
    page.fill("#ch-prompt", "long " * 101)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".complete .go:visible")  # the answer may be empty: it is sampled
    assert page.text_content(".complete .error") == ""
    assert "characters were sent" in page.text_content(".complete .cut")


def test_key_form_gives_access(browser: Any, folder: Path) -> None:
    with serving({"little": make_bundle(folder / "keyed", "encoder-decoder")}, key=KEY) as keyed:
        page = visit(browser, keyed.url).page
        assert page.locator("#tr-source").count() == 0
        page.fill("input", "no key")
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        page.fill("input", KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#tr-source")
        page.fill("#tr-source", "猫")
        page.wait_for_selector(".chip")
        assert KEY not in page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_without_errors(server: Serving, open_page: OpenPage, view: str) -> None:
    visited = open_page(server.url, hash=f"#/{view}")
    until(visited.page, "document.querySelector('main').children.length > 0")
    visited.wait_until_idle()
    visited.page.click("#language")
    visited.page.click("#theme")
    visited.wait_until_idle()
    assert not visited.page.evaluate(
        "[...document.querySelectorAll('main input, main select, main textarea, main button')].filter(one =>"
        " !one.labels?.length && !one.ariaLabel && !one.title && !one.textContent.trim()).map(one => one.outerHTML)"
    ), "everything has a name"


# ---- untrusted strings ----


@pytest.mark.sample(3)
@pytest.mark.parametrize("view", VIEWS)
def test_hostile_strings_are_not_executed(browser: Any, hostile: Serving, view: str) -> None:
    """In every text field, in every token, and in the names of models."""
    visited = visit(browser, hostile.url, hash=f"#/{view}")
    page = visited.page
    until(page, "document.querySelector('main').children.length > 0")
    visited.wait_until_idle()
    if view == "chat":
        page.fill(".figure-row input >> nth=0", "23")  # tokens; more say no more
        page.check(".sure-box input")
    modes = ["chat", "complete"] if view == "chat" else [""]
    for mode in modes:
        if mode:
            page.click(f"[data-mode={mode}]")
        for field in page.locator(FIELDS).all():
            for first in range(0, 200, 40):
                chunk = STRINGS[first : first + 40]
                # Each as it is, and as a word of the model's.
                field.fill(" ".join((*SHORT, *chunk, *map(without_spaces, chunk))))
                field.press("Control+Enter")
                visited.wait_until_idle()
                for summary in page.locator("main details:not([open]) > summary:visible").all():
                    summary.click()
                    visited.wait_until_idle()
                page.evaluate(POINTED)
                check_nothing_was_executed(page, visited)
    page.goto(f"{hostile.url}/#/{view}/{STRINGS[0]}")
    visited.wait_until_idle()
    check_nothing_was_executed(page, visited)


def check_nothing_was_executed(page: Any, visited: Any) -> None:
    assert page.evaluate("window.hit") is None
    assert page.evaluate(FOUND) == []
    # A request that the server refuses is not an error of the page; one that the content security policy blocks is.
    visited.errors[:] = [one for one in visited.errors if "the server responded with a status of 4" not in one]
    visited.assert_clean()


def test_hostile_strings_are_shown_as_text(browser: Any, hostile: Serving) -> None:
    """Makes sure that the test above is meaningful: the strings do appear on the page."""
    page = visit(browser, hostile.url).page
    words = [*SHORT[:2], without_spaces(STRINGS[0])]
    page.fill("#tr-source", " ".join(words))
    page.wait_for_selector(".chip")
    shown = page.locator(".stage .row:first-child .chip").all_text_contents()
    assert all(
        name.rstrip("…") and word.startswith(name.rstrip("…")) for name, word in zip(shown[:3], words, strict=True)
    )
    assert "<" in page.text_content(".answer")


# ---- another origin ----

ATTEMPTS = """async (url) => {
  const told = {};
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const ask = async (name, path, options) => {
    try {
      const answer = await fetch(url + path, options);
      told[name] = answer.type + ' ' + (await answer.text()).length;
    } catch { told[name] = 'refused'; }
  };
  const load = (name, tag, given) => new Promise((done) => {
    const one = Object.assign(document.createElement(tag), given);
    one.onload = () => done((told[name] = 'came'));
    one.onerror = () => done((told[name] = 'refused'));
    document.head.append(one);
  });
  const body = JSON.stringify({ model: 'talker', prompt: 'from elsewhere', max_tokens: 3 });
  const post = { method: 'POST', body };
  await ask('read', '/v1/models');
  await ask('health', '/health');
  await ask('read with cookies', '/v1/models', { credentials: 'include' });
  await ask('act', '/v1/completions', { ...post, headers: { 'Content-Type': 'application/json' } });
  await ask('act unread', '/v1/completions', { ...post, mode: 'no-cors' });
  await ask('act as a form', '/v1/completions', { ...post, mode: 'no-cors', body: new URLSearchParams({ body }) });
  await load('script', 'script', { src: url + '/viewer/core/early.js' });
  await load('style', 'link', { rel: 'stylesheet', href: url + '/viewer/core/base.css' });
  const frame = document.body.appendChild(Object.assign(document.createElement('iframe'), { src: url + '/' }));
  const tab = window.open(url + '/');
  await wait(1000);
  const seen = (place) => { try { return Boolean(place.document.title); } catch { return false; } };
  return { ...told, frame: seen(frame.contentWindow), tab: tab !== null && seen(tab) };
}"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A page on another port: another origin of the same machine."""

    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

    one = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{one.server_address[1]}"
    one.shutdown()
    one.server_close()


def test_other_origins_can_neither_read_nor_act(browser: Any, server: Serving, elsewhere: str) -> None:
    page = visit(browser, elsewhere).page
    before = server.client.get("/metrics").text
    result = page.evaluate(ATTEMPTS, server.url)
    refused = ("read", "health", "read with cookies", "act", "script", "style")
    assert {name: result[name] for name in refused} == dict.fromkeys(refused, "refused")
    # Requests whose answer nobody reads: the browser sends them, and the server must not do them.
    assert {result["act unread"], result["act as a form"]} <= {"refused", "opaque 0"}
    assert not result["frame"]
    assert not result["tab"]
    assert not [frame for frame in page.frames[1:] if frame.url.startswith(server.url)], "the page is in no frame"

    def tokens(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("chumoku_tokens_total")]

    assert tokens(server.client.get("/metrics").text) == tokens(before), "nothing was written for it"
