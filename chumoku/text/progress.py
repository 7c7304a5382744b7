"""Progress of long steps: a bar on a terminal, otherwise a plain line every few seconds.

A long-running function takes a `Progress` and calls it often: `progress("tokenizing", 120_000, unit="tokens")`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from chumoku.messages import translate

Progress = Callable[..., object]  # (step, done, total, unit)
LINE_SECONDS = 3.0  # between lines where there is no bar
BAR_SECONDS = 0.1
T = TypeVar("T")


def silent(step: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
    """Show nothing."""


def track(items: Iterable[T], progress: Progress, step: str, *, unit: str, size: Callable[[T], int]) -> Iterator[T]:
    """Yield the same items and report the sum of their sizes so far to `progress`."""
    done = 0
    for item in items:
        yield item
        done += size(item)
        progress(step, done, unit=unit)


class ShowProgress:
    """A `Progress` that shows steps on a rich Console, or nothing if it is None. `every`: seconds between lines."""

    def __init__(self, console: Any = None, *, every: float = LINE_SECONDS) -> None:
        self._console, self._every = console, every
        self._step: str | None = None
        self._start = self._shown = time.monotonic()
        self._bar: Any = None

    def __call__(self, step: str, done: int | None = None, total: int | None = None, unit: str = "") -> None:
        now = time.monotonic()
        if step != self._step:
            self._step, self._start = step, now
            self._stop_bar()
        if self._console is None:
            return
        if self._console.is_terminal:
            if self._bar is None or now - self._shown >= BAR_SECONDS:
                self._shown = now
                self._show_bar(_describe(step, _amount(done, total, unit)), done, total)
        elif now - self._shown >= self._every:
            self._shown = now
            self._print(_describe(step, _amount(done, total, unit), f"{now - self._start:.0f} s."))

    def close(self) -> None:
        self._stop_bar()
        self._step = None

    def __enter__(self) -> ShowProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _print(self, line: str) -> None:
        try:
            self._console.print(translate(line), markup=False, highlight=False, soft_wrap=True)
        except (OSError, SystemExit):  # a closed console must not stop the work
            self._console = None

    def _show_bar(self, line: str, done: int | None, total: int | None) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        if self._bar is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task(translate(line), total=total)
            self._bar.start()
        known = {} if total is None else {"completed": done, "total": total}
        self._bar.update(self._bar.task_ids[0], description=translate(line), **known)

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _describe(step: str, *parts: str) -> str:
    """A line such as "Reading: 30,720/50,000 pairs, 1 s."; parts may be empty."""
    return f"{step[:1].upper()}{step[1:]}: {', '.join(part for part in parts if part) or '…'}"


def _amount(done: int | None, total: int | None, unit: str) -> str:
    if done is None:
        return ""
    return f"{done:,}{f'/{total:,}' if total is not None else ''} {unit}".rstrip()
