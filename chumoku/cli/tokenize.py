"""chumoku tokenize: show the tokens of a text, compare tokenizer kinds, or train a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.shared import Json, say
from chumoku.messages import heading, translate

if TYPE_CHECKING:
    from chumoku.text import Tokenizer

MOST_COMPARED = 1 << 20


def tokenize(
    text: Annotated[str | None, typer.Argument(help="The text to tokenize.")] = None,
    tokenizers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="A tokenizer: tokenizer.json, a folder, a .model file, a shipped model (ja-en). May be repeated.",
        ),
    ] = None,
    compare: Annotated[Path | None, typer.Option(help="Train every kind on this file and compare them.")] = None,
    train: Annotated[str | None, typer.Option(help="Train this kind on the --from files.")] = None,
    files: Annotated[list[str] | None, typer.Option("--from", help="Files to train on. May be repeated.")] = None,
    save: Annotated[Path, typer.Option(help="Output file of the trained tokenizer.")] = Path("tokenizer.json"),
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size of a trained tokenizer.")] = 8000,
    as_json: Json = False,
) -> None:
    """Tokenize a text with one or more tokenizers; train one (--train bpe --from FILE); or compare all kinds."""
    from chumoku.errors import UsageError

    if sum(value is not None for value in (text, compare, train)) != 1:
        raise UsageError("Give a text with --with, or --compare FILE, or --train KIND with --from FILE.")
    if compare is not None:
        rows = compare_kinds(compare, vocabulary)
        _print(rows, as_json, title=f"Kinds trained on {compare}")
    elif train is not None:
        _train(train, files or [], vocabulary, save)
    elif not tokenizers:
        raise UsageError("Name a tokenizer with --with, for example --with tokenizer.json.")
    else:
        _tokenize(text or "", tokenizers, as_json)


def _tokenize(text: str, paths: list[str], as_json: bool) -> None:
    from chumoku.pretrained import find_shipped
    from chumoku.text import load

    rows: list[dict[str, Any]] = []
    for path in paths:
        tokenizer = load(find_shipped(path) or path)
        ids = tokenizer.encode(text)
        rows.append({"tokenizer": path, "kind": tokenizer.kind, "count": len(ids)})
        rows[-1] |= {"pieces": tokenizer.pieces(text), "ids": ids, "text": tokenizer.decode(ids)}
    if as_json:
        _print(rows, as_json, title="")
        return
    from rich.console import Console
    from rich.table import Table

    from chumoku.probe.token_labels import explain_space

    table = Table(title=text, title_justify="left", show_lines=True)
    for column in ("tokenizer", "kind", "tokens", "pieces", "ids"):
        table.add_column(heading(column), overflow="fold", justify="right" if column == "tokens" else "left")
    for row in rows:
        pieces, numbers = " | ".join(row["pieces"]), " ".join(map(str, row["ids"]))
        table.add_row(row["tokenizer"], row["kind"], str(row["count"]), pieces, numbers)
    Console(markup=False).print(table)
    if explanation := explain_space(piece for row in rows for piece in row["pieces"]):
        say(explanation)


def _train(kind: str, files: list[str], vocabulary: int, save: Path) -> None:
    from rich.console import Console

    from chumoku.data.corpus import Corpus
    from chumoku.errors import UsageError
    from chumoku.text import train
    from chumoku.text.progress import ShowProgress

    if not files:
        raise UsageError("Name the files to train on with --from, for example --from text.txt.")
    corpus = Corpus(files)
    with ShowProgress(Console(stderr=True)) as progress:
        tokenizer = train(corpus.documents(), kind=kind, vocabulary=vocabulary, progress=progress)  # type: ignore[arg-type]
    tokenizer.save(save)
    say(f"A {tokenizer.kind} tokenizer with {tokenizer.size:,} tokens was saved to {save}.")


def compare_kinds(file: Path, vocabulary: int) -> list[dict[str, Any]]:
    """Measurements of every kind, trained on nine tenths of a file and tested on the rest."""
    from rich.console import Console

    from chumoku.data.corpus import Corpus
    from chumoku.errors import MissingExtraError
    from chumoku.text import KINDS, train
    from chumoku.text.progress import ShowProgress
    from chumoku.text.sample_texts import subsample

    texts = subsample(Corpus([str(file)], documents="line").documents(), MOST_COMPARED)
    test, training = texts[::10], [text for number, text in enumerate(texts) if number % 10]
    rows: list[dict[str, Any]] = []
    with ShowProgress(Console(stderr=True)) as progress:
        for kind in KINDS:
            try:
                tokenizer = train(training or texts, kind=kind, vocabulary=vocabulary, progress=progress)
                rows.append({"kind": kind, **measure(tokenizer, test)})
            except MissingExtraError as error:
                rows.append({"kind": kind, "note": str(error)})
    return rows


def measure(tokenizer: Tokenizer, texts: list[str]) -> dict[str, Any]:
    import time

    characters = sum(map(len, texts))
    start = time.perf_counter()
    batch = tokenizer.encode_batch(texts)
    seconds = time.perf_counter() - start
    tokens = sum(map(len, batch))
    unknown = sum(token == tokenizer.roles.unknown for ids in batch for token in ids)
    return {
        "vocabulary": tokenizer.size,
        "tokens_per_character": round(tokens / max(1, characters), 4),
        "characters_per_second": round(characters / max(seconds, 1e-9)),
        "unknown": round(unknown / max(1, tokens), 5),
    }


def _print(rows: list[dict[str, Any]], as_json: bool, *, title: str) -> None:
    if as_json:
        import json

        print(json.dumps(rows, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=translate(title), title_justify="left")
    columns = ("kind", "vocabulary", "tokens/character", "characters/s", "unknown", "note")
    for column in columns if any("note" in row for row in rows) else columns[:-1]:
        table.add_column(heading(column), justify="left" if column in ("kind", "note") else "right")
    for row in rows:
        if "note" in row:
            table.add_row(row["kind"], "", "", "", "", translate(row["note"]))
        else:
            numbers = (f"{row['vocabulary']:,}", f"{row['tokens_per_character']:.3f}")
            table.add_row(row["kind"], *numbers, f"{row['characters_per_second']:,}", f"{row['unknown']:.2%}")
    Console(markup=False).print(table)
