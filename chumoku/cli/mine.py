"""chumoku mine: hard negatives for the pairs of a table, as triplets for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chumoku.cli.shared import KNOWN, Device, open_pipeline, say, say_aside
from chumoku.errors import UsageError, pluralize
from chumoku.partial_output import incomplete_folder, remove_leftovers


def mine(
    model: Annotated[str, typer.Argument(help=f"An encoder: {KNOWN}.")],
    files: Annotated[list[str], typer.Argument(metavar="TABLE", help="Tables of pairs: anchor and positive.")],
    out: Annotated[Path, typer.Option(help="Write the triplets to this file (TSV).")],
    columns: Annotated[str, typer.Option(help="Anchor and positive column, by number (from 0) or name.")] = "0,1",
    negatives: Annotated[int, typer.Option(min=1, max=50, help="Negatives of each pair.")] = 1,
    margin: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, help="A negative's cosine is below the positive's by at least this share of it."
        ),
    ] = 0.05,
    device: Device = "cpu",
) -> None:
    """Find hard negatives: for each anchor, the texts that are nearest to it, but belong to other anchors."""
    from rich.console import Console

    from chumoku.cli.prepare import split_in_two
    from chumoku.data.sentences import read_sentences
    from chumoku.text.progress import ShowProgress

    if out.exists():
        raise UsageError(f"{out} exists. Choose another file, or remove it.")
    rows, _ = read_sentences(files, columns=split_in_two(columns, "--columns"))
    pipeline = open_pipeline(model, "encoder", device=device, precision=None)
    from chumoku.hard_negatives import mine_negatives

    with ShowProgress(Console(stderr=True)) as progress:
        pairs = [(row[0], row[1]) for row in rows]
        options: dict[str, Any] = {"count": negatives, "margin": margin, "progress": progress}
        found = mine_negatives(pipeline, pairs, **options, note=say_aside)
    cells = ("\t".join(" ".join(text.split()) for text in triplet) for triplet in found)
    with incomplete_folder(out) as folder:
        remove_leftovers(folder)
        working = folder / "triplets.tsv"
        working.write_text("".join(f"{line}\n" for line in cells), encoding="utf-8")
        working.replace(out)
    say(
        f"{pluralize(len(found), 'triplet')} of {pluralize(len(rows), 'pair')} in {out}. Train with data.columns=0,1,2."
    )
