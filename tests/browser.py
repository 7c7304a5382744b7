"""Headless Chromium for the tests of pages, with a log of everything that went wrong.

Visit.errors             console errors and warnings, script errors, dialogs
Visit.foreign_requests   requests to any other origin
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from chumoku.probe.inline_modules import inline_modules
from chumoku.web.chromium import find_chromium, open_chromium

ENTRY_NAME = "in_page/test.js"
PATIENCE = 60.0  # seconds to wait for what takes less than one on an idle machine


def require_chromium() -> None:
    """Without Chromium the test is skipped, or fails if CHUMOKU_BROWSER=must."""
    if find_chromium() is None:
        stop = pytest.fail if os.environ.get("CHUMOKU_BROWSER") == "must" else pytest.skip
        stop("Pages are tested with playwright and Chromium: install both, or set CHUMOKU_CHROMIUM to the browser.")


def font_environment(folder: Path) -> dict[str, str]:
    """Environment variables that make the Japanese font of matplotlib-fontja available, if it is installed."""
    spec = find_spec("matplotlib_fontja")
    if spec is None or spec.origin is None:
        return {}
    settings = folder / "fonts.conf"
    places = f"<dir>{Path(spec.origin).parent / 'fonts'}</dir><include>/etc/fonts/fonts.conf</include>"
    settings.write_text(f'<?xml version="1.0"?><fontconfig>{places}</fontconfig>', encoding="utf-8")
    return {"FONTCONFIG_FILE": str(settings)}


@dataclass
class Visit:
    """An open page, with its errors and its requests."""

    page: Any
    origin: str
    errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)
    pending: set[Any] = field(default_factory=set)

    def listen(self) -> None:
        self.page.on("console", self.on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self.on_request)
        for end in ("requestfinished", "requestfailed"):
            self.page.on(end, lambda request: self.pending.discard(request))

    def on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def on_request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.foreign_requests.append(request.url)
        if not request.url.endswith("/health"):
            self.pending.add(request)

    def wait_until_idle(self, *, quiet: float = 0.1, seconds: float = PATIENCE) -> None:
        """Wait until there has been no pending request for `quiet` seconds."""
        end = time.monotonic() + seconds
        since = time.monotonic()
        while time.monotonic() - since < quiet:
            assert time.monotonic() < end, [request.url for request in self.pending]
            self.page.wait_for_timeout(20)
            since = time.monotonic() if self.pending else since

    def assert_clean(self) -> None:
        """Check that there were no errors and no requests to other origins."""
        assert not self.errors, self.errors
        assert not self.foreign_requests, self.foreign_requests


OpenPage = Callable[..., Visit]


@contextmanager
def open_browser(folder: Path) -> Iterator[Any]:
    """A running headless browser; `folder` is for its font settings."""
    require_chromium()
    with open_chromium(font_environment(folder)) as one:
        yield one


@dataclass
class PageLog:
    """All messages and requests of a page."""

    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def monitored_page(browser: Any, **options: Any) -> Iterator[tuple[Any, PageLog]]:
    """An empty page, with a log of its messages and requests."""
    context = browser.new_context(**options)
    page, log = context.new_page(), PageLog()
    page.on("console", lambda message: log.messages.append(message.text))
    page.on("pageerror", lambda error: log.messages.append(str(error)))
    page.on("request", lambda request: log.requests.append(request.url))
    yield page, log
    context.close()


def inline_entry(entry: str) -> str:
    """A script of JavaScript that imports modules of viewer/in_page, with all of them inside."""
    folder = files("chumoku") / "viewer"
    return inline_modules(
        ENTRY_NAME, lambda name: entry if name == ENTRY_NAME else (folder / name).read_text(encoding="utf-8")
    )


@contextmanager
def module_page(browser: Any, entry: str, *, more: str = "") -> Iterator[Any]:
    """A page that runs `inline_entry(entry)` and then `more`; it must not log anything."""
    with monitored_page(browser) as (page, log):
        page.set_content(f'<script type="module">{inline_entry(entry)}{more}</script>')
        yield page
        assert log.messages == []


def until(page: Any, expression: str, *, seconds: float = PATIENCE) -> None:
    """Wait until an expression is true in a page. (Playwright's own way needs eval, which the policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not true in time: {expression}"
        page.wait_for_timeout(20)


def open_view(page: Any, name: str) -> None:
    """Click on a view's name and wait until it is shown instead of the one before."""
    page.click(f"[data-view={name}]")
    until(page, f"document.getElementById('view').className === 'view-{name}'")


def visit(
    browser: Any,
    url: str,
    *,
    width: int = 1400,
    height: int = 900,
    language: str = "en-GB",
    theme: str = "light",
    hash: str = "",
) -> Visit:
    """Open an address in a new browser context."""
    context = browser.new_context(viewport={"width": width, "height": height}, locale=language, color_scheme=theme)
    context.set_default_timeout(1000 * PATIENCE)
    opened = Visit(context.new_page(), url)
    opened.listen()
    opened.page.goto(f"{url}/{hash}")
    return opened
