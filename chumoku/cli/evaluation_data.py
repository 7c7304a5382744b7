"""Test data of `chumoku evaluate`: pairs, files of translations, and which words of the command line are models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from chumoku.cli.shared import say
from chumoku.pretrained import NAMES

if TYPE_CHECKING:
    from chumoku.data.pairs import Pair

MODELS = (".gguf", ".bin", ".data", ".safetensors", ".pt", ".pth", ".ckpt")


def is_translations(word: str) -> bool:
    """Whether a word of the command line is a file of translations, not a model."""
    return Path(word).is_file() and not word.lower().endswith(MODELS)


def split_models(model: str, data: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models, and the files of the data. Of files of translations, the last one has the references."""
    if is_translations(model):
        return [model, *data[:-1]], list(data[-1:])
    others = list(takewhile(is_model, data[:-1]))
    return [model, *others], list(data[len(others) :])


def is_model(word: str) -> bool:
    """Whether a word of the command line can only be a model: by its name, or by what its folder contains."""
    from chumoku.model_path import is_adapter, resolve_run
    from chumoku.weights.identify_model import CONFIG

    path = Path(word)
    if path.is_dir():
        folder = Path(resolve_run(path))
        return (folder / CONFIG).exists() or is_adapter(folder)
    return word.startswith("hf:") or (word in NAMES and not path.exists()) or word.lower().endswith(MODELS)


def has_table(files: list[str]) -> bool:
    from chumoku.data.pairs import TABLE_SUFFIXES
    from chumoku.data.text_files import inner_suffix

    return all(inner_suffix(Path(file)) in TABLE_SUFFIXES for file in files)


def read_test_pairs(files: list[str], columns: tuple[str | int, str | int]) -> list[Pair]:
    """Every pair, including duplicates and odd lengths: a test set is not cleaned."""
    from chumoku.data.pairs import Cleaning, read_pairs

    pairs, report = read_pairs(files, columns=columns, cleaning=Cleaning(1 << 20, float("inf"), duplicates=True))
    for line in report.lines() if report.dropped else ():
        say(line, err=True)
    return pairs


def read_translations(path: Path) -> list[str]:
    from chumoku.data.text_files import open_members, read_lines

    return [line.text for member in open_members(path) for line in read_lines(member.stream)]
