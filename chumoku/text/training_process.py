"""Training a tokenizer in a child process, which can be stopped at any time.

The `tokenizers` library handles no signals while it trains, which can take minutes. The child reads the texts from its
standard input and writes a tokenizer.json. It is started with a new interpreter, not forked or spawned: it inherits no
threads and does not run the caller's script again. It exits when its parent does.
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

from chumoku.errors import ChumokuError

POLL_SECONDS = 0.2
COMMAND = "from chumoku.text.training_worker import main; main()"


def train_in_child(
    texts: Sequence[str], settings: dict[str, Any], on_wait: Callable[[], object]
) -> tokenizers.Tokenizer:
    """The backend trained on these texts. `on_wait` is called repeatedly meanwhile."""
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
            start_new_session=True,  # Ctrl-C reaches only this process, which kills the child
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
    with contextlib.suppress(BrokenPipeError):  # it died; the reason is in its standard error
        for value in (settings, *texts):
            stream.write(json.dumps(value).encode() + b"\n")
        stream.write(b"null\n")
        stream.close()
    child.stdin = None


def _read_answer(answer: bytes, errors: IO[bytes]) -> tokenizers.Tokenizer:
    try:
        result = json.loads(answer)
    except ValueError:
        errors.seek(0)
        last_line = errors.read(1 << 20).decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ChumokuError(
            f"Training the tokenizer failed: {last_line[:200] or 'its process was killed'}. Is there enough memory? "
            "Train on less text, or choose another kind."
        ) from None
    return tokenizers.Tokenizer.from_str(result["tokenizer"])
