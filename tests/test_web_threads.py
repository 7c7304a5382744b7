"""Threads of web pages: where a page is isolated from other origins, several threads give the bits of one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from browser import inline_entry, monitored_page, until
from bundles import byte_tokenizer, make_bundle
from web_models import ENTRY, HELPERS, VOCABULARY, build_random, to_text

from chumoku.models.config import ModelConfig
from chumoku.web.build_wasm import LIBRARY, THREADS_LIBRARY
from chumoku.web.container import write_container
from chumoku.web.export import export_page
from chumoku.web.tokenizer_data import tokenizer_data

IMPORTS = """
import { WasmEngine } from "./wasm/engine.js";
import { openRuntime } from "./runtime.js";
import { runThread } from "./wasm/threads.js";
Object.assign(window.modules, { WasmEngine, openRuntime });
addEventListener("message", ({ data }) => data.thread && runThread(data.thread));
"""
# The logits of a prompt, of a step of three rows, and of one row, by each number of threads.
DECODE = """
async ({ container, libraries, counts, source, prompt }) => {
  const found = [];
  for (const threads of counts) {
    const library = toBytes(libraries[threads > 1 ? 1 : 0]);
    const engine = await modules.WasmEngine.open(openModel(container), library, threads);
    const session = await engine.open({ rows: 3, capacity: prompt.length + 5 });
    if (source !== null) await session.encode([source, source, source]);
    const logits = await session.append([{ row: 1, tokens: prompt }], { all: true });
    session.reorder([1, 1, 1]);
    for (let step = 0; step < 3; step++) {
      logits.push(...(await session.append([0, 1, 2].map((row) => ({ row, tokens: [3 * row + step] })))));
    }
    logits.push(...(await session.append([{ row: 2, tokens: [7] }])));
    session.close();
    engine.library.close();
    found.push(logits.map(toBase64).join());
  }
  return found;
}
"""
# The inputs of half of the rows are outside the memory, so threads trap. The next product is right.
TRAP = """
async ({ container, libraries }) => {
  const engine = await modules.WasmEngine.open(openModel(container), toBytes(libraries[1]), 3);
  const { library } = engine;
  const x = Float32Array.from({ length: 30 * 17 }, (_, at) => Math.sin(at));
  const multiply = () => toBase64(engine.multiply("decoder.blocks.0.attention.query.weight", x, 17));
  const before = multiply();
  const product = library.copyIntegers(engine.packer.matrix("decoder.blocks.0.attention.query.weight"));
  const to = library.allocate(4 * 30 * 4001);
  let message = "";
  for (let number = 0; number < 3; number++) {
    try {
      library.call("product", product, 4001, library.memory.buffer.byteLength - 4 * 30 * 2003, to);
    } catch (error) {
      message = error.message;
    }
    await new Promise((done) => setTimeout(done, 30)); // until other threads have trapped, too
  }
  const equal = multiply() === before;
  const { Worker } = globalThis;
  globalThis.Worker = class {
    postMessage() {
      setTimeout(() => this.onmessage({ data: { failed: "no thread" } }));
    }
    terminate() {}
  };
  const parts = { model: toBytes(container), wasm: toBytes(libraries[0]), threads: toBytes(libraries[1]) };
  const runtime = await modules.openRuntime(parts);
  globalThis.Worker = Worker;
  return [message, equal, runtime.oneThread, runtime.engine.threads];
}
"""


@contextmanager
def serve(content: Mapping[str, str]) -> Iterator[str]:
    """The address of pages and scripts that are isolated from other origins."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            self.wfile.write(content[self.path].encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def worker(browser: Any) -> Iterator[Any]:
    """A worker with the modules of a web page's models."""
    script = inline_entry(ENTRY + IMPORTS)
    page_script = "<script>new Worker('/worker.js')</script>"
    with (
        serve({"/": page_script, "/worker.js": f"globalThis.window = globalThis;{script}{HELPERS}"}) as address,
        monitored_page(browser) as (page, log),
    ):
        with page.expect_worker() as started:
            page.goto(address)
        yield started.value
        assert log.messages == []


def contents(config: ModelConfig, precision: str) -> dict[str, Any]:
    tokenizer = tokenizer_data(byte_tokenizer())
    container = write_container(build_random(config, precision), name="tiny", tokenizer=tokenizer)
    libraries = [to_text(path.read_bytes()) for path in (LIBRARY, THREADS_LIBRARY)]
    return {"container": to_text(container), "libraries": libraries}


@pytest.mark.parametrize(("kind", "precision"), [("decoder", "int8"), ("encoder-decoder", "float32")])
def test_threads_give_the_same_bits(worker: Any, kind: str, precision: str) -> None:
    config = ModelConfig(vocabulary=VOCABULARY, kind=kind, width=66, heads=3, layers=2, feedforward_width=131)
    draw = random.Random(5)
    source, prompt = ([draw.randrange(VOCABULARY) for _ in range(count)] for count in (11, 71))
    given = {"counts": [1, 3], "source": source if kind == "encoder-decoder" else None, "prompt": prompt}
    one, three = worker.evaluate(DECODE, {**contents(config, precision), **given})
    assert three == one


def test_traps_and_threads_that_do_not_start(worker: Any) -> None:
    config = ModelConfig(vocabulary=VOCABULARY, width=30, heads=3, layers=2)
    message, equal, reason, threads = worker.evaluate(TRAP, contents(config, "int8"))
    assert (message.split(".")[0], equal) == ("There is not enough memory in this browser", True)
    assert (reason, threads) == ("no thread", 1)


def test_an_isolated_page_uses_threads(browser: Any, tmp_path: Path) -> None:
    make_bundle(tmp_path / "model", "encoder-decoder", byte_tokenizer(), width=24)
    page_path = export_page(tmp_path / "model", tmp_path / "small.html", check=False).path
    with serve({"/": page_path.read_text(encoding="utf-8")}) as address, monitored_page(browser) as (page, log):
        page.goto(f"{address}/#/about")
        until(page, "document.documentElement.dataset.page !== 'opening'")
        until(page, "/threads: [2-8]$/m.test(document.querySelector('.about')?.innerText)")
        page.click(".about button.go")
        until(page, "document.querySelector('.about').dataset.results")
        results = page.evaluate("JSON.parse(document.querySelector('.about').dataset.results)")
        assert [(result["engine"], result["threads"] > 1) for result in results] == [
            ("wasm", True),
            ("javascript", False),
        ]
        assert all(result["passed"] for result in results)
        assert log.messages == []
