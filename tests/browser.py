"""A real browser for tests: Debian's Chromium, driven by playwright, and everything that a page says or asks for.

Where there is no Chromium the tests that need it are skipped and say so; with CHUMOKU_BROWSER=must they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, or the reason why there is none."""
    program = next((found for found in map(shutil.which, NAMES) if found), None)
    if program is None:
        reason = "No Chromium is installed (Debian's package is called chromium), so pages were not opened."
        if os.environ.get("CHUMOKU_BROWSER") == "must":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


@dataclass
class Heard:
    """What a page said on its console, which errors it had, and what it asked for."""

    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[tuple[Page, Heard]]:
    """An empty page with a memory of its own."""
    context = browser.new_context(**options)
    page, heard = context.new_page(), Heard()
    page.on("console", lambda message: heard.messages.append(message.text))
    page.on("pageerror", lambda error: heard.messages.append(str(error)))
    page.on("request", lambda request: heard.requests.append(request.url))
    yield page, heard
    context.close()
