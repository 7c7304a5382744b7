"""Chromium without a window, for pages that are checked in a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from chumoku.errors import MissingExtraError, UsageError

# Chromium without a window system needs a third of the processor time of the whole browser.
NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
FLAGS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """The path of Chromium, if it and playwright are installed; the variable CHUMOKU_CHROMIUM can name it."""
    given = os.environ.get("CHUMOKU_CHROMIUM")
    found = next((path for name in ([given] if given else NAMES) if (path := shutil.which(name))), None)
    if given and found is None:
        raise UsageError(
            f"CHUMOKU_CHROMIUM is {given[:200]}, which is not a program. Set it to the path of Chromium, or unset it "
            "to search for an installed one."
        )
    return None if find_spec("playwright") is None else found


@contextmanager
def open_chromium(environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A running headless browser; MissingExtraError if it is not installed.

    environment    variables that are set for the browser, besides those of this process
    """
    path = find_chromium()
    if path is None:
        raise MissingExtraError(
            "Pages are checked with playwright and Chromium. Install both (pip install playwright), or set "
            "CHUMOKU_CHROMIUM to the path of the browser."
        )
    from playwright.sync_api import Error, sync_playwright

    no_sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # it does not start as root with one
    with sync_playwright() as play:
        variables = {**os.environ, **(environment or {})}
        try:
            browser = play.chromium.launch(executable_path=path, args=[*FLAGS, *no_sandbox], env={**variables})
        except Error as error:
            raise MissingExtraError(f"Chromium ({path}) did not start: {str(error).strip()[:200]}") from error
        yield browser
        browser.close()
