"""Convert a model to another program's format, and certify that it computes the same.

    source → load → dequantize → write the target's files → certificate → move to the output path

    transformers   a folder                          float32, bf16
    gguf           a file, for llama.cpp             f16, q8_0, f32
    ctranslate2    a folder                          float32, float16, int8
    chumoku        a bundle, for `chumoku.load`      float32, int8, int4

Files are written to NAME.incomplete and moved to NAME once the certificate is issued, so the output is either complete
or absent. Leftovers of a killed conversion are removed by the next one with the same output path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from chumoku.errors import UsageError
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.model import Model
from chumoku.models.precision import cast, is_bf16, to_precision
from chumoku.partial_output import incomplete_folder, remove_leftovers
from chumoku.text.languages import with_target_language
from chumoku.weights.bundle import Bundle, Tokenizers, write_bundle
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.certificate import CERTIFICATE_FILE, Certificate, certify
from chumoku.weights.checksums import sync, write_checksums
from chumoku.weights.dequantize import dequantize_model

KINDS: dict[str, tuple[str, ...]] = {  # number types of each target; the first is the default
    "transformers": ("float32", "bf16"),
    "gguf": ("f16", "q8_0", "f32"),
    "ctranslate2": ("float32", "float16", "int8"),
    "chumoku": ("float32", "int8", "int4"),
}
WORKING_FOLDER = "new"  # inside `out`.incomplete
Write = Callable[[Path, Model, Tokenizers, str, GenerationConfig], None]


def convert(
    source: Path | str | Bundle | Callable[[], Bundle],
    out: Path | str,
    *,
    to: str,
    kind: str | None = None,
    name: str | None = None,
    into: str | None = None,
) -> Certificate:
    """Convert the model at `source` to the format `to`, write it to `out`, and return its certificate.

    source  a path, an open model, or a function that opens one
    kind    the number type to write, one of KINDS[to]
    name    what the certificate calls the source; by default its path
    into    the language that a multilingual translator translates into by default
    """
    out = Path(os.path.abspath(out))  # "." and ".." have no name to append .incomplete to
    check_arguments(out, to, kind)
    if isinstance(source, (str, Path)):
        check_outside(out, source)
        name = name or str(source)
    with temporary_output(out, file=to == "gguf") as working:
        bundle = open_source(source)
        model = dequantize_model(bundle.model)
        if kind is None:
            kind = "bf16" if to == "transformers" and is_bf16(bundle.model) else KINDS[to][0]
        path = working / out.name if to == "gguf" else working
        exported = cast(model, torch.bfloat16) if kind == "bf16" else model
        tokenizers = Tokenizers(bundle.tokenizer, bundle.source_tokenizer)
        if into is not None:
            tokenizers = set_target_language(tokenizers, into)
        WRITERS[to](path, exported, tokenizers, kind, bundle.generation_config)
        certificate = certify(model, to, path, source=name or "a model in memory", kind=kind)
        certificate.save(certificate_path(path))
        if to == "chumoku":
            write_checksums(working)
    return certificate


def check_arguments(out: Path, to: str, kind: str | None) -> None:
    """Refuse wrong arguments before anything is opened or written."""
    if to == "web":
        raise UsageError("A web page is written by chumoku.web.export.export_page, or by `chumoku convert --to web`.")
    if to not in KINDS:
        raise UsageError(f"Unknown target '{to[:60]}'. Choose one of {', '.join(KINDS)}, web.")
    if kind is not None and kind not in KINDS[to]:
        possible = ", ".join(KINDS[to])
        if to == "gguf":
            raise UsageError(
                f"gguf cannot be written as '{kind[:60]}'. Choose one of {possible}; llama.cpp's llama-quantize makes "
                "other types of an f16 file."
            )
        raise UsageError(f"{to} cannot be written as '{kind[:60]}'. Choose one of {possible}.")
    if to == "gguf" and out.suffix != ".gguf":
        raise UsageError(f"The name of a GGUF file must end in .gguf, but {out.name} does not. Use {out.name}.gguf.")
    if not out.name:
        check_output_free(out, file=False)


def check_outside(out: Path, source: Path | str) -> None:
    folder = Path(source).resolve()
    folder = folder.parent if folder.suffix == ".safetensors" else folder
    if out.resolve().is_relative_to(folder):
        raise UsageError(f"{out} is inside the source model's folder {source}. Choose another output path.")


def check_output_free(out: Path, *, file: bool) -> None:
    """Refuse to overwrite anything except an empty folder."""
    if out.is_dir() and not file and not any(out.iterdir()):
        return
    paths = (out, certificate_path(out)) if file else (out,)
    existing = next((path for path in paths if os.path.lexists(path)), None)
    if existing is not None:
        raise UsageError(f"{existing} already exists and is not overwritten. Choose another name, or delete it.")


def set_target_language(tokenizers: Tokenizers, code: str) -> Tokenizers:
    """The tokenizers, with the default target language in that of the source; they stay one if they are one."""
    source = with_target_language(tokenizers.source, code)
    return Tokenizers(source if tokenizers.target is tokenizers.source else tokenizers.target, source)


def open_source(source: Path | str | Bundle | Callable[[], Bundle]) -> Bundle:
    from chumoku.weights.open_model import load

    if isinstance(source, Bundle):
        return source
    return load(source, device="cpu") if isinstance(source, (str, Path)) else source()


def certificate_path(path: Path) -> Path:
    """certificate.json in a folder; NAME.certificate.json next to NAME.gguf."""
    return path / CERTIFICATE_FILE if path.is_dir() else path.with_name(f"{path.stem}.{CERTIFICATE_FILE}")


@contextlib.contextmanager
def temporary_output(out: Path, *, file: bool) -> Iterator[Path]:
    """A folder inside `out`.incomplete; on success it is renamed to `out`, or its files are moved next to `out`."""
    with incomplete_folder(out) as parent:
        working = parent / WORKING_FOLDER
        if file:
            remove_orphaned_certificate(working, out)
        remove_leftovers(parent)
        check_output_free(out, file=file)
        working.mkdir()
        yield working
        for path in working.rglob("*"):
            sync(path)
        check_output_free(out, file=file)
        if file:
            # The certificate is moved first, so that a model is never without it.
            for path in (certificate_path(working / out.name), working / out.name):
                path.replace(out.with_name(path.name))
        else:
            working.replace(out)
        sync(out.parent)


def remove_orphaned_certificate(working: Path, out: Path) -> None:
    """Delete a certificate that a killed conversion moved to its place without the model."""
    certificate = certificate_path(out)
    moved = (working / out.name).is_file() and not (working / certificate.name).exists()
    if moved and not os.path.lexists(out):
        certificate.unlink(missing_ok=True)


def _write_transformers(
    path: Path, model: Model, tokenizers: Tokenizers, kind: str, generation_config: GenerationConfig
) -> None:
    from chumoku.weights.formats.transformers_folder import write_folder

    write_folder(path, model, tokenizers)
    generation_config.write(path)


def _write_gguf(
    path: Path, model: Model, tokenizers: Tokenizers, kind: str, generation_config: GenerationConfig
) -> None:
    from chumoku.weights.formats.gguf_model import write_gguf_model

    write_gguf_model(path, model, tokenizers, kind=kind, generation_config=generation_config)  # type: ignore[arg-type]  # checked against KINDS


def _write_ctranslate2(
    path: Path, model: Model, tokenizers: Tokenizers, kind: str, generation_config: GenerationConfig
) -> None:
    from chumoku.weights.formats.ctranslate2 import write_ctranslate2

    write_ctranslate2(path, model, tokenizers, kind=kind)


def _write_chumoku(
    path: Path, model: Model, tokenizers: Tokenizers, kind: str, generation_config: GenerationConfig
) -> None:
    model = model if kind == "float32" else to_precision(model, kind, tables=True)
    write_bundle(path, model.config, tensors_of(model), tokenizers)
    generation_config.write(path)
    write_checksums(path)


WRITERS: dict[str, Write] = {
    "transformers": _write_transformers,
    "gguf": _write_gguf,
    "ctranslate2": _write_ctranslate2,
    "chumoku": _write_chumoku,
}
