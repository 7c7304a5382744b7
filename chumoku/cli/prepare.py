"""chumoku prepare: raw text or sentence pairs → a tokenizer, token files and a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.messages import translate

if TYPE_CHECKING:
    from chumoku.text.progress import Progress


def prepare(
    files: Annotated[list[str], typer.Argument(help="Files, folders or patterns; .gz and .zip too.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    pairs: Annotated[bool, typer.Option("--pairs", help="Sentence pairs: TSV, two files, JSONL or Parquet.")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Use this tokenizer instead of training one.")] = None,
    kind: Annotated[str, typer.Option(help="Kind of tokenizer to train.")] = "bpe",
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size.")] = 8000,
    documents: Annotated[
        str, typer.Option(help="Text: a document ends at a blank (line), file, line or record.")
    ] = "blank",
    field: Annotated[str, typer.Option(help="Text: the field of JSONL and Parquet records.")] = "text",
    columns: Annotated[str, typer.Option(help="Pairs: source and target column, by index or name.")] = "0,1",
    languages: Annotated[
        str | None, typer.Option(help="Pairs: for example ja,en; lines in another script are dropped.")
    ] = None,
    validation: Annotated[float, typer.Option(help="Pairs: share used for validation.")] = 0.01,
    batch_tokens: Annotated[int, typer.Option(help="Pairs: tokens per batch, to compute the padding share.")] = 4096,
    report: Annotated[Path | None, typer.Option(help="Write the report here as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
) -> None:
    """Read, clean and tokenize text (or, with --pairs, sentence pairs). A second run only redoes what has changed."""
    import json

    from rich.console import Console

    from chumoku.text.progress import ShowProgress

    training = {"path": tokenizer, "kind": kind, "vocabulary": vocabulary}
    with ShowProgress(Console(stderr=True)) as progress:
        if pairs:
            reading = {"columns": split_in_two(columns, "--columns"), "languages": languages, "validation": validation}
            found, lines = _pairs(files, out, **training, **reading, batch_tokens=batch_tokens, progress=progress)  # type: ignore[arg-type]
        else:
            found, lines = _text(files, out, **training, documents=documents, field=field, progress=progress)  # type: ignore[arg-type]
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")
        lines.append(f"The report is in {report}.")
    print(json.dumps(found, ensure_ascii=False) if as_json else translate("\n".join(lines)))


def _text(
    files: list[str],
    out: Path,
    *,
    path: Path | None,
    kind: str,
    vocabulary: int,
    documents: str,
    field: str,
    progress: Progress,
) -> tuple[dict[str, Any], list[str]]:
    from chumoku.data.corpus import Corpus
    from chumoku.data.shards import prepare_text
    from chumoku.data.tokenizer_cache import keep_tokenizer, prepare_tokenizer

    corpus = Corpus(files, documents=documents, field=field)  # type: ignore[arg-type]
    if path is not None:
        tokenizer = keep_tokenizer(path, out / "tokenizer")
    else:
        tokenizer = prepare_tokenizer(
            corpus.documents(),
            corpus.files,
            out / "tokenizer",
            read_as={"documents": documents, "field": field},
            kind=kind,
            vocabulary=vocabulary,
            progress=progress,
        )
    shards = prepare_text(corpus, tokenizer, out / "shards", progress=progress)
    found: dict[str, Any] = shards.manifest["report"]
    lines = _report_lines(found)
    lines.append(
        f"{shards.documents:,} documents, {shards.tokens:,} tokens (vocabulary {tokenizer.size:,}) in {out / 'shards'}."
    )
    return {**found, "documents": shards.documents, "tokens": shards.tokens, "vocabulary": tokenizer.size}, lines


def _pairs(
    files: list[str],
    out: Path,
    *,
    path: Path | None,
    kind: str,
    vocabulary: int,
    columns: tuple[str | int, str | int],
    languages: str | None,
    validation: float,
    batch_tokens: int,
    progress: Progress,
) -> tuple[dict[str, Any], list[str]]:
    from dataclasses import asdict

    from chumoku.data.batches import PairBatches
    from chumoku.data.manifest import read_manifest
    from chumoku.data.pairs import Cleaning, read_pairs
    from chumoku.data.prepared import open_pairs, prepare_pairs
    from chumoku.data.split import CachedSplit, check_share
    from chumoku.data.text_files import find_files
    from chumoku.data.tokenizer_cache import keep_tokenizer, prepare_tokenizer

    check_share(validation)
    cleaning = Cleaning(languages=split_in_two(languages, "--languages") if languages else (None, None))  # type: ignore[arg-type]

    reading: dict[str, Any] = {"columns": columns, "cleaning": cleaning, "progress": progress}
    split = CachedSplit()

    def training_texts() -> Iterator[str]:
        pairs, _ = read_pairs(files, **reading)
        for index in split(pairs, validation=validation, progress=progress)[0]:
            yield from pairs[index]

    if path is not None:
        tokenizer = keep_tokenizer(path, out / "tokenizer")
    else:
        read_as = {"columns": columns, "cleaning": asdict(cleaning), "validation": validation}
        settings: dict[str, Any] = {"kind": kind, "vocabulary": vocabulary, "progress": progress}
        tokenizer = prepare_tokenizer(
            training_texts(), find_files(files), out / "tokenizer", read_as=read_as, **settings
        )
    folder = prepare_pairs(files, tokenizer, out / "pairs", validation=validation, split=split, **reading)
    found: dict[str, Any] = read_manifest(folder)["report"]
    lines = _report_lines(found)
    batches = PairBatches(open_pairs(folder), tokens=batch_tokens, source_roles=tokenizer.roles)
    lines.append(
        f"{found['train']:,} pairs for training and {found['validation']:,} for validation "
        f"(vocabulary {tokenizer.size:,}) are in {folder}; {len(batches):,} batches of up to "
        f"{batch_tokens:,} tokens, {batches.padding:.1%} padding."
    )
    if not found["validation"]:
        lines.append("No pair was held out: there are too few pairs, or all are similar. Raise --validation.")
    return {**found, "batches": len(batches), "padding": batches.padding, "vocabulary": tokenizer.size}, lines


def _report_lines(found: dict[str, Any]) -> list[str]:
    from collections import Counter

    from chumoku.data.report import Example, Report

    examples = {reason: [Example(**one) for one in shown] for reason, shown in found["examples"].items()}
    dropped = Counter(found["dropped"])
    return Report(found["read"], found["kept"], dropped, examples, found["files"]).lines()


def split_in_two(text: str, option: str) -> tuple[str | int, str | int]:
    from chumoku.errors import UsageError

    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise UsageError(f"{option} takes two comma-separated values, for example 0,1 or ja,en; got '{text}'.")
    first, second = (int(part) if part.isdecimal() else part for part in parts)
    return first, second
