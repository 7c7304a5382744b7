"""The laboratory: what the notes state, each in a file that runs, draws and is judged."""

from __future__ import annotations
