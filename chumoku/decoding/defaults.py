"""Default options of generation and translation, for Python, the command line, the server and its page.

Small models answer incoherently at temperature 1; a low temperature and top-p keep to likely tokens and still vary. The
values were chosen by reading answers of SmolLM2-135M-Instruct (docs/log.md). This module imports nothing, so that
`--help` can show the values.
"""

from __future__ import annotations

TEMPERATURE = 0.3
TOP_P = 0.9
BEAM = 4
LENGTH_PENALTY = 1.0
LARGEST_PENALTY = 10  # of beam search; beyond it, scores overflow
