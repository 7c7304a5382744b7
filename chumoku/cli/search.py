"""chumoku search: the texts of an index that are nearest to a query."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from chumoku.cli.shared import Device, Json, check_text, json_line, open_pipeline, quiet_pipe

SHOWN = 200  # characters of a text that was found; --json shows all


def search(
    index: Annotated[Path, typer.Argument(help="An index, made with: chumoku embed MODEL --file … --index INDEX.")],
    query: Annotated[str, typer.Argument(help="A text, in quotes if it has spaces.")],
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many texts to show.")] = 5,
    model: Annotated[str | None, typer.Option(help="The model that made the index, if it has moved.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Find the texts of an index by meaning: those with the largest cosine similarity to the query, exactly."""
    quiet_pipe()
    check_text(query, "The query")
    from chumoku.decoding.vector_index import VectorIndex
    from chumoku.search import SearchIndex

    name = model or str(VectorIndex(index).about["model"])
    found = SearchIndex(index, open_pipeline(name, "encoder", device=device, precision=None) if name else None).search(
        query, top=top
    )
    if as_json:
        print(json_line(query=query, hits=[asdict(hit) for hit in found]))
        return
    for hit in found:
        text = " ".join(hit.text.split())
        print(f"{hit.score:6.3f}  {text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}")
