"""The page in a browser: the view Chat, and its chart of the next token."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from browser import OpenPage, until, visit
from fake_server import FakeServer

from chumoku.decoding.sampling import SamplingOptions, process_logits


@pytest.fixture
def server() -> Iterator[FakeServer]:
    one = FakeServer(pause=0.03)
    yield one
    one.close()


def answered(page: Any, text: str) -> None:
    page.fill("#ch-draft", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant:last-child footer")


def test_chat_streams_and_survives_a_reload(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/chat").page
    answered(page, "one two three")
    answered(page, "five seven")
    output = page.locator(".message .written").all_text_contents()
    assert output == ["one two three", "one two three", "five seven", "five seven"]
    sent = next(body for path, body in reversed(server.requests) if body.get("stream"))
    assert [one["role"] for one in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["model"] == "talker"
    page.fill("#ch-draft", "half a thought")
    page.reload()
    page.wait_for_selector(".message")
    assert page.locator(".message").count() == 4
    assert page.input_value("#ch-draft") == "half a thought"
    page.click(".fresh")
    assert page.locator(".message").count() == 0


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stopping_keeps_the_text_and_closes_the_stream(browser: Any, how: str) -> None:
    server = FakeServer(pause=0.1)
    page = visit(browser, server.url, hash="#/chat").page
    page.fill("#ch-draft", "word " * 61)
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.assistant .written')?.textContent.length > 10")
    if how == "Escape":
        page.keyboard.press("Escape")
    else:
        page.click(".halt")
    page.wait_for_selector(".message.assistant footer")
    assert "stopped" in page.text_content(".message.assistant footer")
    assert server.client_left.wait(30), "the server saw that nobody reads any more"
    answered(page, "and on")
    server.close()


def test_enter_during_input_conversion_does_not_send(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url, hash="#/chat").page
    page.fill("#ch-draft", "にほん")
    press = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
    page.evaluate(f"document.getElementById('ch-draft').dispatchEvent({press})")
    page.keyboard.press("Shift+Enter")
    assert page.locator(".message").count() == 0
    assert page.input_value("#ch-draft") == "にほん\n"


def test_completion_is_taken_over_and_long_texts_are_cut(browser: Any, server: FakeServer) -> None:
    visited = visit(browser, server.url, hash="#/chat")
    page = visited.page
    page.click("[data-mode=complete]")
    page.fill("#ch-prompt", "one two")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[data-t=ch_take]:visible")
    assert page.text_content(".answer-box") == "one two"
    page.click("[data-t=ch_take]")
    assert page.input_value("#ch-prompt") == "one twoone two"
    visited.assert_clean()
    # The pretended model reads 400 letters: what is longer is sent again with less, from the end.
    page.fill("#ch-prompt", "a" * 700 + "b" * 7)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[data-t=ch_take]:visible")
    sent = [body["prompt"] for path, body in server.requests if path == "/v1/completions"][-1]
    assert len(sent) <= 400
    assert sent.endswith("ab" + "b" * 6)
    assert f"{len(sent)} characters" in page.text_content(".complete .cut")
    assert page.text_content(".complete .error") == ""


def test_long_chat_leaves_out_its_first_messages(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url, hash="#/chat").page
    page.wait_for_selector("#ch-draft")
    page.evaluate(
        "sessionStorage['chumoku.chat.messages'] = JSON.stringify("
        "[...Array(13).keys()].map(n => ({role: n % 2 ? 'assistant' : 'user', content: 'm'.repeat(71)})))"
    )
    page.reload()
    answered(page, "short")
    sent = next(body for _, body in reversed(server.requests) if body.get("stream"))["messages"]
    # A model of 61 tokens gets at most 12 letters for each.
    assert sum(len(one["content"]) for one in sent) <= 61 * 12
    assert sent[-1]["content"] == "short"
    assert f"The {14 - len(sent)} oldest messages" in page.text_content(".talk .cut")


def test_page_opens_on_chat_without_a_translator_and_a_model_without_template_completes(
    browser: Any, server: FakeServer
) -> None:
    server.models = [one for one in server.models if one["kind"] == "decoder"]
    page = visit(browser, server.url).page
    page.wait_for_selector("#ch-draft")
    assert page.text_content("nav a[aria-current]") == "Chat"
    page.select_option("#model", "writer")
    page.wait_for_selector("#ch-prompt")
    assert page.is_disabled("[data-mode=chat]")
    assert not page.locator("[data-mode=complete][aria-pressed=false]").count()
    page.select_option("#model", "talker")
    page.wait_for_selector("#ch-draft")


def test_next_token_chart_follows_the_sliders(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/chat").page
    page.click("[data-mode=complete]")
    page.fill("#ch-prompt", "one two three")
    page.wait_for_selector(".chances .bar")
    slide = (
        "([n, v]) => { const s = document.querySelectorAll('.slider input')[n]; s.value = v;"
        " s.dispatchEvent(new Event('input', {bubbles: true})) }"
    )
    strong = "document.querySelectorAll('.bar.strong:not(.rest)').length"
    page.evaluate(slide, [2, "1"])
    page.evaluate(slide, [3, "0"])
    page.evaluate(slide, [1, "7"])
    assert page.evaluate(strong) == 7
    assert page.locator(".bar").count() == 21, "twenty and all others"
    page.evaluate(slide, [0, "0"])
    assert page.evaluate(strong) == 1
    assert page.text_content(".bar .figure") == "100 %"
    before = len(server.requests)
    page.evaluate(slide, [0, "1.5"])
    assert len(server.requests) == before, "the page draws it by itself"
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[data-t=ch_take]:visible")
    sent = next(body for _, body in reversed(server.requests) if body.get("stream"))
    assert (sent["temperature"], sent["top_k"]) == (1.5, 7)
    assert (sent["top_p"], sent["min_p"]) == (1, 0), "off is said: what a request leaves out has a default"
    assert "seed" not in sent


def test_sliders_start_at_the_models_defaults(server: FakeServer, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/chat").page
    values = "[...document.querySelectorAll('.slider input')].map((one) => one.value)"
    page.wait_for_selector(".slider")
    page.select_option("#model", "talker")
    assert page.evaluate(values) == ["0.7", "0", "0.95", "0.3"]
    page.select_option("#model", "writer")
    assert page.evaluate(values) == ["0.65", "23", "1", "0.05"]
    move = "const s = document.querySelector('.slider input'); s.value = '0.3'; s.dispatchEvent(new Event('input'))"
    page.evaluate(f"() => {{ {move} }}")
    page.reload()
    page.wait_for_selector(".slider")
    page.select_option("#model", "writer")
    assert page.evaluate(values) == ["0.3", "23", "1", "0.05"], "what was moved by hand stays"
    page.select_option("#model", "talker")
    assert page.evaluate(values) == ["0.3", "0", "0.95", "0.3"]


def test_token_probabilities_and_alternatives(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url, hash="#/chat").page
    page.check(".sure-box input")
    answered(page, "one two three")
    assert page.locator(".message .sure").all_text_contents() == ["one", " two", " three"]
    page.hover(".message .sure >> nth=1")
    assert page.text_content(".picture h2") == "Alternatives to “␣two”"
    assert page.locator(".bar .name").all_text_contents() == ["one", "␣two", "␣three", "all other tokens"]


RULES = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 0.0},
    {"temperature": 1.7, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.83},
    {"temperature": 1.3, "top_p": 0.002},
    {"temperature": 1.0, "min_p": 0.11},
    {"temperature": 2.0, "top_k": 23, "top_p": 0.71, "min_p": 0.07},
    {"temperature": 0.5, "top_k": 101, "min_p": 1.0},
]


def test_page_and_server_sample_alike(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    generator = torch.Generator().manual_seed(3)
    script = "async ([known, rules]) => (await import('/viewer/core/sampling.js')).applySampling(known, rules)"
    for rules in RULES:
        logits = (3 * torch.randn(97, generator=generator, dtype=torch.float64)).sort(descending=True).values
        true = process_logits(
            logits, SamplingOptions(**{"top_p": None, **rules}), seen=torch.zeros(97, dtype=torch.bool)
        ).softmax(-1)
        names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
        result = page.evaluate(
            script,
            [{"logits": logits.tolist(), "rest": -1e300, "vocabulary": 97}, {names[k]: v for k, v in rules.items()}],
        )
        drawn = torch.tensor(
            [share if kept else 0.0 for share, kept in zip(result["shares"], result["kept"], strict=True)]
        )
        assert torch.allclose(drawn.double(), true, atol=1e-6), rules
        assert result["count"] == int((true > 0).sum()), rules


def test_unknown_tokens_count_as_equally_likely(browser: Any, server: FakeServer) -> None:
    page = visit(browser, server.url).page
    script = "async ([known, rules]) => (await import('/viewer/core/sampling.js')).applySampling(known, rules)"
    known = {"logits": [math.log(0.5), math.log(0.2)], "rest": math.log(0.3), "vocabulary": 32}
    result = page.evaluate(script, [known, {"temperature": 1.0, "topP": 0.75}])
    assert result["count"] == 2 + 5, "0.5 + 0.2 + 5 · 0.01 reach 0.75"
    result = page.evaluate(script, [known, {"temperature": 1.0, "topK": 11}])
    assert result["count"] == 11
    assert abs(result["shares"][0] - 0.5 / 0.79) < 1e-9
    result = page.evaluate(script, [known, {"temperature": 1.0, "minP": 0.03}])
    assert result["count"] == 2
    result = page.evaluate(script, [known, {"temperature": 1.0}])
    assert abs(result["rest"] - 0.3) < 1e-9


EVENTS = [
    ("data: {}\n\ndata: [DONE]\n\n", ["{}", "[DONE]"]),
    ('data: "é"\r\n\r\n: wait\r\ndata: 1\r\ndata: 2\r\n\r\ndata: half', ['"é"', "1\n2"]),
]


@pytest.mark.parametrize(("text", "told"), EVENTS)
def test_events_are_parsed_across_chunk_boundaries(
    browser: Any, server: FakeServer, text: str, told: list[str]
) -> None:
    page = visit(browser, server.url).page
    read = """async (size) => { const { events } = await import('/viewer/core/sse.js');
        const bytes = new TextEncoder().encode(TEXT); const read = [];
        const stream = new ReadableStream({ start(c) { for (let at = 0; at < bytes.length; at += size)
            c.enqueue(bytes.slice(at, at + size)); c.close(); } });
        for await (const one of events(stream)) read.push(one); return read }"""
    for size in (1, 2, 3, 5, 100):
        assert page.evaluate(read.replace("TEXT", json.dumps(text)), size) == told, size
