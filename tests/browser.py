"""A browser for the page's tests: Chromium without a window, and everything it complained about.

page   →   seen.complaints   console errors and warnings, errors of scripts, dialogs
           seen.outside      requests to any other origin
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Where Chromium lies; a test without one says so and is skipped, or fails, with CHUMOKU_BROWSER=must."""
    names = (os.environ.get("CHUMOKU_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((place for name in names if name and (place := shutil.which(name))), None)
    if find_spec("playwright") is None or found is None:
        leave = pytest.fail if os.environ.get("CHUMOKU_BROWSER") == "must" else pytest.skip
        leave("Pages are tried in Chromium, by playwright: install both, or name the browser in CHUMOKU_CHROMIUM.")
    return found


def fonts(folder: Path) -> dict[str, str]:
    """An environment in which Japanese can be drawn, where matplotlib-fontja brought a font and the system has none."""
    spec = find_spec("matplotlib_fontja")
    if spec is None or spec.origin is None:
        return {}
    settings = folder / "fonts.conf"
    places = f"<dir>{Path(spec.origin).parent / 'fonts'}</dir><include>/etc/fonts/fonts.conf</include>"
    settings.write_text(f'<?xml version="1.0"?><fontconfig>{places}</fontconfig>', encoding="utf-8")
    return {"FONTCONFIG_FILE": str(settings)}


@dataclass
class Seen:
    """A page, and what it did that it should not."""

    page: Any
    origin: str
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    asking: set[Any] = field(default_factory=set)

    def listen(self) -> None:
        self.page.on("console", self.said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self.requested)
        for end in ("requestfinished", "requestfailed"):
            self.page.on(end, lambda request: self.asking.discard(request))

    def said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def requested(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.outside.append(request.url)
        if not request.url.endswith("/health"):
            self.asking.add(request)

    def settle(self, *, quiet: float = 0.1, seconds: float = 20.0) -> None:
        """Wait until no request has been under way for a while."""
        end = time.monotonic() + seconds
        since = time.monotonic()
        while time.monotonic() - since < quiet:
            assert time.monotonic() < end, [request.url for request in self.asking]
            self.page.wait_for_timeout(20)
            since = time.monotonic() if self.asking else since

    def clean(self) -> None:
        """Nothing was complained of, and nobody else was asked anything."""
        assert not self.complaints, self.complaints
        assert not self.outside, self.outside


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    """A browser."""
    place = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        one = play.chromium.launch(executable_path=place, args=list(FLAGS), env={**os.environ, **fonts(folder)})
        yield one
        one.close()


@dataclass
class Heard:
    """All that a page said and asked for."""

    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def heard(browser: Any, **options: Any) -> Iterator[tuple[Any, Heard]]:
    """An empty page of which every word is heard."""
    place = browser.new_context(**options)
    page, found = place.new_page(), Heard()
    page.on("console", lambda message: found.messages.append(message.text))
    page.on("pageerror", lambda error: found.messages.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    yield page, found
    place.close()


def until(page: Any, expression: str, *, seconds: float = 10.0) -> None:
    """Wait for something to be true in a page. (The page's policy forbids playwright's own way: it needs eval.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never came true: {expression}"
        page.wait_for_timeout(20)


def visit(
    browser: Any,
    url: str,
    *,
    width: int = 1400,
    height: int = 900,
    language: str = "en-GB",
    theme: str = "light",
    hash: str = "",
) -> Seen:
    """A fresh visitor at an address."""
    place = browser.new_context(viewport={"width": width, "height": height}, locale=language, color_scheme=theme)
    place.set_default_timeout(10_000)
    seen = Seen(place.new_page(), url)
    seen.listen()
    seen.page.goto(f"{url}/{hash}")
    return seen
