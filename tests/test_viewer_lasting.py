"""The page in a browser: state that must survive switches and restarts, and requests that must be aborted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import pytest
import torch
from browser import PATIENCE, OpenPage, Visit, until, visit
from bundles import make_bundle
from fake_server import MODELS, FakeServer
from serving import Serving, serving

from chumoku.nn.positions import AlibiPositions, RelativePositions

HALF = "\ud800"  # half of a letter, as a text cut in its middle holds it


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = tmp_path_factory.mktemp("served")
    run = place / "runs" / "young"
    make_bundle(run / "checkpoints" / "step-00000007", "decoder")
    (run / "recipe.json").write_text('{"model": {"layers": 2, "heads": 3}}', "utf-8")
    (run / "metrics.jsonl").write_text('{"step": 7, "loss": 5.5}\n', "utf-8")
    with serving({"decoder": make_bundle(place / "decoder", "decoder")}, runs=place / "runs") as one:
        yield one


def open_look(open_page: OpenPage, server: Serving) -> Visit:
    visited = open_page(server.url, hash="#/look")
    visited.page.wait_for_selector(".step >> nth=-1")
    visited.wait_until_idle()
    return visited


def pending_paths(visited: Visit) -> set[str]:
    """The paths of the pending requests."""
    return {urlparse(request.url).path for request in visited.pending}


def wait_for_pending(visited: Visit, path: str, *, soon: bool = True) -> None:
    """Wait until a request is pending, or with soon=False until it no longer is."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if (path in pending_paths(visited)) == soon:
            return
        visited.page.wait_for_timeout(20)
    pytest.fail(f"{path}: {'never asked for' if soon else 'still waited for'}; {pending_paths(visited)}")


# ---- switches ----


def test_heads_stay_off_when_theme_and_language_change(server: Serving, open_page: OpenPage) -> None:
    visited = open_look(open_page, server)
    page = visited.page
    page.click("#look-tab-off")
    for place in (1, 3):
        page.click(f".off-table tbody tr:nth-child(2) button >> nth={place}")
    page.wait_for_selector(".off-pair")
    visited.wait_until_idle()
    output = page.locator(".off-side .output").all_text_contents()
    pressed = (
        "[...document.querySelectorAll('.off-table .switch')].map(one => one.getAttribute('aria-pressed') === 'true')"
    )
    before = page.evaluate(pressed)
    assert sum(before) == 2
    for switch in ("#theme", "#language"):
        page.click(switch)
        visited.wait_until_idle()
        assert page.evaluate(pressed) == before, switch
        assert page.locator(".off-side .output").all_text_contents() == output, switch
    assert page.get_attribute(".off-table .switch >> nth=0", "aria-label") == "層 0・ヘッド 0"
    assert "ビット" in page.text_content(".off-answer")
    page.click(".off-table tbody tr:nth-child(2) button >> nth=1")
    visited.wait_until_idle()
    assert sum(page.evaluate(pressed)) == 1


# ---- a single point ----


def test_run_with_one_point_is_drawn(server: Serving, open_page: OpenPage) -> None:
    visited = open_page(server.url, hash="#/runs")
    page = visited.page
    page.wait_for_selector(".runs-legend span")
    visited.wait_until_idle()
    place = "(one) => { const { x, y, right, bottom } = one.getBoundingClientRect(); return [x, y, right, bottom] }"
    left, top, right, bottom = page.eval_on_selector(".curves", place)
    x, y, _, _ = page.eval_on_selector(".curves circle.first", place)
    assert left < x < right
    assert top < y < bottom
    for step in (11, 13):
        drawn = page.evaluate(
            "async (last) => { const { lineChart } = await import('/viewer/core/charts.js');"
            " const points = [[3, 2], [5, NaN], [7, 3], [last, 4]];"
            " return lineChart({ lines: [{ points }] }).querySelectorAll('circle').length }",
            step,
        )
        assert drawn == 1, "a point alone is a dot, one with a neighbor is not"


# ---- restarted servers ----


def test_restarted_server_with_other_models(browser: Any) -> None:
    writer, talker = MODELS[2], MODELS[1]
    server = FakeServer()
    page = visit(browser, server.url, hash="#/chat").page
    page.wait_for_selector("#ch-draft")
    page.select_option("#model", "writer")
    page.fill("#ch-prompt", "a thought")
    server.close()
    page.wait_for_selector("#dead:visible")
    again = FakeServer(server.port, models=[{**talker, "id": "newcomer"}, writer])
    page.wait_for_selector("#dead", state="hidden")
    until(page, "[...document.querySelector('#model').options].map(one => one.value).join() === 'newcomer,writer'")
    assert page.input_value("#model") == "writer", "the choice is kept"
    assert page.input_value("#ch-prompt") == "a thought"
    again.close()
    page.wait_for_selector("#dead:visible")
    third = FakeServer(server.port, models=[{**talker, "id": "newcomer"}])
    until(page, "document.querySelector('#model').value === 'newcomer'")
    page.fill("#ch-draft", "one two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant footer")
    assert third.requests[-1][1]["model"] == "newcomer"
    third.close()


