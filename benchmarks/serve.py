"""Throughput of the server: tokens and requests per second over real TCP.

    python benchmarks/serve.py --chat smollm2.gguf --translator runs/demo/last [--peer]

1, 8 and 32 clients send requests for the same number of tokens at temperature 0. With --peer, the server of
llama-cpp-python opens the same file, and both are measured alternately within one run. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

PROMPTS = [
    "Once upon a time, in a village by the sea,",
    "The history of the bicycle begins in",
    "Here is a long list of animals: cat, dog, horse,",
    "In this chapter we explain how rain is made. First,",
]
TEXTS = ["猫がいる。", "田中さんは学生です。", "私は本を読む。", "雨が降っています。"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def run_server(command: list[str], url: str) -> Iterator[None]:
    """Start a server process, wait until it answers, and stop it at the end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/v1/models", timeout=1).status_code == 200:
                    break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(40)


async def run_clients(url: str, count: int, requests: int, ask: object) -> dict[str, float]:
    """Send `requests` requests from `count` simultaneous clients and return the throughput."""
    numbers, waits, written = iter(range(requests)), [], 0
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal written
        for number in numbers:
            began = time.perf_counter()
            tokens = await ask(client, number)  # type: ignore[operator]
            written += tokens
            waits.append(time.perf_counter() - began)

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        began = time.perf_counter()
        await asyncio.gather(*(one(client) for _ in range(count)))
        took = time.perf_counter() - began
    return {
        "tokens_per_second": round(written / took, 1),
        "requests_per_second": round(requests / took, 2),
        "median_seconds": round(statistics.median(waits), 3),
        "slowest_seconds": round(max(waits), 3),
    }


def completion_request(model: str, new: int) -> object:
    async def ask(client: httpx.AsyncClient, number: int) -> int:
        body = {"model": model, "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": new, "temperature": 0}
        answer = await client.post("/v1/completions", json=body)
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    return ask


def translation_request(model: str) -> object:
    async def ask(client: httpx.AsyncClient, number: int) -> int:
        answer = await client.post("/v1/translate", json={"model": model, "text": TEXTS[number % len(TEXTS)]})
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    return ask


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--chat", help="A GGUF file.")
    words.add_argument("--translator")
    words.add_argument("--peer", action="store_true", help="Also measure llama-cpp-python's server.")
    words.add_argument("--new", type=int, default=64)
    words.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    words.add_argument("--rounds", type=int, default=3)
    asked = words.parse_args()
    ours, theirs = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    models = [f"{name}={path}" for name, path in (("chat", asked.chat), ("translator", asked.translator)) if path]
    port = re.findall(r"\d+$", ours)[0]
    sides = {"chumoku": (ours, [sys.executable, "-m", "chumoku", "serve", *models, "--port", port])}
    if asked.peer and asked.chat:
        port = re.findall(r"\d+$", theirs)[0]
        threads = str(os.cpu_count())
        command = [sys.executable, "-m", "llama_cpp.server", "--model", asked.chat, "--port", port]
        sides["llama-cpp-python"] = (theirs, [*command, "--n_threads", threads, "--n_ctx", "2048"])
    result: dict[str, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as running:
        for url, command in sides.values():
            running.enter_context(run_server(command, url))
        for round_ in range(asked.rounds):
            for count in asked.clients:
                for side, (url, _) in list(sides.items())[:: -1 if round_ % 2 else 1]:
                    what = {"completions": completion_request("chat", asked.new)} if asked.chat else {}
                    if asked.translator and side == "chumoku":
                        what["translations"] = translation_request("translator")
                    for name, ask in what.items():
                        requests = max(4, 2 * count) if name == "completions" else 40 + 4 * count
                        figures = asyncio.run(run_clients(url, count, requests, ask))
                        result.setdefault(f"{side} {name}", {}).setdefault(str(count), []).append(figures)
    print(json.dumps({"cpus": os.cpu_count(), "new": asked.new, "results": result}))


if __name__ == "__main__":
    main()
