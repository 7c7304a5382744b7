"""Rendering chat templates in a child process (`chat_template_worker`), so that one that never ends can be stopped.

One process serves all templates; it starts with the first prompt and ends with this process. After a template was
stopped, the next prompt starts a new one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from chumoku.errors import UsageError

WORKER = Path(__file__).with_name("chat_template_worker.py")
KEPT_VARIABLES = ("LD_LIBRARY_PATH", "TZ")  # of the environment; the others, such as passwords, are not passed on


class TemplateStopped(UsageError):
    """The process was stopped while it rendered a template."""


class TemplateProcess:
    """The child process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that started the child: a fork of it must not write into the same pipe

    def start(self) -> None:
        """Start the child now, so that the first prompt need not wait for it."""
        with self._lock:
            self._running()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The child's answer; raises UsageError if it was killed meanwhile."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            child = self._running()
            try:
                answer = _exchange(child, line)
            except BaseException:  # an answer that nobody reads must not be taken for the next one
                self._child = None
                child.kill()
                child.wait()
                raise
            if not answer.endswith(b"\n"):
                self._child = None
                raise TemplateStopped(_reason(child.wait()))
        result: dict[str, Any] = json.loads(answer)
        return result

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._owner != os.getpid() or self._child.poll() is not None:
            search = os.pathsep.join(filter(None, sys.path))
            environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": search},
                start_new_session=True,  # Ctrl-C stops a reply, not the child
            )
            self._owner = os.getpid()
        return self._child


def _exchange(child: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Send a line and return the next one; incomplete if the child was killed."""
    if child.stdin is None or child.stdout is None:
        return b""
    try:
        child.stdin.write(line)
        child.stdin.flush()
    except BrokenPipeError:
        return b""
    return child.stdout.readline()


def _reason(status: int) -> str:
    problem = "it took too much processor time" if status == -signal.SIGPROF else f"its process ended with {status}"
    return f"The model's chat template was stopped: {problem}. Choose another format, such as chatml or plain."


_PROCESS = TemplateProcess()
start, ask = _PROCESS.start, _PROCESS.ask
