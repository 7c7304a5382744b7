"""chumoku translate: sentences, lines of standard input, or a file of any length."""

from __future__ import annotations

import functools
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
    check_text,
    given_options,
    json_line,
    model_path,
    open_pipeline,
    quiet_pipe,
    say,
    say_aside,
)
from chumoku.decoding.defaults import BEAM, LARGEST_PENALTY, LENGTH_PENALTY
from chumoku.errors import UsageError, pluralize
from chumoku.messages import translate as in_language
from chumoku.safe_files import check_file

if TYPE_CHECKING:
    from rich.progress import Progress

    from chumoku.decoding.translate_file import Translate

AT_ONCE = 32  # most lines of standard input translated together
QUIET_SECONDS = 10.0  # between progress lines where there is no terminal


def translate(
    model: Annotated[str, typer.Argument(help=f"A translation model: {KNOWN}.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; default: lines of standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Translate the lines of this file (.gz too) …")] = None,
    out: Annotated[
        Path | None, typer.Option(help="… into this one; run the same command again to continue an interrupted one.")
    ] = None,
    to_pairs: Annotated[
        Path | None,
        typer.Option(help="… or into a table of pairs (.tsv), each text and its translation, to train another model."),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="With --to-pairs: the translation first, as source (back-translation).")
    ] = False,
    beam: Annotated[int, typer.Option(min=1, max=64, help="Beam size.")] = BEAM,
    length_penalty: Annotated[
        float, typer.Option(help="Above 0 favors long translations, below 0 short ones.")
    ] = LENGTH_PENALTY,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=LONGEST, help="Most tokens of a translation.")
    ] = None,
    into: Annotated[str | None, typer.Option(help="Target language, for multilingual models.")] = None,
    source_language: Annotated[
        str | None,
        typer.Option("--from", help="Language of the text, for models that have a token for it (M2M100, NLLB, mBART)."),
    ] = None,
    split: Annotated[
        bool, typer.Option(help="Translate the sentences of a text one by one, and join their translations.")
    ] = True,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Translate texts, lines of standard input as they arrive, or, with --file and --out, a file of any length.

    --file and --to-pairs write training data: with a large model, sequence-level distillation into a small one; with
    --back and text in the target language, back-translation.
    """
    if (file is None) != (out is None and to_pairs is None) or (file is not None and texts) or (out and to_pairs):
        raise UsageError("To translate a file, give --file IN and --out OUT or --to-pairs OUT, and no other texts.")
    if back and to_pairs is None:
        raise UsageError("--back needs --to-pairs OUT.")
    if not abs(length_penalty) <= LARGEST_PENALTY:
        raise UsageError(
            f"--length-penalty must be a number from −{LARGEST_PENALTY} to {LARGEST_PENALTY}, not {length_penalty}."
        )
    model = model_path(model, adapter)
    if file is not None:
        check_file(file)
    sentences = [check_text(text, f"Text {number}") for number, text in enumerate(texts or [], start=1)]
    options: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "into": into}
    options |= {"max_new_tokens": max_new_tokens, "split": split, **given_options(source_language=source_language)}
    pipeline = open_pipeline(model, "encoder-decoder", device=device, precision=precision, adapter=adapter)

    def run(some: list[str]) -> list[str]:
        return pipeline.translate(some, **options)

    if file is not None:
        sums = [fingerprint(place) for place in (model, adapter) if place is not None]
        job = {"model": sums, "precision": precision, **options}
        if to_pairs is not None:
            job["pairs"] = "back" if back else "forward"
            run_pairs = functools.partial(_run_pairs, run, back)
            _translate_file(file, to_pairs, run_pairs, job, as_json, empty="\t")
        elif out is not None:
            _translate_file(file, out, run, job, as_json)
    elif sentences:
        quiet_pipe()
        show(sentences, run(sentences), as_json)
    else:
        quiet_pipe()
        _translate_input(run, as_json)


def _run_pairs(run: Translate, back: bool, some: list[str]) -> list[str]:
    from chumoku.decoding.translate_file import make_pairs

    return make_pairs(some, run(some), back=back)


def _translate_input(run: Translate, as_json: bool) -> None:
    from chumoku.decoding.translate_file import read_line_batches, translate_lines

    if sys.stdin.isatty():
        say("One text per line; Ctrl-D ends.", err=True)
    first = 0
    for lines in read_line_batches(sys.stdin.buffer, most=AT_ONCE):  # type: ignore[arg-type]
        show(lines, translate_lines(lines, run, first=first), as_json)
        first += len(lines)


def show(texts: list[str], translations: list[str], as_json: bool) -> None:
    for text, translation in zip(texts, translations, strict=True):
        print(json_line(text=text, translation=translation) if as_json else translation)
    sys.stdout.flush()


def _translate_file(
    file: Path, out: Path, run: Translate, job: dict[str, Any], as_json: bool, *, empty: str = ""
) -> None:
    from chumoku.decoding.translate_file import translate_file

    with ProgressDisplay() as display:
        try:
            lines = translate_file(file, out, run, job=job, empty=empty, progress=display)
        except KeyboardInterrupt:
            display.close()
            say(
                f"Stopped after {display.done:,} of {pluralize(display.total, 'line')}. "
                "Run the same command to continue.",
                err=True,
            )
            raise typer.Exit(130) from None
    seconds = round(time.monotonic() - display.start, 1)
    if as_json:
        print(json_line(file=str(file), out=str(out), lines=lines, seconds=seconds))
    else:
        say(f"Wrote {pluralize(lines, 'line')} to {out}.")


class ProgressDisplay:
    """Progress on stderr: a bar, or without a terminal a line now and then."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)
        self.start = self.last_line = time.monotonic()
        self.first = self.done = self.total = 0
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        from chumoku.training.plan import format_duration

        if self.total == 0:
            self._open(done, total)
        self.done, self.total = done, total
        rate = (done - self.first) / max(time.monotonic() - self.start, 1e-9)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=in_language(f"{rate:,.1f} lines/s"))
        elif time.monotonic() - self.last_line > QUIET_SECONDS:
            self.last_line = time.monotonic()
            left = format_duration((total - done) / max(rate, 1e-9))
            say_aside(f"{done:,}/{total:,} lines, {rate:,.1f} lines/s, {left} left")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self, done: int, total: int) -> None:
        from chumoku.training.log import start_progress_bar

        self.first, self.start = done, time.monotonic()
        if done:
            say_aside(f"Continuing after line {done:,} of {total:,}.")
        if self.console.is_terminal:
            self._bar = start_progress_bar(self.console, total=total, done=done)


def fingerprint(model: Path | str) -> str:
    """A hash of the model's content: of its manifest of checksums, or of all its files."""
    import hashlib

    from chumoku.weights.checksums import MANIFEST
    from chumoku.weights.identify_model import local_path

    place = local_path(model)
    files = (
        [place / MANIFEST] if (place / MANIFEST).is_file() else sorted(place.rglob("*")) if place.is_dir() else [place]
    )
    total = hashlib.sha256()
    for file in files:
        if file.is_file():
            with file.open("rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
