"""chumoku convert: write a model for another program or as a web page, and certify that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Adapter, Json, json_line, model_path, pad, say
from chumoku.messages import heading
from chumoku.safe_files import read_json

if TYPE_CHECKING:
    from chumoku.weights.bundle import Bundle
    from chumoku.weights.certificate import Certificate

# The same as in weights.convert, which is too slow to import for --help.
LABEL_TASKS = ("ForSequenceClassification", "ForTokenClassification")
TARGETS = "transformers, gguf (for llama.cpp), ctranslate2, chumoku, or web (one page that runs in a browser)"
TYPES = (
    "transformers: float32, bf16; gguf: f16, q8_0, f32; ctranslate2: float32, float16, int8; "
    "chumoku: float32, int8, int4; web: int8, float32."
)


def convert(
    model: Annotated[str, typer.Argument(help=f"A model: {KNOWN}.")],
    out: Annotated[Path, typer.Argument(help="Output path: a new folder, or for gguf and web a file.")],
    to: Annotated[str, typer.Option(help=f"Target program: {TARGETS}.")],
    kind: Annotated[str | None, typer.Option("--type", help=f"Number type. {TYPES}")] = None,
    into: Annotated[
        str | None, typer.Option(help="Multilingual translators: default target language, stored in the tokenizer.")
    ] = None,
    adapter: Adapter = None,
    as_json: Json = False,
) -> None:
    """Convert a model for another program, open it there, and certify that it computes the same.

    A conversion that differs by more than rounding explains is deleted.
    """
    from functools import partial

    import chumoku
    from chumoku.model_path import is_adapter
    from chumoku.weights.convert import certificate_path, convert

    model = model_path(model)
    has_adapter = adapter is not None or is_adapter(model)
    source = partial(chumoku.load, model, adapter=adapter) if has_adapter else model
    if to == "web":
        export(source, out, kind=kind, into=into, as_json=as_json)
        return
    certificate = convert(source, out, to=to, kind=kind, name=model, into=into)
    if as_json:
        print(json_line(out=str(out), use=usage_example(out, certificate), **certificate.as_dict()))
    else:
        print_report(out, certificate_path(out), certificate)


def export(source: str | Callable[[], Bundle], out: Path, *, kind: str | None, into: str | None, as_json: bool) -> None:
    """Write a model as one web page, and print what it consists of."""
    from rich.console import Console

    from chumoku.cli.count import format_bytes
    from chumoku.text.progress import ShowProgress
    from chumoku.web.export import export_page

    with ShowProgress(None if as_json else Console(stderr=True)) as progress:
        page = export_page(source, out, precision=kind, into=into, progress=progress)
    if as_json:
        print(json_line(out=str(out), **{**asdict(page), "path": str(page.path)}))
        return
    say(f"{out}: web, {page.precision}, {format_bytes(page.size)}")
    for name, size in page.parts.items():
        print(f"  {pad(heading(name), 28)} {format_bytes(size):>12}")
    say("\n".join(page.sentences))
    say(f"Open it in a browser: {page.path.as_uri()}. It needs no server and sends nothing.")


def print_report(out: Path, certificate_file: Path, certificate: Certificate) -> None:
    from chumoku.cli.count import format_bytes

    print(f"{out}: {certificate.target}, {certificate.kind}")
    for name, entry in certificate.files.items():
        print(f"  {name:<28} {format_bytes(entry['bytes']):>12}")
    say(certificate.sentence)
    say(f"Versions and checksums are in {certificate_file}.")
    say(f"Use it: {usage_example(out, certificate)}")


def usage_example(out: Path, certificate: Certificate) -> str:
    """A command that uses the converted model in its target program."""
    match certificate.target:
        case "gguf":
            return f'llama-cli -m {out} -p "Once upon a time"'
        case "ctranslate2":
            kind = "Translator" if certificate.model == "encoder-decoder" else "Generator"
            return f'python -c "import ctranslate2; model = ctranslate2.{kind}({str(out)!r})"'
        case "transformers":
            auto = {"decoder": "AutoModelForCausalLM", "encoder-decoder": "AutoModelForSeq2SeqLM"}
            (written,) = read_json(out / "config.json")["architectures"]
            task = next((task for task in LABEL_TASKS if written.endswith(task)), None)
            name = auto.get(certificate.model, "AutoModel") if task is None else f"AutoModel{task}"
            return f'python -c "from transformers import {name}; model = {name}.from_pretrained({str(out)!r})"'
        case _:
            command = {"decoder": "generate", "encoder-decoder": "translate", "encoder": "embed"}[certificate.model]
            if read_json(out / "config.json")["model"].get("labels"):
                command = "classify"
            return f'chumoku {command} {out} "A sentence."'
