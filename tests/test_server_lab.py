"""The lab report opens in the language and theme of the page around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import OpenPage
from bundles import make_bundle
from serving import Serving, serving

from chumoku.lab import report
from chumoku.server import lab


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "report.html").write_text(report.render_page([]), "utf-8")
    with serving({"decoder": make_bundle(tmp_path / "decoder", "decoder")}, lab=tmp_path / "lab") as running:
        yield running


def test_report_in_a_language_and_theme(server: Serving, tmp_path: Path) -> None:
    plain = server.client.get("/lab/report.html")
    assert plain.content == (tmp_path / "lab" / "report.html").read_bytes()
    english = server.client.get("/lab/report.html?language=en&theme=light")
    assert english.text.count(" checked>") == 1
    assert 'id="l-en" aria-label="English" checked>' in english.text
    assert '<html lang="en">' in english.text
    dark = server.client.get("/lab/report.html?language=ja&theme=dark")
    assert 'id="l-ja" aria-label="日本語" checked>' in dark.text
    assert dark.text.count("<style>") == 2
    assert dark.headers["content-security-policy"].count("'sha256-") == 2
    assert "<script" not in dark.text
    for wrong in ("language=fr", "theme=%3Cscript%3E", "language="):
        assert server.client.get(f"/lab/report.html?{wrong}").status_code == 400


def test_report_of_a_short_run_is_found(server: Serving, open_page: OpenPage, tmp_path: Path) -> None:
    assert server.client.get("/v1/lab").json() == {"report": True, "quick": False}
    (tmp_path / "lab").rename(tmp_path / "lab-quick")
    assert server.client.get("/v1/lab").json() == {"report": True, "quick": True}
    page = open_page(server.url, hash="#/lab").page
    page.wait_for_selector(".lab-frame")
    assert page.text_content(".lab-quick code") == "chumoku lab run all"
    assert "executed" in page.frame_locator(".lab-frame").locator("h1").inner_text()
    (tmp_path / "lab-quick" / "report.html").unlink()
    assert server.client.get("/v1/lab").json() == {"report": False, "quick": False}


def test_unknown_report_is_not_changed() -> None:
    html = "<!doctype html><h1>Found</h1>"
    assert lab.apply_view(html, "en", "dark") == html


@pytest.mark.parametrize(("language", "theme"), [("en-GB", "dark"), ("ja-JP", "light")])
def test_report_frame_follows_the_page(server: Serving, open_page: OpenPage, language: str, theme: str) -> None:
    visited = open_page(server.url, hash="#/lab", language=language, theme=theme)

    def shown() -> tuple[str, bool]:
        visited.page.wait_for_selector(".lab-frame")
        frame = visited.page.frame_locator(".lab-frame")
        frame.locator("h1").wait_for()
        color = frame.locator(".page").evaluate("one => getComputedStyle(one).backgroundColor")
        return frame.locator("h1").inner_text(), color != "rgb(255, 255, 255)"

    before = shown()
    assert ("executed" in before[0], before[1]) == (language == "en-GB", theme == "dark")
    for switch in ("#language", "#theme"):
        with visited.page.expect_response(lambda answer: "/lab/report.html" in answer.url):
            visited.page.click(switch)
    visited.page.wait_for_timeout(200)
    after = shown()
    assert ("executed" in after[0], after[1]) == (language != "en-GB", theme != "dark")
