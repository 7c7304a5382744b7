"""Every limit of the server, with its default: what one request may ask, and how much is held at once.

The options of `chumoku serve` are made of these fields, so a limit that is not here is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from chumoku.errors import UsageError


def _limit(default: float, help: str, least: float, most: float) -> Any:
    return field(default=default, metadata={"help": help, "least": least, "most": most})


@dataclass(frozen=True)
class Limits:
    body: int = _limit(2_000_000, "Most bytes of a request's body.", 1_000, 1 << 28)
    queue: int = _limit(64, "Most texts that wait for a model; beyond them 429 with Retry-After.", 0, 4096)
    rows: int = _limit(32, "Most texts a model writes at once.", 1, 1024)
    context: int = _limit(
        4096, "Most tokens of prompt and text together, where the model has room for more.", 1, 1 << 20
    )
    memory: float = _limit(
        8.0, "Most gigabytes of keys and values for each model; fewer rows are written then.", 0.01, 4096
    )
    n: int = _limit(16, "Most texts for one prompt.", 1, 128)
    texts: int = _limit(64, "Most texts of one request, n of each prompt counted.", 1, 1024)
    logprobs: int = _limit(20, "Most of the likeliest tokens told beside each token.", 0, 100)
    stops: int = _limit(8, "Most stop strings of a request.", 0, 64)
    stop_letters: int = _limit(256, "Most letters of a stop string.", 1, 4096)
    new: int = _limit(4096, "Most new tokens of a text.", 1, 1 << 20)
    connections: int = _limit(512, "Most connections at once; beyond them 503.", 1, 1 << 16)
    header_seconds: float = _limit(10.0, "Time for a request's head.", 0.1, 3600)
    body_seconds: float = _limit(30.0, "Time for a request's body, and for a client to take what is sent.", 0.1, 3600)
    file_seconds: float = _limit(30.0, "Time for reading the files of a run that is looked at.", 0.1, 3600)
    drain_seconds: float = _limit(30.0, "Time for answers under way when the server is told to end.", 0, 3600)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least, most = getattr(self, one.name), one.metadata["least"], one.metadata["most"]
            if not least <= value <= most:
                raise UsageError(
                    f"--{one.name.replace('_', '-')} is a number from {least:g} to {most:g}; {value} was given."
                )
