"""chumoku evaluate: scores of a model on a text, translations, labels or sentence vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chumoku.cli.evaluation_data import (
    has_table,
    is_translations,
    read_test_pairs,
    read_translations,
    split_models,
)
from chumoku.cli.shared import KNOWN, Adapter, Device, Json, Precision, json_line, model_path, pad, say, say_aside
from chumoku.decoding.defaults import BEAM
from chumoku.errors import UsageError
from chumoku.messages import choose, heading

if TYPE_CHECKING:
    from chumoku.pipeline import Pipeline


def evaluate(
    model: Annotated[str, typer.Argument(help=f"A model: {KNOWN}; or a file of translations, one per line.")],
    data: Annotated[
        list[str],
        typer.Argument(
            help="A text; for translations and vectors a table, or two files; for labels a table of texts. Further "
            "models may come first: they are compared.",
        ),
    ],
    beam: Annotated[int, typer.Option(min=1, max=64, help="Translation models: beam size.")] = BEAM,
    language: Annotated[str | None, typer.Option(help="Of the references; default: detected.")] = None,
    tokenized: Annotated[bool, typer.Option("--tokenized", help="Texts are already split by spaces.")] = False,
    into: Annotated[str | None, typer.Option(help="Multilingual models: target language.")] = None,
    source_language: Annotated[str | None, typer.Option("--from", help="Multilingual models: source language.")] = None,
    split: Annotated[bool, typer.Option(help="Translate the sentences of a text one by one.")] = True,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Tables: source and target, query and document, or text and label, by number (from 0) or name.",
            show_default="0,1; of labels text,label",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Encoders: use the first elements of each vector only.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the translations to this file, one per line (empty if skipped).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Labels: draw the confusion matrix to this file (.png).")] = None,
    adapter: Adapter = None,
    precision: Precision = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Score a model: on a text, translations, labels or sentence vectors.

    A language model gets perplexity and bits per byte, translations BLEU and chrF, with signatures.

    Of an encoder and a table, scores the vectors: recall@k and nDCG of queries and their documents (columns 0,1), or
    the rank correlation with human similarity scores (columns 0,1,2). A model with classes or tags is scored on texts
    with labels: accuracy, macro F1, and the F1 of each label.

    With --precision, the score with the weights as stored is shown too, and the difference.

    Several language models are compared by a paired interval of their loss, several translators (or files of
    translations) by sacrebleu's paired bootstrap of BLEU, with Holm's correction.
    """
    from chumoku.data.text_files import find_files

    options: dict[str, Any] = {"beam": beam, "into": into, "split": split, "source_language": source_language}
    models, files = split_models(model, data)
    translations = is_translations(model)
    if len(models) == 1 and not translations:
        model = model_path(model, adapter)
    find_files(files)  # reports wrong paths before torch is imported
    scoring: dict[str, Any] = {"language": language, "tokenized": tokenized}
    if len(models) > 1:
        if adapter is not None or save is not None or plot is not None or width is not None:
            raise UsageError("--adapter, --save, --plot and --width need one model, and there are several here.")
        loading = {"device": device, "precision": precision}
        _compare_models(models, files, loading, options, columns=columns or "0,1", **scoring, as_json=as_json)
        return

    def score(precision: str | None, save: Path | None) -> dict[str, Any]:
        import chumoku

        pipeline = chumoku.load(model, device=device, precision=precision, adapter=adapter)
        return _score_model(pipeline, data, options, columns=columns, width=width, save=save, plot=plot, **scoring)

    if translations:
        found = _score(read_translations(Path(model)), read_translations(Path(data[-1])), language, tokenized)
    else:
        found = score(precision, save)
        if precision is not None:
            stored = score(None, None)
            found |= {"precision": precision, "stored": stored, "difference": difference(found, stored)}
    if found.get("skipped"):
        number = f"{found['skipped']:,} of {found['sentences'] + found['skipped']:,} sentences"
        say(f"{number} were skipped, because they are longer than the model's context.", err=True)
    if as_json:
        print(json_line(**found))
    else:
        show(found)


def _compare_models(
    models: list[str], files: list[str], loading: dict[str, Any], options: dict[str, Any], *, as_json: bool, **how: Any
) -> None:
    from chumoku.cli.evaluate_several import evaluate_several, show_several

    compared = evaluate_several(models, files, loading, options, **how)
    if as_json:
        print(json_line(**compared))
    else:
        show_several(compared)


