"""chumoku look: a model's internal values for one text, as plots and as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Adapter, Device, Json, Precision, check_text, json_line, model_path, say
from chumoku.errors import UsageError, pluralize
from chumoku.inspect_prompt import MOST, generated_text, question
from chumoku.messages import heading

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline
    from chumoku.probe.snapshot import Snapshot


def look(
    model: Annotated[str, typer.Argument(help=f"Any model: {KNOWN}.")],
    text: Annotated[str, typer.Argument(help="Input text; for an encoder it may contain the mask token.")],
    to: Annotated[
        str | None, typer.Option(help="Use this translation or continuation instead of generating one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the plots.")] = Path("look"),
    layer: Annotated[int | None, typer.Option(min=0, help="Layer of the enlarged map; default: mean over all.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Head of the enlarged map; default: mean over all.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Maximum number of new tokens; for a decoder the default is 8.")
    ] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Look inside a model: tokens, positions, every attention map, entropy, the residual stream, the logit lens, and
    for each generated token the best candidates and what it attended to. Tokens are generated greedily."""
    path = model_path(model, adapter)
    import chumoku
    from chumoku.probe.figures import draw_figures
    from chumoku.probe.page import write_page
    from chumoku.probe.snapshot import take_snapshot

    read, target = check_text(text), None if to is None else check_text(to, "The target")
    pipeline = chumoku.load(path, device=device, precision=precision, adapter=adapter)
    check_options(pipeline, layer=layer, head=head, to=target, new=max_new_tokens)
    inputs, notices = question(pipeline, read, target, max_new_tokens)
    snapshot = take_snapshot(pipeline.model, inputs)
    texts = {"model": model, "text": read, "output": generated_text(pipeline.tokenizer, inputs)}
    page = write_page(snapshot, out / "look.html", **texts, notices=notices)
    plots = draw_figures(snapshot, out, layer=layer, head=head)
    if as_json:
        written = {"page": str(page), "pictures": list(map(str, plots))}
        print(json_line(**texts, notices=[one for one, _ in notices], **to_json(snapshot), **written))
        return
    print_words(snapshot, texts["output"])
    for notice, _ in notices:
        say(f"\n{notice}")
    say(f"\nWrote {page} and {pluralize(len(plots), 'plot')} in the same folder.")


def check_options(pipeline: Pipeline, *, layer: int | None, head: int | None, to: str | None, new: int | None) -> None:
    from chumoku.probe.forward_pass import check_head, check_layer

    config = pipeline.config
    if layer is not None:
        check_layer(config, layer)
    if head is not None:
        check_head(config, head)
    if to is not None and config.kind == "encoder":
        raise UsageError("An encoder does not generate text, so --to does not apply. Leave it out.")
    if new is not None and config.kind == "encoder":
        raise UsageError("An encoder does not generate text, so --max-new-tokens does not apply. Leave it out.")


def to_json(snapshot: Snapshot) -> dict[str, object]:
    """The part of a snapshot that --json prints."""
    columns = snapshot.attended_names
    return {
        "tokens": snapshot.tokens,
        "source": snapshot.source,
        "words": [
            {
                "word": word.name,
                "probability": word.probability,
                "rank": word.rank,
                "candidates": word.candidates,
                "looked": [(columns[column], round(weight, 4)) for column, weight in word.looked],
            }
            for word in snapshot.words
        ],
        "entropy": {
            key: [[round(bits, 4) for bits in row] for row in table.tolist()] for key, table in snapshot.entropy.items()
        },
    }


def print_words(snapshot: Snapshot, text: str) -> None:
    """Print the generated tokens, each with its candidates and the tokens that it attended to."""
    from rich.console import Console
    from rich.table import Table

    from chumoku.probe.plot_style import format_percent
    from chumoku.probe.token_labels import explain_space

    if text:
        print(text)
    columns = snapshot.attended_names
    table = Table(*map(heading, ("after", "token", "five best", "attended to (mean over layers and heads)")))
    for word in snapshot.words:
        best = "  ".join(f"{one.name} {format_percent(one.probability)}" for one in word.candidates)
        looked = "  ".join(f"{columns[column]} {format_percent(weight)}" for column, weight in word.looked)
        table.add_row(snapshot.tokens[word.place][1], word.name or "?", best, looked)
    if snapshot.words:
        Console(markup=False, highlight=False).print(table)
        if explanation := explain_space(name for _, name in (*snapshot.source, *snapshot.tokens)):
            say(explanation)
