"""chumoku generate: continue a text, streamed to the terminal."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from chumoku.cli.shared import (
    KNOWN,
    LONGEST,
    Adapter,
    Context,
    Device,
    FrequencyPenalty,
    Json,
    MinP,
    Precision,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    check_text,
    given_options,
    json_line,
    open_pipeline,
    quiet_pipe,
    read_standard_input,
)


def generate(
    model: Annotated[str, typer.Argument(help=f"A language model: {KNOWN}.")],
    text: Annotated[str | None, typer.Argument(help="The prompt; default: standard input.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=LONGEST, help="Most tokens to generate.")] = 128,
    min_new_tokens: Annotated[int, typer.Option(min=0, max=LONGEST, help="Fewest tokens to generate.")] = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string; may be repeated.")] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    context: Context = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Continue a text, token by token. The same seed gives the same text; temperature 0 is greedy."""
    quiet_pipe()
    prompt = check_text(read_standard_input() if text is None else text)
    pipeline = open_pipeline(model, "decoder", device=device, precision=precision, adapter=adapter, context=context)
    start = time.monotonic()
    pieces = pipeline.stream(
        prompt,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop=stop or [],
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        **given_options(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        ),
    )
    if as_json:
        print(json_line(prompt=prompt, text="".join(pieces), seconds=round(time.monotonic() - start, 3)))
        return
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()
