"""A very small sentence encoder: its table of sentences and its recipe."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

WORDS = ("cat", "dog", "stock", "market", "tree", "river", "music", "bread", "train", "winter", "paper", "stone")


def write_table(path: Path, count: int = 97, *, negatives: bool = False) -> Path:
    """Rows of random words: a positive has the words of its anchor in capitals, a negative has others."""
    dice, lines = random.Random(3), []
    for number in range(count):
        words = [f"{dice.choice(WORDS)}{dice.choice('abcdefghijk')}" for _ in range(5)]
        others = [f"{dice.choice(WORDS)}{number}" for _ in range(3)]
        cells = [" ".join(words), " ".join(words).upper()[::-1], " ".join(others)]
        lines.append("\t".join(cells if negatives else cells[:2]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sentence_recipe(table: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """The recipe of a very small run; `changes` replace values of its tables."""
    tables: dict[str, dict[str, Any]] = {
        "model": {"kind": "encoder", "width": 14, "layers": 1, "heads": 7, "context": 37, "feedforward_width": 19},
        "tokenizer": {"kind": "byte"},
        "data": {"kind": "sentences", "files": str(table), "validation_share": 0.2},
        "train": {"out": str(out), "steps": 7, "batch_size": 11, "save_every": 3, "samples": 0, "device": "cpu"},
        "optimizer": {"learning_rate": 0.01},
    }
    for name, values in changes.items():
        tables[name] = {**tables.get(name, {}), **values}
    return tables
