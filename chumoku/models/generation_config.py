"""generation_config.json: how a model's authors sample from it, as in the folders of transformers.

    temperature, top_p, top_k, min_p, repetition_penalty    defaults for this model; explicit options win
    do_sample                                               false: greedy
    eos_token_id                                            the token or tokens that end a text

A file that sets temperature, top_p, top_k or min_p describes sampling as a whole: what it leaves out is off (where
transformers would use top_k = 50). All other keys are kept for exports and not used; max_new_tokens too, because how
long a text may be depends on the task. Values that make no sense are left out, with a warning.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chumoku.safe_files import read_json

FILE = "generation_config.json"
MAX_BYTES = 1 << 20
MAX_END_TOKENS = 64
RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 1 << 24),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
OFF = {"temperature": 1.0, "top_p": None, "top_k": None, "min_p": None}


@dataclass(frozen=True)
class GenerationConfig:
    """The content of the file; {} for a model without one."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = self._find_problems()
        for problem in problems.values():
            warnings.warn(problem, stacklevel=3)
        if problems:
            known = {name: value for name, value in self.values.items() if name not in problems}
            object.__setattr__(self, "values", known)

    def _find_problems(self) -> dict[str, str]:
        """For each entry whose value makes no sense, a sentence that says why."""
        found = {}
        for name, (low, high) in RANGES.items():
            value = self.values.get(name)
            kinds = (int,) if name == "top_k" else (int, float)
            if value is not None and (type(value) not in kinds or not low <= value <= high):
                shown = f"{name} = {str(value)[:40]!r}"
                found[name] = (
                    f"{FILE} has {shown}, which is ignored: it must be a whole number from {low} to {high}."
                    if name == "top_k"
                    else f"{FILE} has {shown}, which is ignored: it must be a number from {low} to {high}."
                )
        ends = self._end_tokens()
        if len(ends) > MAX_END_TOKENS or not all(type(one) is int and one >= 0 for one in ends):
            found["eos_token_id"] = (
                f"{FILE} has an eos_token_id that is ignored: it must be a token's number or a short list of them."
            )
        return found

    def _end_tokens(self) -> list[Any]:
        ends = self.values.get("eos_token_id")
        return [] if ends is None else ends if isinstance(ends, list) else [ends]

    def end_tokens(self, vocabulary: int) -> tuple[int, ...]:
        """The tokens that end a text, of a vocabulary of this size."""
        return tuple(one for one in self._end_tokens() if one < vocabulary)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments of SamplingOptions that this file sets."""
        found = {name: self.values[name] for name in RANGES if self.values.get(name) is not None}
        penalty = {name: found.pop(name) for name in ("repetition_penalty",) if name in found}
        if self.values.get("do_sample") is False:
            return {**OFF, "temperature": 0.0, **penalty}
        off = [name for name, value in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if found.get(name) == value]
        return {**(OFF if found else {}), **found, **dict.fromkeys(off), **penalty}

    def write(self, folder: Path) -> None:
        """Write the file, if the model has one."""
        if self.values:
            (folder / FILE).write_text(json.dumps(dict(self.values), indent=1), encoding="utf-8")


def read_generation_config(folder: Path) -> GenerationConfig:
    """The generation config of a model's folder."""
    path = folder / FILE
    return GenerationConfig(read_json(path, max_bytes=MAX_BYTES) if path.is_file() else {})
