"""chumoku translate: sentences, lines as they come, or a file of any length."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import (
    KNOWN,
    LONGEST,
    Adapter,
    Device,
    Json,
    Precision,
    as_line,
    model_path,
    opened,
    quiet_pipe,
    written,
)
from chumoku.errors import UsageError, counted

if TYPE_CHECKING:
    from rich.progress import Progress

    from chumoku.decoding.translate_file import Translate

AT_ONCE = 32  # lines of standard input that wait for each other
STEEPEST = 10  # as in decoding.beam, which is too heavy for --help
QUIET_SECONDS = 10.0  # between lines about a file where there is no bar


def translate(
    model: Annotated[str, typer.Argument(help=f"A translator, as runs/demo/last: {KNOWN}.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Sentences; without any, lines of standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Translate the lines of this file (.gz too) …")] = None,
    out: Annotated[Path | None, typer.Option(help="… into this one; interrupted, it goes on when asked again.")] = None,
    beam: Annotated[int, typer.Option(min=1, max=64, help="Hypotheses kept at each word.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Above 0 long translations gain, below 0 short ones.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, max=LONGEST, help="Most tokens of a translation.")] = None,
    into: Annotated[str | None, typer.Option(help="The language, for models that know several.")] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Translate sentences; or lines of standard input as they come; or, with --file and --out, a file of any length."""
    if (file is None) != (out is None) or (file is not None and texts):
        raise UsageError("A file is translated with --file IN --out OUT, and without other texts.")
    if not abs(length_penalty) <= STEEPEST:
        raise UsageError(
            f"--length-penalty is a number from −{STEEPEST} to {STEEPEST}, and 0 prefers no length; "
            f"{length_penalty} was given."
        )
    model = model_path(model)
    sentences = [written(text, f"Text {number}") for number, text in enumerate(texts or [], start=1)]
    options = {"beam": beam, "length_penalty": length_penalty, "limit": limit, "into": into}
    pipeline = opened(model, "encoder-decoder", device=device, precision=precision, adapter=adapter)

    def say(some: list[str]) -> list[str]:
        return pipeline.translate(some, **options)

    if file is not None and out is not None:
        sums = [fingerprint(place) for place in (model, adapter) if place is not None]
        job = {"model": sums, "precision": precision, **options}
        _file(file, out, say, job, as_json)
    elif sentences:
        quiet_pipe()
        show(sentences, say(sentences), as_json)
    else:
        quiet_pipe()
        _arriving(say, as_json)


def _arriving(say: Translate, as_json: bool) -> None:
    from chumoku.decoding.translate_file import answers, arriving

    if sys.stdin.isatty():
        typer.echo("A sentence a line; Ctrl-D ends.", err=True)
    first = 0
    for lines in arriving(sys.stdin.buffer, most=AT_ONCE):  # type: ignore[arg-type]
        show(lines, answers(lines, say, first=first), as_json)
        first += len(lines)


def show(texts: list[str], said: list[str], as_json: bool) -> None:
    for text, translation in zip(texts, said, strict=True):
        print(as_line(text=text, translation=translation) if as_json else translation)
    sys.stdout.flush()


def _file(file: Path, out: Path, say: Translate, job: dict[str, Any], as_json: bool) -> None:
    from chumoku.decoding.translate_file import translate_file

    with Told() as told:
        try:
            lines = translate_file(file, out, say, job=job, progress=told)
        except KeyboardInterrupt:
            told.close()
            typer.echo(
                f"Stopped after {told.done:,} of {counted(told.total, 'line')}. The same command goes on.", err=True
            )
            raise typer.Exit(130) from None
    seconds = round(time.monotonic() - told.began, 1)
    if as_json:
        print(as_line(file=str(file), out=str(out), lines=lines, seconds=seconds))
    else:
        print(f"{counted(lines, 'line')} {'is' if lines == 1 else 'are'} in {out}.")


class Told:
    """How far a file is, on stderr: a bar, or a line now and then where there is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
        self.began = self.spoke = time.monotonic()
        self.first = self.done = self.total = 0
        self._bar: Progress | None = None

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        from chumoku.training.plan import duration

        if self.total == 0:
            self._open(done, total)
        self.done, self.total = done, total
        rate = (done - self.first) / max(time.monotonic() - self.began, 1e-9)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=f"{rate:,.1f} lines/s")
        elif time.monotonic() - self.spoke > QUIET_SECONDS:
            self.spoke = time.monotonic()
            left = duration((total - done) / max(rate, 1e-9))
            self.console.print(f"{done:,}/{total:,} lines, {rate:,.1f} lines/s, {left} left", highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self, done: int, total: int) -> None:
        from chumoku.training.log import started_bar

        self.first, self.began = done, time.monotonic()
        if done:
            self.console.print(f"Going on after line {done:,} of {total:,}.", highlight=False)
        if self.console.is_terminal:
            self._bar = started_bar(self.console, total=total, done=done)


def fingerprint(model: Path | str) -> str:
    """What the model is, whatever it is called: the sum of its sealed sums, or of all its bytes."""
    import hashlib

    from chumoku.weights.checksums import MANIFEST
    from chumoku.weights.open_model import place_of

    place = place_of(model)
    files = (
        [place / MANIFEST] if (place / MANIFEST).is_file() else sorted(place.rglob("*")) if place.is_dir() else [place]
    )
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
