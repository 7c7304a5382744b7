"""chumoku convert: a model for transformers, llama.cpp or CTranslate2, certified to be the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import KNOWN, Adapter, Json, json_line

if TYPE_CHECKING:
    from chumoku.weights.certificate import Certificate

# As in weights.convert, which is too heavy for --help.
TARGETS = "transformers, gguf (for llama.cpp), ctranslate2, or chumoku"
TYPES = "transformers: float32, bf16; gguf: f16, q8_0, f32; ctranslate2: float32, float16, int8."


def convert(
    model: Annotated[str, typer.Argument(help=f"A model: {KNOWN}.")],
    out: Annotated[Path, typer.Argument(help="Where to write: a new folder, or for gguf a file.")],
    to: Annotated[str, typer.Option(help=f"For which program: {TARGETS}.")],
    kind: Annotated[str | None, typer.Option("--type", help=f"Of the numbers. {TYPES}")] = None,
    adapter: Adapter = None,
    as_json: Json = False,
) -> None:
    """Write a model for another program, open it there, and certify that it says the same.

    Nothing is kept of a conversion whose numbers differ by more than their type explains.
    """
    from functools import partial

    import chumoku
    from chumoku.pipeline import is_adapter
    from chumoku.weights.convert import certificate_of, convert

    whole = adapter is None and not is_adapter(model)
    source = model if whole else partial(chumoku.load, model, adapter=adapter)
    certificate = convert(source, out, to=to, kind=kind, name=model)
    if as_json:
        print(json_line(out=str(out), use=use(out, certificate), **certificate.as_dict()))
    else:
        show(out, certificate_of(out), certificate)


def show(out: Path, beside: Path, certificate: Certificate) -> None:
    from chumoku.cli.count import size

    print(f"{out}: {certificate.target}, {certificate.kind}")
    for name, entry in certificate.files.items():
        print(f"  {name:<28} {size(entry['bytes']):>12}")
    print(certificate.sentence)
    print(f"Versions and sums are in {beside}.")
    print(f"Use it: {use(out, certificate)}")


def use(out: Path, certificate: Certificate) -> str:
    """A line that uses the result where it was written for."""
    match certificate.target:
        case "gguf":
            return f'llama-cli -m {out} -p "Once upon a time"'
        case "ctranslate2":
            kind = "Translator" if certificate.model == "encoder-decoder" else "Generator"
            return f'python -c "import ctranslate2; model = ctranslate2.{kind}({str(out)!r})"'
        case "transformers":
            auto = {"decoder": "AutoModelForCausalLM", "encoder-decoder": "AutoModelForSeq2SeqLM"}
            name = auto.get(certificate.model, "AutoModel")
            return f'python -c "from transformers import {name}; model = {name}.from_pretrained({str(out)!r})"'
        case _:
            command = {"decoder": "generate", "encoder-decoder": "translate", "encoder": "embed"}[certificate.model]
            return f'chumoku {command} {out} "A sentence."'
