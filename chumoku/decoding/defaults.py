"""Default options of generation and translation, for Python, the command line, the server and its page.

A model's generation_config.json comes first (`models.generation_config`).

Small models answer incoherently at temperature 0.7 with top-p alone; min-p keeps them to likely tokens where they are
sure, and lets them vary elsewhere. The values were chosen by reading answers of SmolLM2-135M-Instruct (docs/log.md).
The default min-p goes with the default temperature, top-p and top-k: where one of these is given, it is off, so that
temperature 1 and top-p 1 are the model's own distribution. This module imports nothing slow, so that `--help` can show
the values.
"""

from __future__ import annotations

from typing import Any


class _ModelDefault:
    def __repr__(self) -> str:
        return "the model's default"


MODEL_DEFAULT: Any = _ModelDefault()  # of an argument: as in the model's generation_config.json, or as below
TEMPERATURE = 0.7
TOP_P = 0.95
MIN_P = 0.3
BEAM = 4
LENGTH_PENALTY = 1.0
LARGEST_PENALTY = 10  # of beam search; beyond it, scores overflow
