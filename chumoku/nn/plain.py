"""Switch between the fast kernels and the plain formulas.

    with chumoku.plain():          everything inside runs the formulas as written
        model(tokens)

CHUMOKU_PLAIN=1 in the environment switches the whole process, `train.plain = true` in a recipe one training run.
Results agree up to rounding, except that dropout inside attention may use other random numbers.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Iterator

import torch

_DEFAULT = os.environ.get("CHUMOKU_PLAIN", "0") not in ("", "0")
_plain = contextvars.ContextVar("plain", default=_DEFAULT)
_lock = threading.Lock()
_contexts = int(_DEFAULT)  # how many contexts are switched on; the process itself counts as one
_compiled = _DEFAULT  # what compiled code runs; torch.compile traces again when it changes


def plain_formulas() -> bool:
    """Return True if the plain formulas are switched on here."""
    if not _compiled and not _DEFAULT:
        return False  # fast path: no context is switched on
    # torch.compile cannot read a context variable, so compiled code uses one value for the whole process.
    return _compiled if torch.compiler.is_compiling() else _plain.get()


@contextlib.contextmanager
def plain(enabled: bool = True) -> Iterator[None]:
    """Run the plain formulas inside this context; `plain(False)` runs the fast code inside it.

    Other threads and tasks are not affected, except for code compiled by torch.compile, which runs the plain formulas
    while any thread is inside `plain()`. A program from torch.export keeps the choice made at export.
    """
    change = int(enabled) - int(_plain.get())
    token = _plain.set(enabled)
    _count(change)
    try:
        yield
    finally:
        _count(-change)
        _plain.reset(token)


def describe_mode() -> str:
    """Return "plain formulas" or "fast kernels", for messages."""
    return "plain formulas" if plain_formulas() else "fast kernels"


def _count(change: int) -> None:
    global _contexts, _compiled
    with _lock:
        _contexts += change
        _compiled = _contexts > 0
