"""A model as one web page: `chumoku convert MODEL OUT.html --to web`.

    source → open → weights as the page has them → container with checks → payload → HTML → certificate in Chromium
    → HTML with the certificate → move to the output path

The file is written to NAME.incomplete and moved to NAME when it is complete. A page that differs from Python is not
kept.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chumoku.decoding.model_card import model_card
from chumoku.errors import MissingExtraError, UsageError
from chumoku.partial_output import incomplete_folder, remove_leftovers
from chumoku.text.progress import Progress, silent
from chumoku.training.example_sentences import examples_for
from chumoku.web import chromium
from chumoku.web.build_wasm import LIBRARY, THREADS_LIBRARY
from chumoku.web.certificate import check_in_chromium, summarize
from chumoku.web.checks import make_checks
from chumoku.web.container import PRECISIONS, prepare_model, write_container
from chumoku.web.generation_data import generation_data
from chumoku.web.page import render_page
from chumoku.web.payload import Payload, encode_payload
from chumoku.web.tokenizer_data import tokenizer_data
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.checksums import sync
from chumoku.weights.convert import check_outside, open_source, set_target_language

CHECKS_ITSELF = "The page compares itself with Python's numbers in its view About this page."


@dataclass(frozen=True)
class ExportedPage:
    """A page that was written."""

    path: Path
    precision: str
    size: int  # of the file, in bytes
    parts: dict[str, int]  # bytes of the file that each part takes
    certificate: dict[str, Any] | None  # None if it was not checked
    sentences: list[str]  # the certificate in words, or why the page was not checked


def export_page(
    source: Path | str | Bundle | Callable[[], Bundle],
    out: Path | str,
    *,
    precision: str | None = None,
    into: str | None = None,
    check: bool = True,
    progress: Progress = silent,
) -> ExportedPage:
    """Write the model at `source` as one web page.

    source      a path, an open model, or a function that opens one
    precision   of the weights: int8, the default, or float32
    into        the language that a multilingual translator translates into by default
    check       open the page in Chromium, if it is installed, and compare it with Python
    """
    out, precision = Path(os.path.abspath(out)), precision or PRECISIONS[0]
    check_arguments(out, precision)
    if check:
        chromium.find_chromium()  # a wrong CHUMOKU_CHROMIUM is an error before the page is made
    if isinstance(source, (str, Path)):
        check_outside(out, source)
    with incomplete_folder(out) as folder:
        remove_leftovers(folder)
        progress("open the model")
        bundle = open_source(source)
        examples = examples_for(str(source)) if isinstance(source, (str, Path)) else ()
        progress("write the page")
        container = make_container(bundle, out.stem, precision, into=into, examples=examples)
        libraries = {"wasm": LIBRARY.read_bytes(), "threads": THREADS_LIBRARY.read_bytes()}
        payload = encode_payload({"model": container, **libraries})
        page = folder / out.name
        render = partial(render_page, payload, name=out.stem, precision=precision)
        certificate, sentences = write_page(page, render, check=check, progress=progress)
        size = page.stat().st_size
        sync(page)
        check_free(out)
        page.replace(out)
        sync(out.parent)
    return ExportedPage(out, precision, size, part_sizes(payload, size), certificate, sentences)


def write_page(
    page: Path, render: Callable[..., str], *, check: bool, progress: Progress
) -> tuple[dict[str, Any] | None, list[str]]:
    """Write a page, check it in Chromium, and write it again with its certificate, which is returned with its words."""
    page.write_text(render(), encoding="utf-8")
    reason = ""
    if check:
        try:
            certificate = check_in_chromium(page, progress=progress)
            page.write_text(render(certificate=certificate), encoding="utf-8")
            return certificate, summarize(certificate)
        except MissingExtraError as error:
            reason = f" {error}"
    return None, [f"Not checked in a browser.{reason} {CHECKS_ITSELF}"]


def make_container(bundle: Bundle, name: str, precision: str, *, into: str | None, examples: tuple[str, ...]) -> bytes:
    """The container of a model, with everything that the page needs to answer."""
    bundle.require_tokenizer()
    tokenizers = Tokenizers(bundle.tokenizer, bundle.source_tokenizer)
    if into is not None:
        tokenizers = set_target_language(tokenizers, into)
    same = tokenizers.source is tokenizers.target
    model = prepare_model(bundle.model, precision)
    generation = generation_data(model, tokenizers.target, bundle.generation_config)
    if generation["chat_notice"] is not None:
        warnings.warn(generation["chat_notice"], stacklevel=2)
    card = model_card(
        name,
        model.config,
        tokenizer=tokenizers.target,
        source_tokenizer=tokenizers.source,
        generation_config=bundle.generation_config,
        capacity=generation["context"],
        created=0,  # set by the page when it is opened: the same model gives the same file
        examples=examples,
    )
    return write_container(
        model,
        name=name,
        tokenizer=tokenizer_data(tokenizers.target),
        source_tokenizer=None if same else tokenizer_data(tokenizers.source),
        generation=generation,
        checks=make_checks(model, tokenizers),
        card={
            **card,
            "chat": card["chat"] and generation["chat"] is not None,
            "chat_reason": generation["chat_reason"],
        },
    )


def part_sizes(payload: Payload, total: int) -> dict[str, int]:
    """What each part of the page takes of the file, in bytes; the rest is scripts and styles."""
    sizes = {part["name"]: (part["stored"] + 3) // 4 * 5 for part in payload.parts}
    return {**sizes, "scripts and styles": total - sum(sizes.values())}


def check_arguments(out: Path, precision: str) -> None:
    """Refuse wrong arguments before anything is opened or written."""
    if precision not in PRECISIONS:
        raise UsageError(f"web cannot be written as '{precision[:60]}'. Choose one of {', '.join(PRECISIONS)}.")
    if out.suffix != ".html":
        raise UsageError(f"The name of a web page must end in .html, but {out.name} does not. Use {out.name}.html.")
    check_free(out)


def check_free(out: Path) -> None:
    if os.path.lexists(out):
        raise UsageError(f"{out} already exists and is not overwritten. Choose another name, or delete it.")
