"""chumoku generate: a decoder goes on from a text, shown as it comes."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from chumoku.cli.shared import (
    KNOWN,
    LONGEST,
    Adapter,
    Device,
    Json,
    MinP,
    Precision,
    Presence,
    Repetition,
    Seed,
    Temperature,
    TopK,
    TopP,
    as_line,
    opened,
    quiet_pipe,
    standard_input,
    written,
)
from chumoku.decoding.defaults import TEMPERATURE, TOP_P


def generate(
    model: Annotated[str, typer.Argument(help=f"A language model: {KNOWN}.")],
    text: Annotated[str | None, typer.Argument(help="What to go on from; without it, standard input.")] = None,
    new: Annotated[int, typer.Option(min=1, max=LONGEST, help="Most tokens to write.")] = 128,
    least: Annotated[int, typer.Option(min=0, max=LONGEST, help="Fewest tokens to write.")] = 0,
    temperature: Temperature = TEMPERATURE,
    top_k: TopK = None,
    top_p: TopP = TOP_P,
    min_p: MinP = None,
    repetition: Repetition = 1.0,
    presence: Presence = 0.0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before these words; may be given again.")] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Go on from a text, token by token. The same seed gives the same text; temperature 0 takes the likeliest."""
    quiet_pipe()
    prompt = written(standard_input() if text is None else text)
    pipeline = opened(model, "decoder", device=device, precision=precision, adapter=adapter)
    began = time.monotonic()
    pieces = pipeline.stream(
        prompt,
        new=new,
        least=least,
        stop=stop or [],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition=repetition,
        presence=presence,
        seed=seed,
    )
    if as_json:
        said = "".join(pieces)
        print(as_line(prompt=prompt, text=said, seconds=round(time.monotonic() - began, 3)))
        return
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
