"""The limits of the server that can be changed, with their defaults; those on wrong keys are in keys.py.

The options of `chumoku serve` are generated from these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from chumoku.errors import UsageError


def _limit(default: float, help: str, minimum: float, maximum: float) -> Any:
    return field(default=default, metadata={"help": help, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True)
class Limits:
    body: int = _limit(2_000_000, "Maximum size of a request body, in bytes.", 1_000, 1 << 28)
    queue: int = _limit(64, "Maximum number of texts waiting for a model; then 429 with Retry-After.", 0, 4096)
    rows: int = _limit(32, "Maximum number of texts a model generates at once.", 1, 1024)
    context: int = _limit(
        4096,
        "Maximum number of tokens of prompt and text, if the model allows more. If given, it decides the frequencies "
        "of models with longrope, as in generate.",
        1,
        1 << 20,
    )
    memory: float = _limit(8.0, "Maximum gigabytes of key-value cache per model; reduces rows if needed.", 0.01, 4096)
    n: int = _limit(16, "Maximum number of texts for one prompt.", 1, 128)
    texts: int = _limit(64, "Maximum number of texts in one request (prompts times n).", 1, 1024)
    logprobs: int = _limit(20, "Maximum number of most likely tokens listed for each token.", 0, 100)
    stops: int = _limit(8, "Maximum number of stop strings in a request.", 0, 64)
    stop_letters: int = _limit(256, "Maximum length of a stop string, in characters.", 1, 4096)
    new: int = _limit(4096, "Maximum number of new tokens in a text.", 1, 1 << 20)
    connections: int = _limit(512, "Maximum number of open connections; then 503.", 1, 1 << 16)
    header_seconds: float = _limit(10.0, "Time to receive the head of a request.", 0.1, 3600)
    body_seconds: float = _limit(30.0, "Time to receive a request body, and for clients to read a response.", 0.1, 3600)
    file_seconds: float = _limit(30.0, "Time to read the files of a training run.", 0.1, 3600)
    drain_seconds: float = _limit(30.0, "Time to finish running requests at shutdown.", 0, 3600)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, minimum, maximum = getattr(self, one.name), one.metadata["minimum"], one.metadata["maximum"]
            if not minimum <= value <= maximum:
                option = "--" + one.name.replace("_", "-")
                raise UsageError(f"{option} must be from {minimum:g} to {maximum:g}, not {value}.")
