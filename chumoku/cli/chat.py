"""chumoku chat: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import (
    KNOWN,
    LONGEST,
    Adapter,
    Device,
    FrequencyPenalty,
    MinP,
    Precision,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    as_line,
    opened,
    quiet_pipe,
    written,
)
from chumoku.decoding.defaults import TEMPERATURE, TOP_P
from chumoku.errors import LengthError

if TYPE_CHECKING:
    from chumoku.decoding.chat import Message, Reply


def chat(
    model: Annotated[str, typer.Argument(help=f"A language model: {KNOWN}.")],
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    format: Annotated[str | None, typer.Option(help="chatml, llama3 or plain; else what the tokenizer knows.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=LONGEST, help="Most tokens of a reply.")] = 512,
    temperature: Temperature = TEMPERATURE,
    top_k: TopK = None,
    top_p: TopP = TOP_P,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = 0,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print each reply as a line of JSON.")] = False,
) -> None:
    """Talk with a model. /reset begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer."""
    from chumoku.decoding.chat import Message, format_for, reply
    from chumoku.decoding.sampling import SamplingOptions

    quiet_pipe()
    sampling = SamplingOptions(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed=seed
    )
    told = [] if system is None else [Message("system", written(system, "The system's message"))]
    pipeline = opened(model, "decoder", device=device, precision=precision, adapter=adapter)
    form = format_for(pipeline.tokenizer, format)

    def answer(history: list[Message]) -> Reply:
        return reply(
            pipeline.model,  # type: ignore[arg-type]
            history,
            tokenizer=pipeline.tokenizer,
            format=form,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
        )

    if sys.stdin.isatty():
        import readline  # noqa: F401 - importing it gives input() its editing keys

        note(f"Format {form}. /reset begins anew, /quit or Ctrl-D ends, Ctrl-C stops an answer.")
    talk(answer, told, as_json)


def talk(answer: Callable[[list[Message]], Reply], told: list[Message], as_json: bool) -> None:
    """Ask and answer until there is no more."""
    from chumoku.decoding.chat import Message

    history = list(told)
    for line in asked():
        if line == "/quit":
            return
        if line == "/reset":
            history = list(told)
            note("A new conversation.")
        elif line.startswith("/"):
            note("There are /reset and /quit.")
        elif line:
            try:
                reply = answer([*history, Message("user", line)])
            except LengthError as error:
                note(str(error))
                continue
            if reply.dropped:
                note(reply.dropped_notice)
                del history[len(told) : len(told) + reply.dropped]
            history += [Message("user", line), Message("assistant", spoken(reply, as_json))]


def asked() -> Iterator[str]:
    """Lines, one by one; at a terminal with editing, and a line that was given up is none."""
    if not sys.stdin.isatty():
        from chumoku.decoding.translate_file import arriving

        for lines in arriving(sys.stdin.buffer, most=1):  # type: ignore[arg-type]
            yield lines[0].strip()
        return
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
        except UnicodeDecodeError:
            note("That was no valid UTF-8.")


def spoken(reply: Reply, as_json: bool) -> str:
    """Show a reply as it comes; what was shown of it, however it ended."""
    said = ""
    try:
        for piece in reply.pieces:
            said += piece
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        note(" (stopped)")
    else:
        if not as_json:
            print()
    if as_json:
        print(as_line(role="assistant", text=said), flush=True)
    return said


def note(sentence: str) -> None:
    typer.echo(sentence, err=True)
