"""Conversion: any model that opens here, written for another program and certified.

    source → opening.load → plain weights → the target's files → certificate → in its place

    transformers   a folder                          float32, bf16
    gguf           a file, for llama.cpp             f16, q8_0, f32
    ctranslate2    a folder                          float32, float16, int8
    chumoku        a bundle, for `chumoku.load`      float32

Files are written beside their place and moved there when their certificate holds: a conversion is whole, or not there.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.models.precision import at_precision
from chumoku.weights.bundle import Bundle, Tokenizers, tensors_of, write_bundle
from chumoku.weights.certificate import NAME, Certificate, certify
from chumoku.weights.plain import plain
from chumoku.weights.sealed import seal, sync

KINDS: dict[str, tuple[str, ...]] = {  # of the numbers written; the first where none is asked for
    "transformers": ("float32", "bf16"),
    "gguf": ("f16", "q8_0", "f32"),
    "ctranslate2": ("float32", "float16", "int8"),
    "chumoku": ("float32",),
}
Write = Callable[[Path, Model, Tokenizers, str], None]


def convert(
    source: Path | str | Bundle, out: Path | str, *, to: str, kind: str | None = None, name: str | None = None
) -> Certificate:
    """Write the model at `source` as `to` wants it, at `out`, with a certificate beside its files.

    `source` may be a model that is open already; `name` is then what the certificate calls it.
    """
    out = Path(out)
    check(out, to, kind)
    home = None if isinstance(source, Bundle) else Path(source).resolve()
    home = home.parent if home is not None and home.suffix == ".safetensors" else home
    if home is not None and out.resolve().is_relative_to(home):
        raise UsageError(f"{out} lies in the model's own folder {source}, which stays as it is. Give another place.")
    from chumoku.weights.opening import load

    bundle = source if isinstance(source, Bundle) else load(source, device="cpu")
    named = name or ("a model in memory" if isinstance(source, Bundle) else str(source))
    model = plain(bundle.model)
    if kind is None:
        half = to == "transformers" and bundle.model.dtype == torch.bfloat16
        kind = "bf16" if half else KINDS[to][0]
    with arriving(out, file=to == "gguf") as working:
        path = working / out.name if to == "gguf" else working
        written = at_precision(model, "bf16") if kind == "bf16" else model
        WRITERS[to](path, written, Tokenizers(bundle.tokenizer, bundle.source_tokenizer), kind)
        certificate = certify(model, to, path, source=named, kind=kind)
        certificate.save(certificate_of(path))
        if to == "chumoku":
            seal(working)
    return certificate


def check(out: Path, to: str, kind: str | None) -> None:
    """Refuse what can be refused before anything is opened."""
    if to not in KINDS:
        raise UsageError(f"There is no target '{to[:60]}'; there are {', '.join(KINDS)}.")
    if kind is not None and kind not in KINDS[to]:
        raise UsageError(f"{to} is written in {', '.join(KINDS[to])}, not in '{kind[:60]}'.")
    if to == "gguf" and out.suffix != ".gguf":
        raise UsageError(f"A GGUF model is one file whose name ends in .gguf, and {out} does not. Call it {out}.gguf.")
    if out.is_dir() and to != "gguf" and not any(out.iterdir()):
        return
    places = (out, out.with_name(f"{out.stem}.{NAME}")) if to == "gguf" else (out,)
    there = next((path for path in places if path.exists() or path.is_symlink()), None)
    if there is not None:
        raise UsageError(f"{there} is there already, and nothing is written over. Give another name, or remove it.")


def certificate_of(path: Path) -> Path:
    """certificate.json in a folder; NAME.certificate.json beside NAME.gguf."""
    return path / NAME if path.is_dir() else path.with_name(f"{path.stem}.{NAME}")


@contextlib.contextmanager
def arriving(out: Path, *, file: bool) -> Iterator[Path]:
    """A working folder beside `out`; it becomes `out`, or its files move there, when the work is done."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    working.chmod(0o755)
    try:
        yield working
        for path in working.rglob("*"):
            sync(path)
        if file:
            # The certificate goes first: where the model is, it is too.
            for path in (certificate_of(working / out.name), working / out.name):
                path.replace(out.with_name(path.name))
            working.rmdir()
        else:
            working.replace(out)
        sync(out.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise


def _write_transformers(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.folder import write_folder

    write_folder(path, model, tokenizers)


def _write_gguf(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.ggml import write_gguf_model

    write_gguf_model(path, model, tokenizers, kind=kind)  # type: ignore[arg-type]  # checked against KINDS


def _write_ctranslate2(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    from chumoku.weights.ctranslate2 import write_ctranslate2

    write_ctranslate2(path, model, tokenizers, kind=kind)


def _write_chumoku(path: Path, model: Model, tokenizers: Tokenizers, kind: str) -> None:
    write_bundle(path, model.config, tensors_of(model), tokenizers)
    seal(path)


WRITERS: dict[str, Write] = {
    "transformers": _write_transformers,
    "gguf": _write_gguf,
    "ctranslate2": _write_ctranslate2,
    "chumoku": _write_chumoku,
}
