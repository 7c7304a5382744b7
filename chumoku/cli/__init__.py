"""The command line. Each command is a small file that imports what it needs when it runs."""

from __future__ import annotations

import io
import os
import sys
import warnings

import typer

from chumoku.cli import (
    chat,
    classify,
    compare,
    convert,
    count,
    demo,
    diff,
    doctor,
    embed,
    evaluate,
    families,
    generate,
    keys,
    lab,
    lm_eval,
    look,
    mine,
    prepare,
    push,
    search,
    serve,
    tokenize,
    train,
    translate,
)
from chumoku.cli.group import Group
from chumoku.cli.shared import say
from chumoku.errors import ChumokuError, NoTokenizerWarning

app = typer.Typer(
    name="chumoku",
    cls=Group,
    help="Build, train, run and look inside Transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(count.count)
app.command()(tokenize.tokenize)
app.command()(prepare.prepare)
app.command()(train.train)
app.command()(keys.keys)
app.command()(compare.compare)
app.command()(evaluate.evaluate)
app.command()(diff.diff)
app.command("lm-eval", context_settings=lm_eval.CONTEXT_SETTINGS)(lm_eval.lm_eval)
app.command()(translate.translate)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(embed.embed)
app.command()(search.search)
app.command()(mine.mine)
app.command()(classify.classify)
app.command()(convert.convert)
app.command()(push.push)
app.command()(families.families)
app.command()(doctor.doctor)
app.command()(look.look)
app.command()(serve.serve)
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Run a command; errors of chumoku are printed as a sentence and set the exit code, without a traceback."""
    # Make waiting threads sleep early instead of spinning: if another program uses a core, spinning makes small models
    # 50 times slower. This must be set before torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show こたつ shows ?
    warnings.simplefilter("ignore", NoTokenizerWarning)  # a command that needs the tokenizer says so itself
    try:
        app()
    except ChumokuError as error:
        say(str(error), err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        say(f"{error.filename or 'A file'} could not be used: {error.strerror or error}.", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        say("Stopped.", err=True)
        sys.exit(130)
