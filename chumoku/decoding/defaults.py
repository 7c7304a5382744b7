"""How the next token is sampled when nobody says otherwise: in Python, at the command line, on the server, on the page.

Small models answer incoherently when all their probabilities count (temperature 1): a low temperature and top-p keep to
the likely tokens and still vary. The values were chosen by reading answers of SmolLM2-135M-Instruct (docs/log.md).
This module imports nothing, so that `--help` can show the values.
"""

from __future__ import annotations

TEMPERATURE = 0.3
TOP_P = 0.9
