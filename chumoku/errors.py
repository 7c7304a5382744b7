"""Every error chumoku raises, on one page.

A message is one or more sentences: what was wrong, what was found, what was expected, what to do.
`exit_code` is what the command line returns: 2 when the request was wrong, 1 when the work failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 file", "2,000 files"; `plural` for nouns that do not end in s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class ChumokuError(Exception):
    """The root: catch this to catch everything of ours."""

    exit_code = 1


class UsageError(ChumokuError):
    """The request cannot be carried out as it was asked."""

    exit_code = 2


class UnknownArgumentError(UsageError, TypeError):
    """A function was called with a keyword argument that it does not have."""


class Problem(NamedTuple):
    """One thing wrong with one setting."""

    key: str
    sentence: str


class ConfigError(UsageError):
    """Settings that cannot be: all problems at once, each with its key."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{key}: {sentence}" for key, sentence in self.problems))


class ShapeError(UsageError):
    """Tensors whose shapes do not fit together, or modules called without what they need."""


class LengthError(UsageError):
    """Beyond what a table, a cache or a limit holds."""


class AddressError(UsageError):
    """No tensor inside the model has this address."""


class TooLargeError(UsageError):
    """A model that this machine's memory cannot hold."""


class MissingExtraError(UsageError):
    """An optional dependency is needed and not installed."""


class CorpusError(UsageError):
    """Text that cannot be read as asked: names file, line and the way out."""


class DamagedError(ChumokuError):
    """A file that is not what was written: names it."""


class BusyError(UsageError):
    """Another run is using this folder, or a queue is full."""


class RoomError(ChumokuError):
    """The disk does not take what must be written: names path, needed and free bytes."""


class DivergedError(ChumokuError):
    """Training that no longer gives finite numbers: names the module where they end."""
