"""The child process of `training_process`: it reads texts and writes a tokenizer.json."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from chumoku.text.training import TRAINERS

POLL_SECONDS = 0.2


def main() -> None:
    """Read settings and texts from standard input, train, and write the tokenizer to standard output."""
    parent = os.getppid()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    settings, *texts = map(json.loads, sys.stdin.buffer)
    if not texts or texts.pop() is not None:
        sys.exit("The texts did not arrive.")  # the parent has exited
    kind = settings.pop("kind")
    sys.stdout.write(json.dumps({"tokenizer": TRAINERS[kind](texts, **settings).to_str()}))


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
