"""Load test: rounds of many simultaneous clients, some of which disconnect midway.

    python benchmarks/load.py runs/shakespeare-cpu/last --translator runs/demo/last --clients 200 --rounds 10

Every client requests one text (every fifth a stream, every seventh a translation), and 20 % close their connection
before the answer is complete. After each round, the server must hold no request, row, cache, task or connection; the
other clients must get the same answers as alone; and /health must answer all the time. Clients that get a 429 retry
after the given time. Memory is that of the server process. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

GAUGES = re.compile(r'^chumoku_(queue|running|cache_bytes)\{model="[^"]*"\} ([0-9.]+)$', re.MULTILINE)


@dataclass
class Seen:
    """Measurements of a load test."""

    answers: dict[int, set[str]] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    vanished: int = 0
    health: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


def body_of(number: int, models: dict[str, str], new: int) -> tuple[str, dict[str, Any]]:
    if number % 7 == 3 and "translator" in models:
        return "/v1/translate", {"model": models["translator"], "text": f"猫が{number % 5}"}
    text = "To be, or not to be"[: 3 + number % 17]
    asked = {"model": models["writer"], "prompt": text, "max_tokens": 3 + number % new, "temperature": 0}
    return "/v1/completions", {**asked, "stream": True} if number % 5 == 1 else asked


def text_of(answer: httpx.Response) -> str:
    """The generated text of a response, streamed or not."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(event["choices"][0]["text"] for event in events)
    value = answer.json()
    if "translations" in value:
        return str(value["translations"][0]["hypotheses"][0]["text"])
    return str(value["choices"][0]["text"])


async def one_client(http: httpx.AsyncClient, number: int, asked: tuple[str, dict[str, Any]], seen: Seen) -> None:
    path, body = asked
    began = time.perf_counter()
    while True:
        answer = await http.post(path, json=body)
        seen.statuses[answer.status_code] = seen.statuses.get(answer.status_code, 0) + 1
        if answer.status_code != 429:
            break
        await asyncio.sleep(min(2.0, float(answer.headers["retry-after"])) * random.random())
    answer.raise_for_status()
    seen.answers.setdefault(number, set()).add(text_of(answer))
    seen.waits.append(time.perf_counter() - began)


async def vanishing(port: int, asked: tuple[str, dict[str, Any]], seconds: float, seen: Seen) -> None:
    """Send a request, wait, and abort the connection."""
    path, body = asked
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    head = "\r\n".join((*lines, "", ""))
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + data)
        await writer.drain()
        await asyncio.sleep(seconds)
        writer.transport.abort()
        seen.vanished += 1


# In a separate process, so that the clients of this process do not distort the times.
HEALTH = """
import http.client, select, sys, time
connection, port = None, int(sys.argv[1])
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    began = time.perf_counter()
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    print(time.perf_counter() - began if answer.status == 200 else "wrong", flush=True)
"""


@contextlib.contextmanager
def watched_health(port: int, seen: Seen) -> Iterator[None]:
    words = [sys.executable, "-c", HEALTH, str(port)]
    watcher = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    times: list[str] = []
    reader = threading.Thread(target=lambda: times.extend(watcher.stdout or ()))
    reader.start()
    try:
        yield
    finally:
        if watcher.stdin is not None:
            watcher.stdin.close()  # ends the process
        reader.join()
        watcher.wait()
    seen.health += [float(one) for one in times[1:]]


async def until_nothing_is_left(http: httpx.AsyncClient) -> float:
    """Seconds until the server holds no resources of any request."""
    began = time.perf_counter()
    while time.perf_counter() - began < 10:
        values = [float(value) for _, value in GAUGES.findall((await http.get("/metrics")).text)]
        if values and not any(values):
            return time.perf_counter() - began
        await asyncio.sleep(0.02)
    raise AssertionError("The server still held resources of a request after 10 seconds.")


def memory_of(process: int) -> float:
    """Resident memory in megabytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def sockets_of(process: int) -> int:
    count = 0
    for one in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += "socket" in os.readlink(one)
    return count


async def storm(
    port: int, process: int, models: dict[str, str], *, clients: int, rounds: int, new: int = 40, seed: int = 0
) -> Seen:
    """Run all rounds and return the measurements."""
    seen, chance = Seen(), random.Random(seed)
    many = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=300) as aside:
        # First each request alone, for comparison.
        asked = {number: body_of(number, models, new) for number in range(clients)}
        for number, one in asked.items():
            await one_client(aside, number, one, seen)
        seen.waits.clear()
        with watched_health(port, seen):
            for _ in range(rounds):
                async with httpx.AsyncClient(base_url=url, timeout=300, limits=many) as http:
                    leaving = {*chance.sample(range(clients), clients // 5)}
                    await asyncio.gather(
                        *(
                            vanishing(port, one, chance.random() * 0.5, seen)
                            if number in leaving
                            else one_client(http, number, one, seen)
                            for number, one in asked.items()
                        )
                    )
                seen.settled.append(await until_nothing_is_left(aside))
                seen.memory.append(round(memory_of(process), 1))
                seen.connections.append(sockets_of(process))
    return seen


def report(seen: Seen) -> dict[str, Any]:
    health = sorted(seen.health)
    return {
        "answers": sum(count for status, count in seen.statuses.items() if status == 200),
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "vanished": seen.vanished,
        "changed_answers": sum(len(texts) > 1 for texts in seen.answers.values()),
        "health_p50_ms": round(1000 * statistics.median(health), 1),
        "health_p99_ms": round(1000 * health[int(0.99 * (len(health) - 1))], 1),
        "health_asked": len(health),
        "settled_after_seconds": [round(one, 2) for one in seen.settled],
        "memory_mb": seen.memory,
        "sockets": seen.connections,
        "median_wait_seconds": round(statistics.median(seen.waits), 2),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("writer")
    words.add_argument("--translator")
    words.add_argument("--clients", type=int, default=200)
    words.add_argument("--rounds", type=int, default=10)
    words.add_argument("--new", type=int, default=40)
    asked = words.parse_args()
    given = {"writer": asked.writer, **({"translator": asked.translator} if asked.translator else {})}
    command = [
        sys.executable,
        "-m",
        "chumoku",
        "serve",
        *(f"{name}={path}" for name, path in given.items()),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = int((process.stderr.readline() if process.stderr else "").rpartition(":")[2])
        names = {name: name for name in given}
        seen = asyncio.run(storm(port, process.pid, names, clients=asked.clients, rounds=asked.rounds, new=asked.new))
    finally:
        process.terminate()
        process.wait(40)
    print(json.dumps({"clients": asked.clients, "rounds": asked.rounds, **report(seen), "exit": process.returncode}))


if __name__ == "__main__":
    main()
