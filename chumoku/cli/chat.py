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
    Context,
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
    check_text,
    given_options,
    json_line,
    model_path,
    open_pipeline,
    quiet_pipe,
    say,
)
from chumoku.errors import LengthError

if TYPE_CHECKING:
    from chumoku.decoding.chat import Message, Reply


def chat(
    model: Annotated[str, typer.Argument(help=f"A language model: {KNOWN}.")],
    system: Annotated[str | None, typer.Option(help="System message before the conversation.")] = None,
    format: Annotated[str | None, typer.Option(help="chatml, llama3 or plain; default: the model's template.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=LONGEST, help="Most tokens of a reply.")] = 512,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = 0,
    adapter: Adapter = None,
    precision: Precision = None,
    context: Context = None,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print each reply as a line of JSON.")] = False,
) -> None:
    """Chat with a model. /reset starts a new conversation, /quit or Ctrl-D ends, Ctrl-C stops a reply."""
    model = model_path(model, adapter)
    from chumoku.decoding.arguments import fill_options
    from chumoku.decoding.chat import TEMPLATE, Message, format_for, missing_template_notice, reply
    from chumoku.decoding.sampling import SamplingOptions
    from chumoku.text.chat_template_process import start as start_template_process

    quiet_pipe()
    given = given_options(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
    )
    SamplingOptions(**given)  # refuses wrong options before the model is opened
    system_messages = [] if system is None else [Message("system", check_text(system, "The system message"))]
    pipeline = open_pipeline(model, "decoder", device=device, precision=precision, adapter=adapter, context=context)
    sampling = fill_options(pipeline.generation_config, given)
    form = format_for(pipeline.tokenizer, format)
    if form == TEMPLATE:
        start_template_process()
    if format is None and (notice := missing_template_notice(pipeline.tokenizer)):
        note(notice)

    def answer(history: list[Message]) -> Reply:
        return reply(
            pipeline.model,  # type: ignore[arg-type]
            history,
            tokenizer=pipeline.tokenizer,
            format=format,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
        )

    if sys.stdin.isatty():
        prepare_terminal(sampling.describe(), form)
    run_chat(answer, system_messages, as_json)


def prepare_terminal(sampling: str, format: str) -> None:
    """Give input() its editing keys, and say how the chat works."""
    import readline  # noqa: F401 - importing it is enough

    note(f"Sampling: {sampling}.")
    note(f"Format {format}. /reset starts a new conversation, /quit or Ctrl-D ends, Ctrl-C stops a reply.")


def run_chat(answer: Callable[[list[Message]], Reply], system: list[Message], as_json: bool) -> None:
    """Read messages and print replies until the input ends."""
    from chumoku.decoding.chat import Message

    history = list(system)
    for line in read_messages():
        if line == "/quit":
            return
        if line == "/reset":
            history = list(system)
            note("A new conversation.")
        elif line.startswith("/"):
            note("The commands are /reset and /quit.")
        elif line:
            try:
                reply = answer([*history, Message("user", line)])
            except LengthError as error:
                note(str(error))
                continue
            if reply.dropped:
                note(reply.dropped_notice)
                del history[len(system) : len(system) + reply.dropped]
            history += [Message("user", line), Message("assistant", show_reply(reply, as_json))]


def read_messages() -> Iterator[str]:
    """Lines of standard input; at a terminal with line editing, where Ctrl-C drops a line."""
    if not sys.stdin.isatty():
        from chumoku.decoding.translate_file import read_line_batches

        for lines in read_line_batches(sys.stdin.buffer, most=1):  # type: ignore[arg-type]
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
            note("That was not valid UTF-8.")


def show_reply(reply: Reply, as_json: bool) -> str:
    """Print a reply as it is generated; returns what was printed, also if it was stopped."""
    text = ""
    try:
        for piece in reply.pieces:
            text += piece
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        note(" (stopped)")
    else:
        if not as_json:
            print()
    if as_json:
        print(json_line(role="assistant", text=text), flush=True)
    return text


def note(sentence: str) -> None:
    say(sentence, err=True)
