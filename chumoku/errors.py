"""All error classes of chumoku.

A message says what happened, what was expected and what to do.
`exit_code` is the exit code of the command line: 2 for a wrong request, 1 for a failure during the work.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 file", "2,000 files". `plural` is for irregular plurals."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, prefix: str = "", cutoff: float = 0.6) -> str:
    """Return a sentence that suggests the known name most similar to a wrong one; `otherwise` if none is similar.

    prefix    stands before the suggested name
    cutoff    smallest similarity, from 0 to 1
    """
    near = difflib.get_close_matches(name[:200].lower(), list(known), n=1, cutoff=cutoff)
    return f"Did you mean {prefix}{near[0]}?" if near else otherwise


class ChumokuError(Exception):
    """Base class of all errors of chumoku."""

    exit_code = 1


class UsageError(ChumokuError):
    """The request is wrong or cannot be fulfilled."""

    exit_code = 2


class UnknownArgumentError(UsageError, TypeError):
    """A function was called with a keyword argument that it does not have."""


class Problem(NamedTuple):
    """One problem with one setting."""

    key: str
    sentence: str


class ConfigError(UsageError):
    """Settings are not valid; `problems` has all problems, each with its key."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{key}: {sentence}" for key, sentence in self.problems))


class ShapeError(UsageError):
    """Tensors have wrong shapes or types, or a required input is missing."""


class LengthError(UsageError):
    """An index or a length is beyond the end of a table or cache, or beyond a limit."""


class AddressError(UsageError):
    """No tensor in the model has this address."""


class TooLargeError(UsageError):
    """A model is larger than the memory of this machine."""


class MissingExtraError(UsageError):
    """A required optional dependency is not installed."""


class NoTokenizerError(UsageError):
    """A folder has no tokenizer files."""


class NoTokenizerWarning(UserWarning):
    """A model was opened without a tokenizer."""


class CorpusError(UsageError):
    """A text file cannot be read as requested; the message has file and line."""


class DamagedError(ChumokuError):
    """A file is damaged; the message names it."""


class BusyError(UsageError):
    """Another process is using this folder, or a queue is full."""


class StorageError(ChumokuError):
    """A file cannot be written, for example because the disk is full."""


class DivergedError(ChumokuError):
    """Training gives NaN or infinite numbers; the message names the first module that does."""
