"""Self-contained pages in a real browser: they open from disk, log nothing and send no requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import monitored_page
from test_look import folders, hostile_snapshot, run_look, without_plots

from chumoku.lab import report, runner
from chumoku.lab.experiment import QUICK
from chumoku.probe.page import write_page

WIDTHS = [1400, 390]
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
        assert page.locator("#grid button").count() > 0
        assert overflow(page) <= 0
        page.locator("#map").focus()
        result = set()
        for key in ("Left", "Up", "Right", "Down"):
            page.keyboard.press(f"Arrow{key}")
            result.add(page.locator("#cell").inner_text())
        assert len(result) >= 2, "the arrow keys move over the map"
        page.get_by_role("button", name="日本語").click()
        assert page.get_by_text("各ヘッドのエントロピー").is_visible()
        assert not page.get_by_text("Entropy of each head").is_visible()
        assert overflow(page) <= 0
        assert log.messages == []
        assert log.requests == [url]


def test_hostile_names_stay_text(tmp_path: Path, browser: Any) -> None:
    html = "<img src=x onerror=\"document.title='run'\">"
    path = write_page(hostile_snapshot(), tmp_path / "look.html", model=html, text=html, said=html)
    with monitored_page(browser) as (page, log):
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.goto(path.as_uri())
        assert page.locator("#said").inner_text().endswith(html)
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
