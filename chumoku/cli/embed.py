"""chumoku embed: vectors of texts, their similarities, or an index of them for chumoku search."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chumoku.cli.shared import (
    KNOWN,
    Adapter,
    Device,
    Precision,
    check_text,
    json_line,
    model_path,
    open_pipeline,
    quiet_pipe,
    say,
    say_aside,
)
from chumoku.errors import UsageError, pluralize
from chumoku.messages import heading

if TYPE_CHECKING:
    from torch import Tensor

SQUARE = 10  # up to this many texts, all pairs are shown; of more, the nearest of each
MOST = 4096


def embed(
    model: Annotated[str, typer.Argument(help=f"An encoder: {KNOWN}.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to compare.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="More texts: the non-empty lines of this file, or of a folder each .txt and .md file as one text, "
            "after its name."
        ),
    ] = None,
    prompt: Annotated[
        Literal["query", "document"] | None, typer.Option(help="Put the model's prompt before each text.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Use the first elements of each vector only (contrastive.widths).")
    ] = None,
    index: Annotated[
        Path | None, typer.Option(help="Write an index of the texts into this folder, for chumoku search.")
    ] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON, with the vectors.")] = False,
) -> None:
    """Compare texts by the cosine similarity of their vectors (1: the same direction), or build an index of them."""
    quiet_pipe()
    if index is not None:
        if prompt is not None or adapter is not None or precision is not None or as_json:
            raise UsageError(
                "--index stores documents of the model as it is: leave out prompt, adapter, precision, json."
            )
        write_index(model, texts or [], file, index, width, device)
        return
    given = [check_text(text, f"Text {number}") for number, text in enumerate(texts or [], start=1)]
    if file is not None:
        given += itertools.islice(read_texts(file), MOST + 1)  # one more than allowed is enough to refuse
    if not 1 <= len(given) <= MOST:
        many = f"More than {MOST:,}" if len(given) > MOST else f"{len(given):,}"
        raise UsageError(f"{many} texts were given; give 1 to {MOST:,}, in quotes if they have spaces.")
    pipeline = open_pipeline(model, "encoder", device=device, precision=precision, adapter=adapter)
    from chumoku.decoding.embed import similarities

    vectors = pipeline.embed(given, prompt=prompt, width=width, note=say_aside)
    alike = similarities(vectors)
    if as_json:
        print(json_line(texts=given, similarities=alike.tolist(), vectors=vectors.tolist()))
    elif len(given) == 1:
        say(f"A vector of {vectors.shape[1]:,} numbers. Give two texts or more to compare them, or --json to see it.")
    else:
        show(given, alike)


def read_texts(file: Path) -> Iterator[str]:
    """The non-empty lines of a file; of a folder, each text file as one text, after its name."""
    from chumoku.data.documents import read_documents
    from chumoku.decoding.translate_file import read_lines

    return read_documents(file) if file.is_dir() else (text for text in read_lines(file) if text.strip())


def write_index(model: str, texts: list[str], file: Path | None, folder: Path, width: int | None, device: str) -> None:
    """Write an index of the texts and of the lines of the file."""
    from rich.console import Console

    from chumoku.text.progress import ShowProgress

    given = [check_text(text, f"Text {number}") for number, text in enumerate(texts, start=1)]
    more = read_texts(file) if file is not None else iter(())
    pipeline = open_pipeline(model, "encoder", device=device, precision=None)
    from chumoku.search import build_index

    options: dict[str, Any] = {"width": width, "model_name": model_path(model)}
    options["note"] = say_aside
    with ShowProgress(Console(stderr=True)) as progress:
        found = build_index(pipeline, itertools.chain(given, more), folder, **options, progress=progress)
    say(f'{pluralize(len(found), "text")} in {folder}. Search: chumoku search {folder} "…"')


def show(texts: list[str], alike: Tensor) -> None:
    """Print all pairs of a few texts; of many texts, each with the nearest other."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    if len(texts) <= SQUARE:
        for column in ("", "text", *map(str, range(1, len(texts) + 1))):
            table.add_column(heading(column), justify="left" if column == "text" else "right", no_wrap=column != "text")
        for number, (text, row) in enumerate(zip(texts, alike.tolist(), strict=True), start=1):
            table.add_row(str(number), text, *(f"{value:.3f}" for value in row))
    else:
        for column in ("text", "nearest", "similarity"):
            table.add_column(heading(column), justify="right" if column == "similarity" else "left")
        values, places = alike.clone().fill_diagonal_(-2).max(1)
        for text, value, place in zip(texts, values.tolist(), places.tolist(), strict=True):
            table.add_row(text, texts[place], f"{value:.3f}")
    Console(markup=False, highlight=False).print(table)
