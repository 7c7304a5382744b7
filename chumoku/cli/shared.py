"""Shared by the commands that run a model: options, standard input and pipes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.decoding.defaults import MIN_P, TEMPERATURE, TOP_P
from chumoku.errors import UsageError
from chumoku.messages import translate
from chumoku.pretrained import NAMES

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline

LARGEST = 1 << 24  # bytes of standard input
LONGEST = 1 << 16  # most tokens that a command generates; memory for all of them is allocated

KNOWN = (
    f"the name of a shipped model ({', '.join(NAMES)}), a run's folder, a model's folder (of chumoku or transformers), "
    "a .gguf file, a llama2.c .bin, an adapter, or hf:owner/name"
)
Adapter = Annotated[Path | None, typer.Option(help="Merge this LoRA adapter (a folder) into the model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Precision = Annotated[str | None, typer.Option(help="Of the weights: float32, bf16, int8 or int4; default: as stored.")]
Context = Annotated[
    int | None,
    typer.Option(help="Most tokens of a text; decides the frequencies of models with longrope. Default: the model's."),
]
OR_MODEL = "or the model's"  # as in its generation_config.json
Temperature = Annotated[
    float | None,
    typer.Option(
        help="0: always the most likely token; 1: the model's own probabilities; above 1: more random.",
        show_default=f"{TEMPERATURE} {OR_MODEL}",
    ),
]
TopK = Annotated[int | None, typer.Option(help="Keep only the k most likely tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Keep only the most likely tokens whose probabilities reach this sum; 1: all tokens.",
        show_default=f"{TOP_P} {OR_MODEL}",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Keep only tokens at least this times as likely as the most likely one; off if another rule is given.",
        show_default=f"{MIN_P} {OR_MODEL}",
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1: tokens that occurred before become less likely.", show_default=f"1 {OR_MODEL}"),
]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted from the logits of tokens that occurred before.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtracted from a logit each time its token was generated.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a message in the user's language; results, JSON and what a model generates are printed as they are."""
    print(translate(text), file=sys.stderr if err else sys.stdout, end=end, flush=err)


def say_aside(text: str) -> None:
    """Print a message to stderr, in the user's language."""
    say(text, err=True)


@contextmanager
def message_on_sigterm(exit_code: int = 128 + signal.SIGTERM) -> Iterator[None]:
    """Inside the block, SIGTERM ends the command with a message; code inside it may handle the signal itself.

    Without a handler, process 1 of a container ignores the signal and is killed later.
    """

    def stop(number: int, frame: object) -> None:
        say("Stopped by SIGTERM.", err=True)
        raise SystemExit(exit_code)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def pad(text: str, width: int, *, left: bool = False) -> str:
    """The text with spaces up to a width in columns of a terminal, where Japanese characters take two each."""
    from rich.cells import cell_len

    spaces = " " * (width - cell_len(text))
    return spaces + text if left else text + spaces


def model_path(model: str, adapter: Path | None = None) -> str:
    """The path of a model; for a run's folder, of the model in it. A wrong path is refused before torch is imported."""
    from chumoku.model_path import check_model, resolve_run

    found = str(resolve_run(model))
    check_model(found, adapter)
    if found != model and Path(found).name == "best":
        say(f"{model} has no last/ yet, because its run is not finished; using {found}.", err=True)
    return found


def open_pipeline(
    model: str,
    kind: str,
    *,
    device: str,
    precision: str | None,
    adapter: Path | None = None,
    context: int | None = None,
) -> Pipeline:
    """The model; refuse one that is not of the kind this command needs."""
    path = model_path(model, adapter)
    import chumoku
    from chumoku.nn.plain import plain_formulas
    from chumoku.pipeline import ABILITIES, LABEL_ABILITY

    pipeline = chumoku.load(path, device=device, precision=precision, adapter=adapter, context=context)
    if plain_formulas():
        say("Running the plain formulas, because CHUMOKU_PLAIN is set. Unset it for the fast kernels.", err=True)
    found = pipeline.config.kind
    if pipeline.config.labels is not None and kind == "decoder":
        raise UsageError(f"{model} has the head '{pipeline.config.head}': {LABEL_ABILITY}.")
    if found != kind:
        raise UsageError(f"{model} is of kind '{found}', but this command needs the kind '{kind}': {ABILITIES[found]}.")
    pipeline.require_tokenizer()
    return pipeline


def quiet_pipe() -> None:
    """End without an error message when the reader of our output closes the pipe (as `| head` does)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def check_text(text: str, name: str = "The text") -> str:
    """The text; refuse one that is empty or not valid UTF-8."""
    if not text.strip():
        raise UsageError(f"{name} is empty. Give a text, in quotes if it has spaces.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not valid UTF-8.") from None
    return text


def read_standard_input() -> str:
    """All of standard input; refused at a terminal."""
    if sys.stdin.isatty():
        raise UsageError("Give a text, in quotes if it has spaces, or send one to standard input.")
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UsageError(f"Standard input has more than {LARGEST:,} bytes. Shorten it.")
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"Line {line:,} of standard input is not valid UTF-8. Convert it first, for example with: iconv -f "
            "SHIFT_JIS -t UTF-8."
        ) from None


def given_options(**options: Any) -> dict[str, Any]:
    """The options that were given; those left out are the model's defaults."""
    return {name: value for name, value in options.items() if value is not None}


def json_line(**values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)
