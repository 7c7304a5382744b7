"""Decoding in a browser, compared with the native engine on one thread in the same run.

    python benchmarks/web.py [--rounds 5] [--only translator|decoder] [--threads 2]

    translator   the shipped ja-en translator: a source of 23 tokens is encoded, then 32 tokens, greedy and 4 beams
    decoder      SmolLM2-135M's shape with random weights: a prompt of 128 tokens, then 32 tokens one by one, greedy

Both have the page's int8 weights. The browser is headless Chromium with one thread, and computes what the worker of a
web page computes (WasmEngine of chumoku/viewer/in_page/wasm); with --threads, a worker with so many threads, too. With
4 beams, rows are reordered after every step, as in a beam search. The programs run alternately. Prints one JSON line:
milliseconds for the source and the prompt, tokens per second of all rows (medians), and the speed of the browser with
one thread as a share of the native engine's.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

import chumoku
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.models.model import Model
from chumoku.probe.inline_modules import inline_modules
from chumoku.web.build_wasm import LIBRARY, THREADS_LIBRARY
from chumoku.web.container import prepare_model, write_container

NEW, SOURCE, PROMPT = 32, 23, 128
PARENTS = [0, 0, 1, 2]
TYPES = {"": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}
PAGE = """
import { Container } from "./in_page/container.js";
import { Model } from "./in_page/model.js";
import { WasmEngine } from "./in_page/wasm/engine.js";
import { runThread } from "./in_page/wasm/threads.js";

addEventListener("message", ({ data }) => data.thread && runThread(data.thread));

const read = async (name) => (await fetch(name)).arrayBuffer();
const highest = (logits) => logits.reduce((best, value, token) => (value > logits[best] ? token : best), 0);

globalThis.openEngine = async (threads) => {
  const start = performance.now();
  const model = new Model(new Container(await read("/model.bin")));
  const library = await read(threads > 1 ? "/step_threads.wasm" : "/step.wasm");
  globalThis.engine = await WasmEngine.open(model, library, threads);
  return (performance.now() - start) / 1000;
};

globalThis.decode = async (rows, source, prompt, count, parents) => {
  const session = await engine.open({ rows, capacity: prompt.length + count });
  const start = performance.now();
  if (source.length > 0) await session.encode(new Array(rows).fill(source));
  let logits = await session.append(Array.from({ length: rows }, (_, row) => ({ row, tokens: prompt })));
  const begin = performance.now();
  for (let step = 0; step < count; step++) {
    if (rows > 1) session.reorder(parents);
    logits = await session.append(logits.map((each, row) => ({ row, tokens: [highest(each)] })));
  }
  const end = performance.now();
  session.close();
  return [(begin - start) / 1000, (end - begin) / 1000];
};
"""


class Task(NamedTuple):
    rows: int
    source: list[int]
    prompt: list[int]


Times = tuple[float, float]  # seconds for the source and the prompt, and for the new tokens


def native(model: Model, task: Task) -> Times:
    engine = NativeEngine(model, rows=task.rows, capacity=len(task.prompt) + NEW)  # type: ignore[arg-type]
    start = time.perf_counter()
    if task.source:
        engine.add_rows(task.rows, [task.source] * task.rows)
    else:
        engine.add_rows(task.rows)
    logits = engine.prefill([task.prompt] * task.rows)
    begin = time.perf_counter()
    for _ in range(NEW):
        if task.rows > 1:
            engine.select_rows(PARENTS)
        logits = engine.step(logits.argmax(-1))
    return begin - start, time.perf_counter() - begin


@contextmanager
def open_page(
    model: Model, others: Mapping[str, bytes] = MappingProxyType({}), script: str = "", *, isolated: bool = False
) -> Iterator[Any]:
    """A page of headless Chromium with an engine for this model.

    others    more contents for the page to fetch, by their paths
    script    another module of the page
    isolated  whether it can have several threads
    """
    from playwright.sync_api import sync_playwright

    viewer = files("chumoku") / "viewer"
    ours = inline_modules("page.js", lambda name: PAGE if name == "page.js" else (viewer / name).read_text("utf-8"))
    content = {
        "/": "".join(f'<script type="module">{each}</script>' for each in (ours, script)).encode(),
        "/model.bin": write_container(model, name="benchmark"),
        "/worker.js": ours.encode(),
        "/step.wasm": LIBRARY.read_bytes(),
        "/step_threads.wasm": THREADS_LIBRARY.read_bytes(),
        **others,
    }
    names = (os.environ.get("CHUMOKU_CHROMIUM"), "chromium-headless-shell", "chromium", "google-chrome")
    browser_path = next(filter(None, (shutil.which(name) for name in names if name)), None)
    with serve(content, isolated=isolated) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(address)
        print(f"opened in {page.evaluate('openEngine(1)'):.2f} s", file=sys.stderr)
        yield page
        browser.close()


@contextmanager
def serve(content: Mapping[str, bytes], *, isolated: bool = False) -> Iterator[str]:
    """The address of a server of these contents on this machine; isolated: pages can share memory between threads."""
    headers = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = content.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", TYPES.get(Path(self.path).suffix, "application/octet-stream"))
            for name, value in headers.items() if isolated else ():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def decode_in(place: Any, task: Task) -> Times:
    """By the engine of a page or of a worker."""
    first, new = place.evaluate("([...values]) => decode(...values)", [*task, NEW, PARENTS])
    return first, new


def open_worker(page: Any, threads: int) -> Any:
    """A worker of the page with an engine of so many threads."""
    with page.expect_worker() as started:
        page.evaluate("() => { new Worker('/worker.js') }")
    started.value.evaluate("(threads) => openEngine(threads)", threads)
    return started.value


def compare(model: Model, tasks: dict[str, Task], rounds: int, threads: int) -> dict[str, object]:
    results: dict[str, object] = {}
    with open_page(model, isolated=threads > 1) as page, torch.inference_mode():
        programs: dict[str, Callable[[Task], Times]] = {
            "browser": partial(decode_in, page),
            "native": partial(native, model),
        }
        if threads > 1:
            programs[f"browser, {threads} threads"] = partial(decode_in, open_worker(page, threads))
        for name, task in tasks.items():
            times: dict[str, list[Times]] = {program: [] for program in programs}
            for number in range(rounds + 1):
                for program, run in programs.items():
                    found = run(task)
                    times[program] += [found] if number else []  # the first round compiles
            results[name] = summarize(times, task.rows)
    return results


def summarize(times: dict[str, list[Times]], rows: int) -> dict[str, object]:
    first, new = (
        {program: statistics.median(each[part] for each in all_times) for program, all_times in times.items()}
        for part in range(2)
    )
    return {
        "first ms": {program: round(1000 * seconds, 1) for program, seconds in first.items()},
        "tokens/s": {program: round(rows * NEW / seconds, 1) for program, seconds in new.items()},
        "share": round(new["native"] / new["browser"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["translator", "decoder"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, object] = {}
    if options.only != "decoder":
        model = prepare_model(chumoku.load("ja-en").model)
        source = [7 * place + 11 for place in range(SOURCE)]
        tasks = {f"beam {rows}": Task(rows, source, [1]) for rows in (1, 4)}
        results["translator"] = compare(model, tasks, options.rounds, options.threads)
    if options.only != "translator":
        model = prepare_model(chumoku.build(chumoku.preset("smollm2-135m")).eval())
        results["decoder"] = compare(
            model, {"greedy": Task(1, [], list(range(7, 7 + PROMPT)))}, options.rounds, options.threads
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