def test_unknown_model_reloads_the_list_of_models(browser: Any) -> None:
    server = FakeServer()
    page = visit(browser, server.url).page
    page.wait_for_selector("#tr-source")
    server.models = [{**MODELS[0], "id": "other"}]
    page.fill("#tr-source", "one two")
    page.wait_for_selector(".answer .line")
    assert page.input_value("#model") == "other"
    assert server.requests[-1][1]["model"] == "other"
    server.close()


# ---- notices about texts ----


def test_dropped_messages_are_reported(browser: Any) -> None:
    server = FakeServer()
    server.dropped_messages = 5
    page = visit(browser, server.url, hash="#/chat").page
    page.fill("#ch-draft", "one two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant footer")
    assert page.text_content(".talk .cut") == "The 5 oldest messages did not fit into the context and were left out."
    page.click("#language")
    assert page.text_content(".talk .cut") == "コンテキストに収まらないため、古いメッセージ 5 件を省きました。"
    server.dropped_messages = 0
    page.fill("#ch-draft", "three")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.talk .cut').textContent === ''")
    server.close()


def test_lone_surrogate_is_replaced(browser: Any) -> None:
    server = FakeServer()
    visited = visit(browser, server.url)
    page = visited.page
    page.wait_for_selector("#tr-source")
    put = (
        "([place, text]) => { const box = document.querySelector(place); box.value = text;"
        " box.dispatchEvent(new Event('input')) }"
    )
    page.evaluate(put, ["#tr-source", f"a{HALF}b"])
    page.wait_for_selector(".answer .line")
    assert server.requests[-1][1]["text"] == ["a\ufffdb"]
    page.click("nav a[href='#/chat']")
    page.wait_for_selector("#ch-draft")
    page.evaluate(put, ["#ch-draft", f"{HALF}c"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant footer")
    sent = next(body for _, body in reversed(server.requests) if body.get("stream"))
    assert sent["messages"][-1]["content"] == "\ufffdc"
    visited.assert_clean()
    server.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_no_line_crosses_a_row_label(browser: Any, width: int) -> None:
    server = FakeServer()
    page = visit(browser, server.url, width=width).page
    page.fill("#tr-source", "one two three five seven eleven thirteen seventeen")
    page.wait_for_selector(".stage path", state="attached")
    lines = page.locator(".stage .row:first-child .chips").bounding_box()
    below = page.locator(".stage .row:last-child .chips").bounding_box()
    names = [page.locator(f".stage .row:{which}-child .hint").bounding_box() for which in ("first", "last")]
    assert names[0]["y"] + names[0]["height"] <= lines["y"] + 1
    assert names[1]["y"] >= below["y"] + below["height"] - 1
    server.close()


# ---- aborted requests ----


def test_leaving_a_tab_aborts_its_requests(server: Serving, open_page: OpenPage) -> None:
    visited = open_page(server.url)
    page = visited.page

    def later(route: Any) -> None:
        """The lens comes with a question of its own, as for a large vocabulary."""
        result = route.fetch()
        route.fulfill(response=result, body=json.dumps({**result.json(), "lens": None}))

    page.route("**/v1/look", later)
    page.goto(f"{server.url}/#/look")
    page.wait_for_selector(".step >> nth=-1")
    visited.wait_until_idle()
    page.unroute("**/v1/look")
    page.route("**/v1/look**", lambda route: None)  # from now on nothing is answered
    page.click("#look-tab-lens")
    wait_for_pending(visited, "/v1/look")
    page.click("#look-tab-off")
    wait_for_pending(visited, "/v1/look", soon=False)
    page.click(".off-table .switch >> nth=0")
    wait_for_pending(visited, "/v1/look/ablate")
    page.click("#look-tab-heads")
    wait_for_pending(visited, "/v1/look/ablate", soon=False)
    page.select_option("[data-t-label=look_which_layer]", "1")
    wait_for_pending(visited, "/v1/look")
    page.click("#look-tab-off")
    wait_for_pending(visited, "/v1/look", soon=False)
    wait_for_pending(visited, "/v1/look/ablate")  # what was switched off is asked again
    page.click("#look-tab-steps")
    wait_for_pending(visited, "/v1/look/block")
    page.click("#look-tab-heads")
    wait_for_pending(visited, "/v1/look/block", soon=False)
    assert page.input_value("[data-t-label=look_which_layer]") == "", "the layer that never came is not shown as chosen"
    page.click("#look-tab-lens")
    wait_for_pending(visited, "/v1/look")
    page.click("nav a[href='#/playground']")
    page.wait_for_selector(".pg-table")
    assert not pending_paths(visited)


def test_changing_the_text_aborts_the_previous_look(server: Serving, open_page: OpenPage) -> None:
    visited = open_look(open_page, server)
    page = visited.page
    page.route("**/v1/look**", lambda route: None)
    page.fill("#look-text", "first")
    page.keyboard.press("Enter")
    wait_for_pending(visited, "/v1/look")
    page.fill("#look-text", "second, not yet looked at")
    wait_for_pending(visited, "/v1/look", soon=False)
    assert not page.locator(".look[aria-busy]").count()
    page.keyboard.press("Enter")
    wait_for_pending(visited, "/v1/look")
    page.select_option(".look-form select", "16")  # the same text, written on farther
    until(page, "!!document.querySelector('.look[aria-busy]')")
    visited.page.wait_for_timeout(100)
    assert [request.post_data_json["new"] for request in visited.pending] == [16]


def test_leaving_a_run_aborts_its_look(server: Serving, open_page: OpenPage) -> None:
    visited = open_page(server.url, hash="#/runs")
    page = visited.page
    page.wait_for_selector(".map-rows span")
    visited.wait_until_idle()
    path = "/v1/runs/young/look"
    texts: set[str] = set()
    page.route("**" + path, lambda route: texts.add(route.request.post_data_json["text"]))
    page.fill(".runs-text input", "another")
    wait_for_pending(visited, path)
    page.fill(".runs-text input", "")
    wait_for_pending(visited, path, soon=False)
    page.fill(".runs-text input", "a third")
    wait_for_pending(visited, path)
    page.click(".runs-list button")
    wait_for_pending(visited, path, soon=False)
    assert texts == {"another", "a third"}


# ---- positions ----


def test_relative_and_no_positions(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url, hash="#/playground").page
    page.wait_for_selector(".pg-table")
    length, width, clip = 13, 8, 5
    values, vector, both, nothing = page.evaluate(
        "async ([length, width, clip]) => { const m = await import('/viewer/views/playground/formulas.js');"
        " const sizes = { length, width, base: 100, clip };"
        " return [[...m.KINDS.relative(sizes).values], m.query(width), [...m.products('relative', sizes).values],"
        " [...m.products('none', sizes).values]] }",
        [length, width, clip],
    )
    positions = RelativePositions(clip, width)
    places = torch.arange(length)
    with torch.no_grad():
        positions.table.copy_(torch.tensor(values).view(2 * clip + 1, width))
        query = torch.tensor(vector).expand(1, 1, length, width)
        true = positions(query, places[:, None] - places[None, :])[0, 0]
    drawn = torch.tensor(both).view(length, length)
    assert torch.allclose(drawn, true / true.abs().max(), atol=1e-5)
    assert not any(nothing)
    page.click("[data-kind=relative]")
    assert page.evaluate("document.querySelector('.pg-table').height") == 33, "−16 … 16"
    assert page.locator("[data-t=pg_clip]:visible").count() == 1
    assert page.locator("[data-t=pg_base]:visible").count() == 0
    page.click("[data-kind=none]")
    assert page.locator("[data-t=pg_clip]:visible").count() == 0
    assert page.locator(".pg-waves svg").count() >= 1


@pytest.mark.parametrize("heads", [8, 13])
def test_alibi_positions(server: Serving, open_page: OpenPage, heads: int) -> None:
    page = open_page(server.url, hash="#/playground").page
    page.wait_for_selector(".pg-table")
    length, column = 11, 5
    table, matrix = page.evaluate(
        "async ([length, heads, column]) => { const m = await import('/viewer/views/playground/formulas.js');"
        " const sizes = { length, heads, column };"
        " return [[...m.KINDS.alibi(sizes).values], [...m.products('alibi', sizes).values]] }",
        [length, heads, column],
    )
    places = torch.arange(length)
    bias = AlibiPositions(heads)(places[:, None] - places[None, :], torch.float32)[0]
    assert torch.allclose(torch.tensor(table).view(length, heads), bias[:, :, 0].T, rtol=1e-6)
    assert torch.allclose(torch.tensor(matrix).view(length, length), bias[column], rtol=1e-6)
    page.click("[data-kind=alibi]")
    assert page.evaluate("document.querySelector('.pg-table').width") == 8
    assert page.locator("[data-t=pg_heads]:visible").count() == 1
    assert page.locator("[data-t=pg_width]:visible, [data-t=pg_base]:visible").count() == 0
    assert page.locator(".pg-waves >> nth=1").locator(".curve").count() == 8
    assert "in head 6" in page.text_content(".pg-pair")


@pytest.mark.slow
def test_style_sheets_of_other_views_do_not_apply(browser: Any) -> None:
    """Several views use the same class names, such as chips, steps and heads."""
    little = FakeServer()
    visited = visit(browser, little.url)
    page = visited.page
    page.fill("#tr-source", "one two three")
    page.wait_for_selector(".chip")
    looks = (
        "[...document.querySelectorAll('.stage, .chips, .chip, .step, .head, .bar')].map(one => {"
        " const { width, height } = one.getBoundingClientRect(); return [one.className, width, height] })"
    )
    before = page.evaluate(looks)
    for view, part in (("look", "#look-text"), ("playground", ".pg-table"), ("chat", "#ch-draft")):
        page.click(f"nav a[href='#/{view}']")
        page.wait_for_selector(part)
    page.click("nav a[href='#/translate']")
    page.wait_for_selector(".chip")
    visited.wait_until_idle()
    assert page.evaluate(looks) == before
    little.close()
