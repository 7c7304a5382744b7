"""Self-contained pages in a real browser: they open from disk, log nothing and send no requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import monitored_page
from cells import Cell
from test_look import folders, hostile_snapshot, page_data, run_look, unpack_weights, without_plots

from chumoku.lab import report, runner
from chumoku.lab.experiment import QUICK
from chumoku.models.build import build
from chumoku.probe.page import write_page
from chumoku.probe.snapshot import LookInput, take_snapshot

WIDTHS = [1400, 390]
# Boxes that hide a part of what is in them, but do not fade there.
HIDDEN_PARTS = """[...document.querySelectorAll('main *')].filter(one => {
    const sideways = one.scrollWidth > one.clientWidth + 1, below = one.scrollHeight > one.clientHeight + 1;
    const style = getComputedStyle(one);
    const scrolls = [style.overflowX, style.overflowY].some(way => way === 'auto' || way === 'scroll');
    return scrolls && (sideways && !one.matches('.more-after') || below && !one.matches('.more-below'));
}).map(one => one.className)"""
__all__ = ["folders", "without_plots"]


def overflow(page: Any) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return found


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_look_page_opens_from_disk(
    kind: str, width: int, folders: dict[str, Path], tmp_path: Path, browser: Any
) -> None:
    run_look(str(folders[kind]), "abcdefg hijk", "--out", str(tmp_path))
    url = (tmp_path / "look.html").as_uri()
    with monitored_page(browser, viewport={"width": width, "height": 997}) as (page, log):
        page.goto(url)
        assert log.requests == [url]
        assert page.locator(".heads-grid button").count() == 6
        page.wait_for_timeout(50)  # the edges fade when the sizes are known
        assert page.evaluate(HIDDEN_PARTS) == []
        assert overflow(page) <= 0
        page.locator(".map-canvas").focus()
        readouts = set()
        for key in ("Left", "Up", "Right", "Down"):
            page.keyboard.press(f"Arrow{key}")
            readouts.add(page.locator(".map-readout").inner_text())
        assert len(readouts) >= 2, "the arrow keys move over the map"
        page.get_by_role("button", name="日本語").click()
        assert page.get_by_text("各ヘッドのエントロピー").is_visible()
        assert not page.get_by_text("Entropy of each head").is_visible()
        assert overflow(page) <= 0
        assert log.messages == []
        assert log.requests == [url]


@pytest.mark.usefixtures("without_plots")
def test_look_page_answers_pointer_and_keys(folders: dict[str, Path], tmp_path: Path, browser: Any) -> None:
    run_look(str(folders["encoder-decoder"]), "one cat", "--to", "xyz", "--out", str(tmp_path))
    with monitored_page(browser, viewport={"width": 1400, "height": 997}) as (page, log):
        page.goto((tmp_path / "look.html").as_uri())
        title, readout = page.locator(".heads-large h2"), page.locator(".map-readout")
        assert title.inner_text() == "Layer (mean), head (mean)"
        page.locator(".prediction").nth(2).click()
        assert readout.inner_text().startswith("z attends to ")
        assert "rank 1 of 8 in its row" in readout.inner_text()
        page.locator(".map-canvas").hover(position={"x": 3, "y": 3})
        assert readout.inner_text().startswith("x attends to o")
        page.locator("h1").hover()
        assert readout.inner_text().startswith("z attends to "), "the pressed cell again"
        page.locator(".chip[data-part=encoder]").nth(3).click()
        page.keyboard.press("ArrowRight")
        assert readout.inner_text().startswith("c attends to c")
        page.locator(".entropy-table button").nth(5).click()
        assert title.inner_text() == "Layer 1, head 2"
        single = page.evaluate("document.querySelector('.map-canvas').toDataURL()")
        page.select_option("[data-t-label=look_head]", "")
        assert title.inner_text() == "Layer 1, head (mean)"
        assert page.evaluate("document.querySelector('.map-canvas').toDataURL()") != single
        page.locator(".lens-table td[data-layer='0'][data-place='0']").focus()
        page.keyboard.press("ArrowRight")
        assert "After the embedding, at x" in page.locator(".lens-best").inner_text()
        page.keyboard.press("ArrowUp")
        assert "After layer 0, at x" in page.locator(".lens-best").inner_text(), "as in decoder.blocks.0"
        blocks = page.locator(".curves").first.locator(".tick.middle").all_text_contents()
        assert blocks == ["x₀", "0", "1"]
        assert log.messages == []


def test_all_maps_are_painted_before_printing(tmp_path: Path, browser: Any) -> None:
    path = write_page(hostile_snapshot(), tmp_path / "look.html", model="m", text="t\n" * 43, output="s")
    widths = "[...document.querySelectorAll('.heads-grid canvas')].map(one => one.width)"
    with monitored_page(browser, viewport={"width": 997, "height": 307}) as (page, _):
        page.goto(path.as_uri())
        assert 7 not in page.evaluate(widths), "not in view: not painted yet"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(widths) == [7] * 6


def test_mean_map_equals_the_mean_of_its_heads(tmp_path: Path, browser: Any) -> None:
    path = write_page(hostile_snapshot(), tmp_path / "look.html", model="m", text="t", output="s")
    data = page_data(path)
    expected = unpack_weights(data["maps"][0])[:, :, 6].mean((0, 1))
    with monitored_page(browser) as (page, _):
        page.goto(path.as_uri())
        page.locator(".prediction").last.click()
        page.keyboard.press("ArrowLeft")
        text = page.locator(".map-readout").inner_text()
    largest = sorted(expected, reverse=True)[:3]
    shown = [float(part) for part in re.findall(r"([\d.]+) %", text.splitlines()[1])]
    assert shown == pytest.approx([100 * part for part in largest], abs=0.51)


def test_nan_is_shown_on_the_look_page(tmp_path: Path, browser: Any) -> None:
    model = build(Cell("decoder").config(), seed=3)
    with torch.no_grad():
        model.get_parameter("decoder.blocks.0.feedforward.down.weight")[0, 0] = float("nan")
    snapshot = take_snapshot(model, LookInput([1, 2, 3, 5], lambda token: f"▁{token}", prompt_length=3))
    path = write_page(snapshot, tmp_path / "look.html", model="m", text="t", output="")
    with monitored_page(browser) as (page, log):
        page.goto(path.as_uri())
        assert page.get_by_text("▁ in a token stands for a space").is_visible()
        assert page.locator(".entropy-table .nan").count() == 3
        assert page.locator(".lens-table td.nan").count() > 0
        page.select_option("[data-t-label=look_layer]", "1")
        page.locator(".map-canvas").focus()
        page.keyboard.press("ArrowUp")
        assert page.locator(".map-readout").inner_text() == "▁1 attends to ▁1: NaN"
        assert log.messages == []


def test_hostile_names_stay_text(tmp_path: Path, browser: Any) -> None:
    html = "<img src=x onerror=\"document.title='run'\">"
    path = write_page(hostile_snapshot(), tmp_path / "look.html", model=html, text=html, output=html)
    with monitored_page(browser) as (page, log):
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.goto(path.as_uri())
        assert page.locator(".about .output").inner_text().endswith(html)
        assert not page.locator(".space-hint").is_visible(), "no token has ▁"
        assert page.title() != "run"
        assert log.messages == []
        assert len(log.requests) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_lab_report_opens_from_disk(width: int, tmp_path: Path, browser: Any) -> None:
    runner.run(["attention-cat", "sgd", "gram"], QUICK, tmp_path)
    url = report.write(tmp_path).as_uri()
    with monitored_page(browser, viewport={"width": width, "height": 997}) as (page, log):
        page.goto(url)
        assert [one for one in log.requests if not one.startswith("data:")] == [url]
        assert overflow(page) <= 0
        assert page.get_by_text("成り立たない").first.is_visible()
        page.locator("label[for=l-en]").click()
        assert page.get_by_text("does not hold").first.is_visible()
        assert not page.get_by_text("成り立たない").first.is_visible()
        pictures = page.locator("figure img")
        assert pictures.count() == 3
        assert all(pictures.nth(number).evaluate("one => one.naturalWidth > 300") for number in range(3))
        assert log.messages == []


def test_logs_and_requests_of_a_page_are_detected(tmp_path: Path, browser: Any) -> None:
    path = tmp_path / "loud.html"
    path.write_text("<img src='other.png'><script>console.log('hello'); nothing()</script>", encoding="utf-8")
    with monitored_page(browser) as (page, log):
        page.goto(path.as_uri())
        assert len(log.requests) == 2
        assert any("hello" in message for message in log.messages)
        assert any("nothing is not defined" in message for message in log.messages)
