"""chumoku diff: which of two finished models is better, what changed, and in which blocks and heads."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chumoku.cli.shared import KNOWN, Context, Device, Json, json_line, model_path, say
from chumoku.decoding.defaults import BEAM
from chumoku.errors import UsageError
from chumoku.messages import choose

if TYPE_CHECKING:
    from chumoku.model_diff.results import ModelDiff
    from chumoku.model_diff.tables import Rows
    from chumoku.pipeline import Pipeline

PRECISION = "Of the weights of {}: float32, bf16, int8 or int4; default: as stored."
ADAPTER = "Merge this LoRA adapter (a folder) into {}."


def diff(
    a: Annotated[str, typer.Argument(help=f"A model: {KNOWN}.")],
    b: Annotated[str, typer.Argument(help="Another one of the same kind, with the same tokenizer.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="A text; for translators and sentence encoders a table, or two files (--data twice)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page, the picture and the JSON.")] = Path("diff"),
    texts: Annotated[int, typer.Option(min=2, help="Use the first texts only, at most this many.")] = 200,
    documents: Annotated[
        Literal["blank", "line", "file", "record"],
        typer.Option(help="What is one text: separated by blank lines, a line, a file, or a record of JSONL."),
    ] = "blank",
    columns: Annotated[str, typer.Option(help="Tables: source and target, by number (from 0) or name.")] = "0,1",
    precision_a: Annotated[str | None, typer.Option(help=PRECISION.format("A"))] = None,
    precision_b: Annotated[str | None, typer.Option(help=PRECISION.format("B"))] = None,
    adapter_a: Annotated[Path | None, typer.Option(help=ADAPTER.format("A"))] = None,
    adapter_b: Annotated[Path | None, typer.Option(help=ADAPTER.format("B"))] = None,
    transplant_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of text for recordings and transplants of blocks; 0: no transplants.")
    ] = 500,
    beam: Annotated[int, typer.Option(min=1, max=64, help="Translation models: beam size.")] = BEAM,
    into: Annotated[str | None, typer.Option(help="Multilingual models: target language.")] = None,
    source_language: Annotated[str | None, typer.Option("--from", help="Multilingual models: source language.")] = None,
    context: Context = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Compare two finished models: checkpoints, a base and its fine-tuned model, float32 and int4 …

    Prints which one is better, with a paired interval over texts; what changed most; and where: weights, attention
    patterns and stream of each block, and what happens when a block of one model is put into the other.
    """
    import chumoku

    if not data:
        raise UsageError("diff needs texts that both models read. Give a file: --data FILE.")
    sides = (a, precision_a, adapter_a), (b, precision_b, adapter_b)
    first, second = (
        chumoku.load(model_path(path), device=device, precision=precision, adapter=adapter, context=context)
        for path, precision, adapter in sides
    )
    from rich.console import Console

    from chumoku.text.progress import ShowProgress

    with ShowProgress(Console(stderr=True)) as progress:
        found = chumoku.diff(
            first,
            second,
            _read_texts(first, data, documents, columns, texts),
            names=(_name(*sides[0]), _name(*sides[1])),
            transplant_tokens=transplant_tokens,
            beam=beam,
            into=into,
            source_language=source_language,
            progress=progress,
        )
    written = write_files(found, out)
    if as_json:
        print(json_line(**found.as_dict(), written=list(map(str, written))))
    else:
        show(found)
        say(f"\nWrote {', '.join(map(str, written))}.")


def _name(path: str, precision: str | None, adapter: Path | None) -> str:
    return " ".join([path, *([f"+ {adapter}"] if adapter else []), *([precision] if precision else [])])


def _read_texts(pipeline: Pipeline, files: list[str], documents: Any, columns: str, most: int) -> list[Any]:
    """The first texts or pairs of the files, as this kind of model needs them."""
    from chumoku.cli.evaluation_data import read_test_pairs
    from chumoku.cli.prepare import split_in_two
    from chumoku.data.corpus import Corpus

    config = pipeline.config
    if config.kind == "encoder-decoder" or not config.predicts_tokens:
        pairs = read_test_pairs(files, split_in_two(columns, "--columns"))
        return [(pair.source, pair.target) for pair in pairs[:most]]
    return list(itertools.islice(Corpus(files, documents=documents).documents(), most))


def write_files(found: ModelDiff, out: Path) -> list[Path]:
    """Write the page, the picture and the JSON."""
    from chumoku.model_diff.page import write_page
    from chumoku.model_diff.picture import draw_diff

    out.mkdir(parents=True, exist_ok=True)
    numbers = out / "diff.json"
    numbers.write_text(f"{json_line(**found.as_dict())}\n", encoding="utf-8")
    return [write_page(found, out / "diff.html"), draw_diff(found, out / "diff.png"), numbers]


def show(found: ModelDiff) -> None:
    """Print the sentences and the tables."""
    from chumoku.model_diff.answer import answer
    from chumoku.model_diff.tables import block_rows, change_rows, head_rows, measure_rows

    for side, name, model in zip("AB", found.names, found.models, strict=True):
        print(f"{side}  {name}  ({model})")
    print()
    for words in answer(found):
        print(choose(*words))
    for rows in (
        measure_rows(found),
        change_rows(found, narrow=True),
        head_rows(found),
        block_rows(found, narrow=True),
    ):
        if rows is not None:
            _print_table(rows)


def _print_table(rows: Rows) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=choose(*rows.title), title_justify="left")
    for words in rows.heads:
        table.add_column(choose(*words), overflow="fold")
    for cells in rows.cells:
        table.add_row(*(Text(cell if isinstance(cell, str) else choose(*cell)) for cell in cells))
    print()
    Console(markup=False, highlight=False).print(table)
