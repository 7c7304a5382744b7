"""Default options of generation and translation, for Python, the command line, the server and its page.

A model's generation_config.json comes first (`models.generation_config`).

Small models answer incoherently at temperature 1; a low temperature and top-p keep to likely tokens and still vary. The
values were chosen by reading answers of SmolLM2-135M-Instruct (docs/log.md). This module imports nothing slow, so
that `--help` can show the values.
"""

from __future__ import annotations

from typing import Any


class _ModelDefault:
    def __repr__(self) -> str:
        return "the model's default"


MODEL_DEFAULT: Any = _ModelDefault()  # of an argument: as in the model's generation_config.json, or as below
TEMPERATURE = 0.3
TOP_P = 0.9
BEAM = 4
LENGTH_PENALTY = 1.0
LARGEST_PENALTY = 10  # of beam search; beyond it, scores overflow
