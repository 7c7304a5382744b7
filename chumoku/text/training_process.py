"""A tokenizer is trained in a process of its own, which can be stopped at any moment.

The `tokenizers` library hears no signal while it trains, for minutes. The child gets the texts by its standard input
and answers with a tokenizer.json. It is no fork: threads of this process do not go with it, and a script that calls
`chumoku.train` is not run a second time. It ends when its parent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import tokenizers

from chumoku.errors import ChumokuError, UsageError

POLL_SECONDS = 0.2  # seconds
COMMAND = "from chumoku.text.training_worker import main; main()"


def train_in_child(
    texts: Sequence[str], settings: dict[str, Any], on_wait: Callable[[], object]
) -> tokenizers.Tokenizer:
    """What the trainer of a kind makes of these texts; `on_wait` is called every moment."""
    search = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which ends the child
        ) as child,
    ):
        try:
            _send(child, texts, settings)
            answer = None
            while answer is None:
                on_wait()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    answer, _ = child.communicate(timeout=POLL_SECONDS)
        except BaseException:
            child.kill()
            raise
        return _read_answer(answer, errors)


def _send(child: subprocess.Popen[bytes], texts: Sequence[str], settings: dict[str, Any]) -> None:
    stream = child.stdin
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError):  # it died; why is in its standard error
        for value in (settings, *texts):
            stream.write(json.dumps(value).encode() + b"\n")
        stream.write(b"null\n")
        stream.close()
    child.stdin = None


def _read_answer(answer: bytes, errors: IO[bytes]) -> tokenizers.Tokenizer:
    try:
        found = json.loads(answer)
    except ValueError:
        errors.seek(0)
        last_line = errors.read(1 << 20).decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ChumokuError(
            f"Training the tokenizer failed: {last_line[:200] or 'its process was ended'}. Is there enough memory? Train on "
            "less text, or choose another kind."
        ) from None
    if "error" in found:
        raise UsageError(found["error"])
    return tokenizers.Tokenizer.from_str(found["tokenizer"])
