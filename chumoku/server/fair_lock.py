"""Turns: models that share a processor compute one after the other, in the order in which they came.

Two steps at once on the same cores take longer than one after the other, and a plain lock may give its owner the next
turn again and again. Who leaves here goes to the end of the line.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._line.append(mine)
        mine.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().set()  # taken still: it has passed on
            else:
                self._taken = False

    def pass_on(self) -> None:
        """Whoever waits goes first; then this one again. For those who are inside."""
        with self._lock:
            if not self._line:
                return
            mine = threading.Event()
            self._line.append(mine)
            self._line.popleft().set()
        mine.wait()
