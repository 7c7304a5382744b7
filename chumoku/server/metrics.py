"""Counters and timings in the Prometheus text format.

    chumoku_requests_total{route="/v1/completions",status="200"} 17

Labels come from fixed lists (routes, models), never from a request, so their number is bounded.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from chumoku.server.models import ServedModel

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
            yield format_line(f"{name}_bucket", {**labels, "le": edge}, total)
        yield format_line(f"{name}_sum", labels, round(self._sum, 6))
        yield format_line(f"{name}_count", labels, total)


class Metrics:
    """Counts requests; only the event loop may call it."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._request_seconds: dict[str, Histogram] = {}
        self._first_token_seconds: dict[str, Histogram] = {}

    def record_request(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._request_seconds.setdefault(route, Histogram()).add(seconds)

    def record_first_token(self, model: str, seconds: float) -> None:
        self._first_token_seconds.setdefault(model, Histogram()).add(seconds)

    def render(self, models: Iterable[ServedModel]) -> str:
        return "\n".join(self._lines(list(models))) + "\n"

    def _lines(self, models: list[ServedModel]) -> Iterator[str]:
        yield "# TYPE chumoku_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield format_line("chumoku_requests_total", {"route": route, "status": str(status)}, count)
        yield "# TYPE chumoku_tokens_total counter"
        for one in models:
            for kind, count in one.worker.tokens.items():
                yield format_line("chumoku_tokens_total", {"model": one.name, "kind": kind}, count)
        for name in ("chumoku_queue", "chumoku_running", "chumoku_cache_bytes"):
            yield f"# TYPE {name} gauge"
            for one in models:
                worker = one.worker
                values = {"chumoku_queue": worker.queue, "chumoku_running": worker.running}
                values["chumoku_cache_bytes"] = worker.cache_tokens * one.token_bytes
                yield format_line(name, {"model": one.name}, values[name])
        yield "# TYPE chumoku_request_seconds histogram"
        for route, histogram in sorted(self._request_seconds.items()):
            yield from histogram.lines("chumoku_request_seconds", {"route": route})
        yield "# TYPE chumoku_first_token_seconds histogram"
        for model, histogram in sorted(self._first_token_seconds.items()):
            yield from histogram.lines("chumoku_first_token_seconds", {"model": model})


def format_line(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{key}="{escape(label)}"' for key, label in labels.items())
    return f"{name}{{{pairs}}} {value}"


def escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
