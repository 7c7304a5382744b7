"""Conversion: any model that opens here, written for another program and certified.

    source → opening.load → plain weights → the target's files → certificate → in its place

    transformers   a folder                          float32, bf16
    gguf           a file, for llama.cpp             f16, q8_0, f32
    ctranslate2    a folder                          float32, float16, int8
    chumoku        a bundle, for `chumoku.load`      float32

Files are written in NAME.incomplete beside their place and moved there when their certificate holds: a conversion is
whole, or not there. What a killed one left is removed by the next that writes to the same place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.models.precision import cast, stored_as_bf16
from chumoku.partial_output import incomplete, remove_leftovers
from chumoku.weights.bundle import Bundle, Tokenizers, tensors_of, write_bundle
from chumoku.weights.certificate import CERTIFICATE_FILE, Certificate, certify
from chumoku.weights.checksums import sync, write_checksums
from chumoku.weights.dequantize import dequantize_model

KINDS: dict[str, tuple[str, ...]] = {  # of the numbers written; the first where none is asked for
    "transformers": ("float32", "bf16"),
    "gguf": ("f16", "q8_0", "f32"),
    "ctranslate2": ("float32", "float16", "int8"),
    "chumoku": ("float32",),
}
WORKING_FOLDER = "new"  # the working folder in `out`.incomplete
Write = Callable[[Path, Model, Tokenizers, str], None]


def convert(
    source: Path | str | Bundle | Callable[[], Bundle],
    out: Path | str,
    *,
    to: str,
    kind: str | None = None,
    name: str | None = None,
) -> Certificate:
    """Write the model at `source` as `to` wants it, at `out`, with a certificate beside its files.

    `source` may be a model that is open already, or a function that opens it; `name` is then what the certificate
    calls it.
    """
    out = Path(os.path.abspath(out))  # "." and ".." have no name to put .incomplete behind
    check_arguments(out, to, kind)
    if isinstance(source, (str, Path)):
        check_outside(out, source)
        name = name or str(source)
    with temporary_output(out, file=to == "gguf") as working:
        bundle = open_source(source)
        model = dequantize_model(bundle.model)
        if kind is None:
            kind = "bf16" if to == "transformers" and stored_as_bf16(bundle.model) else KINDS[to][0]
        path = working / out.name if to == "gguf" else working
        written = cast(model, torch.bfloat16) if kind == "bf16" else model
        WRITERS[to](path, written, Tokenizers(bundle.tokenizer, bundle.source_tokenizer), kind)
        certificate = certify(model, to, path, source=name or "a model in memory", kind=kind)
        certificate.save(certificate_path(path))
        if to == "chumoku":
            write_checksums(working)
    return certificate


def check_arguments(out: Path, to: str, kind: str | None) -> None:
    """Refuse what can be refused before anything is opened or written."""
    if to not in KINDS:
        raise UsageError(f"There is no target '{to[:60]}'; there are {', '.join(KINDS)}.")
    if kind is not None and kind not in KINDS[to]:
        raise UsageError(f"{to} is written in {', '.join(KINDS[to])}, not in '{kind[:60]}'.")
    if to == "gguf" and out.suffix != ".gguf":
        shown = out.name
        raise UsageError(
            f"A GGUF model is one file whose name ends in .gguf, and {shown} does not. Call it {shown}.gguf."
        )
    if not out.name:
        check_output_free(out, file=False)


def check_outside(out: Path, source: Path | str) -> None:
    home = Path(source).resolve()
    home = home.parent if home.suffix == ".safetensors" else home
    if out.resolve().is_relative_to(home):
        raise UsageError(f"{out} lies in the model's own folder {source}, which stays as it is. Give another place.")


def check_output_free(out: Path, *, file: bool) -> None:
    """Nothing is written over, but for an empty folder."""
    if out.is_dir() and not file and not any(out.iterdir()):
        return
    places = (out, certificate_path(out)) if file else (out,)
    there = next((path for path in places if os.path.lexists(path)), None)
    if there is not None:
        raise UsageError(f"{there} is there already, and nothing is written over. Give another name, or remove it.")


def open_source(source: Path | str | Bundle | Callable[[], Bundle]) -> Bundle:
    from chumoku.weights.open_model import load

    if isinstance(source, Bundle):
        return source
    return load(source, device="cpu") if isinstance(source, (str, Path)) else source()


def certificate_path(path: Path) -> Path:
    """certificate.json in a folder; NAME.certificate.json beside NAME.gguf."""
    return path / CERTIFICATE_FILE if path.is_dir() else path.with_name(f"{path.stem}.{CERTIFICATE_FILE}")


@contextlib.contextmanager
def temporary_output(out: Path, *, file: bool) -> Iterator[Path]:
    """A working folder in `out`.incomplete; it becomes `out`, or its files move there, when the work is done."""
    with incomplete(out) as place:
        working = place / WORKING_FOLDER
        if file:
            remove_orphaned_certificate(working, out)
        remove_leftovers(place)
        check_output_free(out, file=file)
        working.mkdir()
        yield working
        for path in working.rglob("*"):
            sync(path)
        check_output_free(out, file=file)
        if file:
            # The certificate goes first: where the model is, it is too.
            for path in (certificate_path(working / out.name), working / out.name):
                path.replace(out.with_name(path.name))
        else:
            working.replace(out)
        sync(out.parent)


def remove_orphaned_certificate(working: Path, out: Path) -> None:
    """Remove the certificate that a killed conversion had moved to its place, where the model had not followed yet."""
    certificate = certificate_path(out)
    moved = (working / out.name).is_file() and not (working / certificate.name).exists()
    if moved and not os.path.lexists(out):
        certificate.unlink(missing_ok=True)


def _write_transformers(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.formats.transformers_folder import write_folder

    write_folder(path, model, tokenizers)


def _write_gguf(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.formats.gguf_model import write_gguf_model

    write_gguf_model(path, model, tokenizers, kind=kind)  # type: ignore[arg-type]  # checked against KINDS


def _write_ctranslate2(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.formats.ctranslate2 import write_ctranslate2

    write_ctranslate2(path, model, tokenizers, kind=kind)


def _write_chumoku(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    write_bundle(path, model.config, tensors_of(model), tokenizers)
    write_checksums(path)


WRITERS: dict[str, Write] = {
    "transformers": _write_transformers,
    "gguf": _write_gguf,
    "ctranslate2": _write_ctranslate2,
    "chumoku": _write_chumoku,
}
