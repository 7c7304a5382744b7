"""What the commands that ask a model share: options, and how they meet pipes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.errors import UsageError

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline

LARGEST = 1 << 24  # bytes of standard input
LONGEST = 1 << 16  # tokens that a command writes: memory for all of them is set aside

KNOWN = (
    "a run's folder, a model's folder (ours or transformers'), a .gguf file, llama2.c's .bin, an adapter, or "
    "hf:owner/name"
)
Adapter = Annotated[Path | None, typer.Option(help="Lay this adapter (LoRA, a folder) over the model.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda or cuda:1.")]
Precision = Annotated[str | None, typer.Option(help="Of the weights: float32, bf16, int8 or int4; else as stored.")]
Temperature = Annotated[
    float, typer.Option(help="0: always the likeliest token; 1: the model's own probabilities; above 1: more random.")
]
TopK = Annotated[int | None, typer.Option(help="Only among the k likeliest tokens.")]
TopP = Annotated[
    float, typer.Option(help="Only the likeliest tokens whose probabilities reach this sum; 1: all tokens.")
]
MinP = Annotated[float | None, typer.Option(help="Only tokens at least this share as likely as the likeliest.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: tokens that occurred before become less likely.")]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted from the logits of tokens that occurred before.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtracted from a logit each time its token was generated.")]
Seed = Annotated[int, typer.Option(help="Another seed, another text.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def model_path(model: str) -> str:
    """The model that a name stands for: a run's folder stands for the model in it."""
    from chumoku.pipeline import model_of_run

    found = str(model_of_run(model))
    if found != model and Path(found).name == "best":
        typer.echo(f"{model} has no last/ yet, because its run is not finished; {found} is used.", err=True)
    return found


def opened(model: str, kind: str, *, device: str, precision: str | None, adapter: Path | None = None) -> Pipeline:
    """The model, when it is of the kind this command needs."""
    import chumoku
    from chumoku.nn.plain import plain_formulas
    from chumoku.pipeline import ABILITIES

    pipeline = chumoku.load(model_path(model), device=device, precision=precision, adapter=adapter)
    if plain_formulas():
        typer.echo("Running the plain formulas, because CHUMOKU_PLAIN is set. Fast kernels run without it.", err=True)
    found = pipeline.config.kind
    if found != kind:
        raise UsageError(f"{model} is of kind '{found}', and this command needs the kind '{kind}': {ABILITIES[found]}.")
    return pipeline


def quiet_pipe() -> None:
    """When nobody reads our answers any more (as after `| head`), end without a word."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def written(text: str, name: str = "The text") -> str:
    """A text that says something, in whole characters."""
    if not text.strip():
        raise UsageError(f"{name} is empty. Give a text, in quotes where it has spaces.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{name} is no valid UTF-8. Write it in UTF-8.") from None
    return text


def standard_input() -> str:
    """All of it; a person at a terminal is told what to do instead."""
    if sys.stdin.isatty():
        raise UsageError("Give a text, in quotes where it has spaces, or send one to standard input.")
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UsageError(f"Standard input has more than {LARGEST:,} bytes, which no model reads. Shorten it.")
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"Line {line:,} of standard input is no valid UTF-8. Write it in UTF-8 first, as in: iconv -f SHIFT_JIS "
            "-t UTF-8."
        ) from None


def as_line(**values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)
