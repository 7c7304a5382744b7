"""The certificate of a page: it is opened in Chromium, offline, and compares itself with Python's numbers.

    page → view "About this page" → "Check now" → results of each engine (in_page/certificate.js)

Without Chromium nothing is checked, and the page says so; it can compare itself wherever it is opened.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import chumoku
from chumoku.errors import DamagedError
from chumoku.text.progress import Progress, silent
from chumoku.web.chromium import open_chromium

PATIENCE = 900.0  # seconds
POLL = 200  # ms


def check_in_chromium(page: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """The certificate of a page; DamagedError if the page differs from Python, MissingExtraError without Chromium."""
    with open_chromium() as browser:
        return certify_page(browser, page, progress=progress)


def certify_page(browser: Any, page: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """The certificate of a page in an open browser (of playwright): { browser, versions, results }."""
    from playwright.sync_api import Error

    context = browser.new_context(offline=True, locale="en-US")
    try:
        tab = context.new_page()
        messages: list[str] = []
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(f"{page.as_uri()}#/about")
        wait_for(tab, "document.documentElement.dataset.page !== 'opening'", messages, progress)
        if tab.evaluate("document.documentElement.dataset.page") != "open":
            raise failure(tab.inner_text("body"))
        tab.click(".about button.go")
        wait_for(tab, "!document.querySelector('.about button.go').disabled", messages, progress)
        results = json.loads(tab.get_attribute(".about", "data-results") or "null")
        if results is None or messages:
            raise failure(" ".join([tab.inner_text(".about .error"), *messages]))
        if results[0]["engine"] != "wasm":  # About this page says why
            raise failure(tab.inner_text(".about dl"))
        certificate = {"browser": " ".join(("Chromium", browser.version)), "versions": {"chumoku": chumoku.__version__}}
        certificate["results"] = results
    except Error as error:  # the browser has ended, for lack of memory for example
        raise failure(str(error)) from error
    finally:
        context.close()
    if not all(result["passed"] for result in results):
        raise DamagedError(f"{' '.join(summarize(certificate))} The page is not the same, so it was deleted.")
    return certificate


def wait_for(tab: Any, expression: str, messages: list[str], progress: Progress) -> None:
    """Wait until an expression is true. (Playwright's own way needs eval, which the page's policy forbids.)"""
    end, shown = time.monotonic() + PATIENCE, ""
    while not tab.evaluate(expression):
        if time.monotonic() > end:
            raise failure(f"It has not finished after {PATIENCE:.0f} seconds.")
        text = tab.evaluate("document.querySelector('.about [role=status]')?.textContent ?? ''")
        numbers = [int(word) for word in text.split() if word.isdigit()]
        if text != shown and len(numbers) == 2:
            progress("check in Chromium", numbers[0], numbers[1], "inputs")
            shown = text
        tab.wait_for_timeout(POLL)


def failure(reason: str) -> DamagedError:
    return DamagedError(f"The page did not work in Chromium, so it was deleted: {reason.strip()[:500]}")


def summarize(certificate: dict[str, Any]) -> list[str]:
    """The certificate in sentences, one for each engine."""
    return [describe_result(certificate["browser"], result) for result in certificate["results"]]


def describe_result(browser: str, result: dict[str, Any]) -> str:
    names = {"wasm": "WebAssembly", "javascript": "JavaScript"}
    largest, best, generated, texts = (result[name] for name in ("largest", "best", "generated", "texts"))
    rate = result["tokens_per_second"]
    where = f"{browser}, {names[result['engine']]}"
    sentences = [
        f"{where}: {result['compared']} differ from Python's by {result['apart']:.2g} (root mean square of "
        f"{result['numbers']:,} numbers; {result['limit']:.2g} is allowed), at most by "
        f"{largest['difference']:.2g} ({largest['place']})."
    ]
    if generated["total"]:
        sentences.append(f"Of the generated tokens, {generated['equal']} of {generated['total']} are equal.")
    if result["compared"] == "logits":
        sentences.append(f"The most likely token is the same at {best['equal']} of {best['total']} positions.")
    sentences.append(f"Of the texts, {texts['equal']} of {texts['total']} have equal tokens.")
    if rate is not None:
        sentences.append(f"Speed: {float(f'{rate:.3g}'):,.10g} tokens per second.")
    return " ".join(sentences)