def _score_model(
    pipeline: Pipeline,
    data: list[str],
    options: dict[str, Any],
    *,
    language: str | None,
    tokenized: bool,
    columns: str | None,
    width: int | None,
    save: Path | None,
    plot: Path | None,
) -> dict[str, Any]:
    """The scores of a model, by its kind: of translations, labels, vectors or text."""
    pipeline.require_tokenizer()
    if pipeline.config.kind == "encoder-decoder":
        return _translations(pipeline, data, options, language, tokenized, columns or "0,1", save)
    if pipeline.config.labels is not None:
        return _labels(pipeline, data, columns, plot)
    if pipeline.config.kind == "encoder" and (pipeline.config.head_kind == "vector" or has_table(data)):
        return _vectors(pipeline, data, columns or "0,1", width)
    return _text(pipeline, data)


def difference(found: dict[str, Any], stored: dict[str, Any]) -> dict[str, float]:
    """The change by another precision: above 0 is worse for a loss, better for BLEU."""
    return {key: value - stored[key] for key, value in found.items() if isinstance(value, float)}


def show(found: dict[str, Any]) -> None:
    """Print a line for each number; with another precision also the stored one's number and the difference."""
    stored, changed = found.pop("stored", None), found.pop("difference", {})
    if stored is not None:
        heads = " ".join(pad(heading(text), 12, left=True) for text in ("as stored", "difference"))
        print(f"{'':<16} {found.pop('precision'):>12} {heads}")
    classes = found.pop("classes", {})
    for key, value in found.items():
        name = pad(heading(key.replace("_", " ")), 16)
        if key in changed:
            print(f"{name} {value:>12,.4f} {stored[key]:>12,.4f} {changed[key]:>+12,.4f}")
        elif isinstance(value, tuple):
            digits = 4 if key == "accuracy_interval" else 1  # as many as its score
            low, high = (f"{bound:,.{digits}f}" for bound in value)
            print(f"{name} {choose(f'{low} to {high} (95 %)', f'{low} ～ {high}（95 %）')}")
        elif value is not None:
            print(f"{name} {f'{value:,.4f}' if isinstance(value, float) else value}")

    if classes:
        widest = min(40, max(map(len, classes)))
        heads = " ".join(pad(heading(text), 9, left=True) for text in ("precision", "recall", "F1", "count"))
        print(f"{pad(heading('label'), widest)} {heads}")
    for label, score in classes.items():
        numbers = " ".join(f"{score[key]:>9.4f}" for key in ("precision", "recall", "f1"))
        print(f"{label:<{widest}} {numbers} {score['count']:>9,}")


def _labels(pipeline: Pipeline, files: list[str], columns: str | None, plot: Path | None) -> dict[str, Any]:
    from rich.console import Console

    from chumoku.cli.prepare import split_in_two
    from chumoku.data.labeled import read_examples
    from chumoku.decoding import classify
    from chumoku.evaluation.classification import score_labels
    from chumoku.text.progress import ShowProgress

    tagged = pipeline.config.head == "tags"
    chosen = None if columns is None else split_in_two(columns, "--columns")
    with ShowProgress(Console(stderr=True)) as progress:
        examples, report = read_examples(files, tagged=tagged, columns=chosen, duplicates=True, progress=progress)
        options: dict[str, Any] = {"tokenizer": pipeline.tokenizer, "progress": progress}
        if tagged:
            tags = classify.tag(pipeline.model, [example.words for example in examples], **options)
            predicted = [[word.tag for word in words] for words in tags]
        else:
            texts = [example.text for example in examples]
            found = classify.classify(pipeline.model, texts, note=say_aside, **options)
            predicted = [[next(iter(labels))] for labels in found]
    for line in report.lines() if report.dropped else ():
        say(line, err=True)
    right = [example.labels for example in examples]
    score = score_labels(predicted, right, pipeline.config.labels or (), tagged=tagged)
    if plot is not None:
        from chumoku.probe.confusion_figure import draw_confusion
        from chumoku.probe.plot_style import label

        accuracy, count = f"{score.accuracy:.1%}", f"{score.count:,}"
        title = label("accuracy {0} of {1} words" if tagged else "accuracy {0} of {1} texts", accuracy, count)
        say(f"Drawn: {draw_confusion(score.confusion, score.labels, plot, title=title)}", err=True)
    return score.as_dict()


