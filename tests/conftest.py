from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# One thread in this process and in those it starts: more would only disturb each other, and torch.set_num_threads does
# not reach oneDNN's threads. Read when PyTorch is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CHUMOKU_LANG"] = "en"  # whatever the locale is

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run in Triton's interpreter; chosen before anything imports Triton

from browser import OpenPage, Visit, open_browser, visit
from bundles import chat_tokenizer, make_bundle
from commands import Ask, command
from hypothesis import settings

from chumoku.messages import use_language

gc.disable()  # until all tests are collected
os.fsync = os.fstat  # also fails for what is not an open file, but does not wait for the disk
settings.register_profile("house", deadline=None, derandomize=True, database=None)
settings.load_profile("house")


@pytest.hookimpl(tryfirst=True)  # before -m selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a test with `sample(n)` as slow, except n of them, spread evenly.

    Tests in a browser come first: they wait more than they compute, while other workers compute.
    """
    items.sort(key=lambda item: "browser" not in getattr(item, "fixturenames", ()))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for some in cases.values():
        marker = some[0].get_closest_marker("sample")
        count = min(len(some), marker.args[0] if marker else 0)
        fast = {(2 * number + 1) * len(some) // (2 * count) for number in range(count)}
        for number, item in enumerate(some):
            if number not in fast:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """From here on collect garbage, but not among the imported modules and the collected tests, which all stay."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def process_settings() -> None:
    """Undo what a test before this one may have changed for the whole process.

    Where the processor has no bf16 instructions, PyTorch's first bf16 product switches oneDNN off, and float32 sums are
    rounded otherwise from then on. Commands let a closed pipe end the process, and choose the language.
    """
    torch._C._set_mkldnn_enabled(True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    use_language("en")


@pytest.fixture(scope="module")
def browser_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module's own: while playwright runs, no event loop can be started beside it."""
    with open_browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def browser(browser_process: Any) -> Iterator[Any]:
    """A browser without pages; those that a test opens are closed at its end, or they would go on computing."""
    yield browser_process
    for context in browser_process.contexts:
        context.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open an address; at the end of the test its page must have no errors and no requests to other origins."""
    visits: list[Visit] = []

    def open_(url: str, **options: Any) -> Visit:
        visits.append(visit(browser, url, **options))
        return visits[-1]

    yield open_
    for one in visits:
        one.assert_clean()


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in this process."""
    return functools.partial(command, capfd=capfd, monkeypatch=monkeypatch)


@pytest.fixture
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no loss and do not measure the processor, which takes half of the time of a very small run."""
    monkeypatch.setattr("chumoku.training.run.draw_loss_curve", lambda *_: None)
    for module in ("run", "plan"):
        monkeypatch.setattr(f"chumoku.training.{module}.measure_matmul_flops", lambda *_: 1e9)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder with a chat template."""
    return make_bundle(tmp_path_factory.mktemp("models") / "writer", "decoder", chat_tokenizer())


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a table of sentence pairs."""
    from faults import write_corpora  # changes the environment of its process

    folder = tmp_path_factory.mktemp("corpora")
    write_corpora(folder)
    return folder
