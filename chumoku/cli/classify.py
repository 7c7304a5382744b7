"""chumoku classify: the classes of texts, or the tags of their words, with probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import (
    KNOWN,
    Adapter,
    Device,
    Precision,
    check_text,
    json_line,
    model_path,
    quiet_pipe,
    say_aside,
)
from chumoku.errors import UsageError

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline

CHUNK = 1 << 10  # texts that are classified at once


def classify(
    model: Annotated[str, typer.Argument(help=f"A model with classes or tags: {KNOWN}.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to classify.")] = None,
    file: Annotated[Path | None, typer.Option(help="More texts: the non-empty lines of this file.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many classes of each text.")] = 3,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON for each text, with all labels.")
    ] = False,
) -> None:
    """Print the labels of texts with their probabilities. A model with tags labels each word, split at spaces."""
    quiet_pipe()
    given = [check_text(text, f"Text {number}") for number, text in enumerate(texts or [], start=1)]
    if not given and file is None:
        raise UsageError("Give a text, in quotes if it has spaces, or --file with one text per line.")
    path = model_path(model, adapter)
    import chumoku

    pipeline = chumoku.load(path, device=device, precision=precision, adapter=adapter)
    pipeline.require_tokenizer()
    _print(pipeline, given, top, as_json)
    if file is not None:
        from chumoku.decoding.translate_file import read_lines

        waiting: list[str] = []
        for line in read_lines(file):
            waiting += [line] if line.strip() else []
            if len(waiting) == CHUNK:
                _print(pipeline, waiting, top, as_json)
                waiting = []
        _print(pipeline, waiting, top, as_json)


def _print(pipeline: Pipeline, texts: list[str], top: int, as_json: bool) -> None:
    if not texts:
        return
    found = pipeline.classify(texts, note=say_aside)
    for text, labels in zip(texts, found, strict=True):
        if as_json and isinstance(labels, dict):
            print(json_line(text=text, labels=labels))
        elif as_json:
            print(json_line(text=text, words=[word._asdict() for word in labels]))
        else:
            print(_line(text, labels, top))


def _line(text: str, labels: Any, top: int) -> str:
    if isinstance(labels, dict):
        best = list(labels.items())[:top]
        return f"{'  '.join(f'{name} {probability:.3f}' for name, probability in best)}\t{text}"
    return "\n".join([*(f"{word}\t{tag}\t{probability:.3f}" for word, tag, probability in labels), ""])
