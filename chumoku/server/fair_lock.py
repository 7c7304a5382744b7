"""FairLock: a lock that is granted in order of arrival, so that models on the same processor compute in turn.

Two model steps at once on the same cores take longer than one after the other, and a `threading.Lock` may be granted
to the same thread again and again.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class FairLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: deque[threading.Event] = deque()
        self._locked = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._locked:
                self._locked = True
                return
            turn = threading.Event()
            self._waiters.append(turn)
        turn.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiters:
                self._waiters.popleft().set()  # the lock stays locked and changes its owner
            else:
                self._locked = False

    def yield_turn(self) -> None:
        """Let all current waiters go first, then lock again. Call this only while holding the lock."""
        with self._lock:
            if not self._waiters:
                return
            turn = threading.Event()
            self._waiters.append(turn)
            self._waiters.popleft().set()
        turn.wait()