def _text(pipeline: Pipeline, files: list[str]) -> dict[str, Any]:
    from rich.console import Console

    from chumoku.data.corpus import Corpus
    from chumoku.evaluation.perplexity import score_text
    from chumoku.text.progress import ShowProgress

    corpus = Corpus(files, documents="file")
    with ShowProgress(Console(stderr=True)) as progress:
        score = score_text(pipeline.model, corpus.documents(), tokenizer=pipeline.tokenizer, progress=progress)
    return score.as_dict()


def _vectors(pipeline: Pipeline, files: list[str], columns: str, width: int | None) -> dict[str, Any]:
    from chumoku.evaluation.retrieval import score_retrieval, score_similarity
    from chumoku.search import choose_prompt

    def embed(texts: list[str], prompt: Any) -> Any:
        chosen = choose_prompt(pipeline, prompt)
        return pipeline.embed(texts, prompt=chosen, width=width, note=say_aside)

    places = tuple(int(part) if part.strip().isdecimal() else part.strip() for part in columns.split(","))
    if len(places) == 2:
        return score_retrieval([(pair.source, pair.target) for pair in read_test_pairs(files, places)], embed).as_dict()
    if len(places) != 3:
        raise UsageError(f"--columns takes two columns, or three with a score; got '{columns}'.")
    pairs, scores = _scored_pairs(files, places)
    return score_similarity(pairs, scores, embed).as_dict()


def _scored_pairs(files: list[str], columns: tuple[str | int, ...]) -> tuple[list[tuple[str, str]], list[float]]:
    """The pairs of texts of a table, and the score of each in the third column."""
    from chumoku.data.pairs import read_rows
    from chumoku.data.report import Report
    from chumoku.data.text_files import find_files

    pairs, scores = [], []
    for file, line, texts, problem in read_rows(find_files(files), columns, Report()):
        try:
            score = float(texts[2]) if problem is None else float("nan")
        except ValueError:
            score = float("nan")
        if not score == score:
            raise UsageError(f"{file}, line {line:,}: '{texts[2][:40]}' is not a score. Check --columns.")
        pairs.append((texts[0], texts[1]))
        scores.append(score)
    return pairs, scores


def _translations(
    pipeline: Pipeline,
    files: list[str],
    options: dict[str, Any],
    language: str | None,
    tokenized: bool,
    columns: str,
    save: Path | None,
) -> dict[str, Any]:
    from rich.console import Console

    from chumoku.cli.prepare import split_in_two
    from chumoku.decoding.translate import fits_context
    from chumoku.evaluation.translation import POOR, seems_swapped
    from chumoku.text.progress import ShowProgress

    every = read_test_pairs(files, split_in_two(columns, "--columns"))
    reading = {name: options[name] for name in ("into", "source_language", "split")}
    fits = fits_context(pipeline.model, [pair.source for pair in every], pipeline.source_tokenizer, **reading)
    pairs = [pair for pair, fit in zip(every, fits, strict=True) if fit]
    if every and not pairs:
        raise UsageError(
            f"All sentences ({len(every):,}) are longer than the model's context, {pipeline.config.context:,} tokens. "
            "Split them, or use a model with a larger context."
        )
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with ShowProgress(Console(stderr=True)) as progress:
        translations = pipeline.translate(sources, **options, progress=progress)
    if save is not None:
        remaining = iter(translations)
        lines = (next(remaining).replace("\n", " ") if fit else "" for fit in fits)
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = _score(translations, references, language, tokenized)
    if found["bleu"] < POOR and seems_swapped(translations, sources=sources, references=references):
        say(f"Source and target seem to be swapped: {_swap_advice(files, columns)}", err=True)
    return {**found, "skipped": len(every) - len(pairs)}


def _swap_advice(files: list[str], columns: str) -> str:
    """What to try when sources and references are swapped."""
    problem = "the translations are in the language of the sources, not in that of the references."
    if len(files) == 2:
        return f"{problem} Try the files in the other order: {files[1]} {files[0]}."
    first, second = columns.split(",")
    return f"{problem} Try --columns {second.strip()},{first.strip()}."


def _score(translations: list[str], references: list[str], language: str | None, tokenized: bool) -> dict[str, Any]:
    from chumoku.evaluation.translation import detect_language, score_translations

    language = language or detect_language(references)
    return score_translations(translations, references, language=language, tokenized=tokenized).as_dict()
