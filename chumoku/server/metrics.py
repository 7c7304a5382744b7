"""Counters and times, in Prometheus' form.

    chumoku_requests_total{route="/v1/completions",status="200"} 17

Labels come from lists (routes, models), never from a request: their number is bounded.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from chumoku.server.models import Served

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        total = 0
        for edge, count in zip((*map(str, SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield line(f"{name}_bucket", {**labels, "le": edge}, total)
        yield line(f"{name}_sum", labels, round(self._sum, 6))
        yield line(f"{name}_count", labels, total)


class Metrics:
    """Counted in the loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._first: dict[str, Histogram] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds.setdefault(route, Histogram()).add(seconds)

    def first_token(self, model: str, seconds: float) -> None:
        self._first.setdefault(model, Histogram()).add(seconds)

    def text(self, models: Iterable[Served]) -> str:
        return "\n".join(self._lines(list(models))) + "\n"

    def _lines(self, models: list[Served]) -> Iterator[str]:
        yield "# TYPE chumoku_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield line("chumoku_requests_total", {"route": route, "status": str(status)}, count)
        yield "# TYPE chumoku_tokens_total counter"
        for one in models:
            for kind, count in one.worker.tokens.items():
                yield line("chumoku_tokens_total", {"model": one.name, "kind": kind}, count)
        for name in ("chumoku_queue", "chumoku_running", "chumoku_cache_bytes"):
            yield f"# TYPE {name} gauge"
            for one in models:
                work = one.worker
                held = (work.queue, work.running, work.cache_tokens * one.token_bytes)
                value = dict(zip(("chumoku_queue", "chumoku_running", "chumoku_cache_bytes"), held, strict=True))[name]
                yield line(name, {"model": one.name}, value)
        yield "# TYPE chumoku_request_seconds histogram"
        for route, histogram in sorted(self._seconds.items()):
            yield from histogram.lines("chumoku_request_seconds", {"route": route})
        yield "# TYPE chumoku_first_token_seconds histogram"
        for model, histogram in sorted(self._first.items()):
            yield from histogram.lines("chumoku_first_token_seconds", {"model": model})


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{quoted(word)}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {value}"


def quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
