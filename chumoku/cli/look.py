"""chumoku look: what a model has inside while it reads a text and writes another, as pictures and as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Adapter, Device, Precision, check_text, json_line, model_path
from chumoku.errors import UsageError, counted
from chumoku.inspect_prompt import MOST, generated_text, question

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline
    from chumoku.probe.snapshot import Seen


def look(
    model: Annotated[str, typer.Argument(help=f"Any model: {KNOWN}.")],
    text: Annotated[str, typer.Argument(help="What it reads; for an encoder, its own mask token may stand in it.")],
    to: Annotated[str | None, typer.Option(help="Look at this translation or continuation, not at its own.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the pictures.")] = Path("look"),
    layer: Annotated[int | None, typer.Option(min=0, help="Draw this layer large, not the mean over all.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Draw this head large, not the mean over all.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Most tokens to generate; a decoder's default: 8.")
    ] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Look inside a model: tokens, positions, every attention map, entropy, the residual stream, the logit lens, and
    for each word the best candidates and where it looked. Words are chosen greedily."""
    import chumoku
    from chumoku.probe.figures import draw
    from chumoku.probe.page import write_page
    from chumoku.probe.snapshot import see

    read, target = check_text(text), None if to is None else check_text(to, "The target")
    pipeline = chumoku.load(model_path(model), device=device, precision=precision, adapter=adapter)
    check(pipeline, layer=layer, head=head, to=target, new=max_new_tokens)
    asked, notices = question(pipeline, read, target, max_new_tokens)
    seen = see(pipeline.model, asked)
    names = {"model": model, "text": read, "said": generated_text(pipeline.tokenizer, asked)}
    page = write_page(seen, out / "look.html", **names, notices=notices)
    pictures = draw(seen, out, layer=layer, head=head)
    if as_json:
        print(
            json_line(
                **names,
                notices=[one for one, _ in notices],
                **told(seen),
                page=str(page),
                pictures=list(map(str, pictures)),
            )
        )
        return
    show(seen, names["said"])
    for notice, _ in notices:
        print(f"\n{notice}")
    print(f"\nThe page is {page}; {counted(len(pictures), 'picture')} beside it.")


def check(pipeline: Pipeline, *, layer: int | None, head: int | None, to: str | None, new: int | None) -> None:
    config = pipeline.config
    least = min(depth for depth in (config.encoder_depth, config.decoder_depth) if depth)
    for name, asked, there in (("layer", layer, least), ("head", head, config.heads)):
        if asked is not None and asked >= there:
            raise UsageError(f"There is no {name} {asked}: this model has {there}, numbered from 0.")
    if to is not None and config.kind == "encoder":
        raise UsageError("An encoder writes nothing, so there is no target to look at. Leave --to out.")
    if new is not None and config.kind == "encoder":
        raise UsageError("An encoder generates nothing. Leave out --max-new-tokens.")


def columns_of(seen: Seen) -> Sequence[str]:
    return next((one for one in seen.maps if one.key == "cross"), seen.maps[0]).columns


def told(seen: Seen) -> dict[str, object]:
    """What --json prints of a look."""
    columns = columns_of(seen)
    return {
        "tokens": seen.tokens,
        "source": seen.source,
        "words": [
            {
                "word": word.name,
                "probability": word.probability,
                "rank": word.rank,
                "candidates": word.candidates,
                "looked": [(columns[column], round(weight, 4)) for column, weight in word.looked],
            }
            for word in seen.words
        ],
        "entropy": {
            key: [[round(bits, 4) for bits in row] for row in table.tolist()] for key, table in seen.entropy.items()
        },
    }


def show(seen: Seen, text: str) -> None:
    """The words, each with its candidates and what it looked at."""
    from rich.console import Console
    from rich.table import Table

    from chumoku.probe.plot_style import share_of

    if text:
        print(text)
    columns = columns_of(seen)
    table = Table("at", "word", "five best", "looked at (mean over layers and heads)")
    for word in seen.words:
        best = "  ".join(f"{one.name} {share_of(one.probability)}" for one in word.candidates)
        looked = "  ".join(f"{columns[column]} {share_of(weight)}" for column, weight in word.looked)
        table.add_row(seen.tokens[word.place][1], word.name or "?", best, looked)
    if seen.words:
        Console(markup=False, highlight=False).print(table)
