"""chumoku evaluate A B …: several models, or files of translations, on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chumoku.cli.evaluation_data import is_translations, read_test_pairs, read_translations
from chumoku.cli.shared import model_path, say
from chumoku.errors import UsageError, pluralize
from chumoku.messages import heading

if TYPE_CHECKING:
    from chumoku.evaluation.model_pairs import ModelPair
    from chumoku.pipeline import Pipeline


def evaluate_several(
    models: list[str],
    files: list[str],
    loading: dict[str, Any],
    options: dict[str, Any],
    *,
    columns: str,
    language: str | None,
    tokenized: bool,
) -> dict[str, Any]:
    """The score of each model, and a verdict on each pair; of translations, on each pair with the first model.

    loading    arguments of `chumoku.load`        options    arguments of `Pipeline.translate`
    """
    import chumoku

    twice = next((name for name in models if models.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice. A model is compared with other models.")
    if is_translations(models[0]):
        texts: dict[str, list[str | None]] = {name: [*read_translations(Path(name))] for name in models}
        return _compare_translations(texts, read_translations(Path(files[-1])), language, tokenized)
    pipelines = [chumoku.load(model_path(name) if Path(name).is_dir() else name, **loading) for name in models]
    first = pipelines[0].config
    for name, pipeline in zip(models, pipelines, strict=True):
        pipeline.require_tokenizer()
        if pipeline.config.kind != first.kind:
            raise UsageError(
                f"{models[0]} is a model of kind '{first.kind}' and {name} of kind '{pipeline.config.kind}'. Compare "
                "models of one kind."
            )
        if pipeline.config.labels is not None or not pipeline.config.predicts_tokens:
            raise UsageError("Language models and translators can be compared; evaluate these models one by one.")
    if first.kind == "encoder-decoder":
        return _evaluate_translators(models, pipelines, files, options, columns, language, tokenized)
    return _evaluate_texts(models, pipelines, files, whole_text=first.kind == "decoder")


def _evaluate_texts(
    models: list[str], pipelines: list[Pipeline], files: list[str], *, whole_text: bool
) -> dict[str, Any]:
    from rich.console import Console

    from chumoku.data.corpus import Corpus
    from chumoku.evaluation.model_pairs import compare_losses
    from chumoku.evaluation.perplexity import document_losses, summarize_losses
    from chumoku.text.progress import ShowProgress

    losses, scores = {}, {}
    with ShowProgress(Console(stderr=True)) as progress:
        for name, pipeline in zip(models, pipelines, strict=True):
            documents = Corpus(files, documents="file").documents()
            losses[name] = list(
                document_losses(pipeline.model, documents, tokenizer=pipeline.tokenizer, progress=progress)
            )
            scores[name] = summarize_losses(losses[name], whole_text=whole_text).as_dict()
    return _report(scores, compare_losses(losses, whole_text=whole_text))


def _evaluate_translators(
    models: list[str],
    pipelines: list[Pipeline],
    files: list[str],
    options: dict[str, Any],
    columns: str,
    language: str | None,
    tokenized: bool,
) -> dict[str, Any]:
    from rich.console import Console

    from chumoku.cli.prepare import split_in_two
    from chumoku.decoding.translate import fits_context
    from chumoku.text.progress import ShowProgress

    pairs = read_test_pairs(files, split_in_two(columns, "--columns"))
    reading = {name: options[name] for name in ("into", "source_language", "split")}
    texts: dict[str, list[str | None]] = {}
    with ShowProgress(Console(stderr=True)) as progress:
        for name, pipeline in zip(models, pipelines, strict=True):
            fits = fits_context(pipeline.model, [pair.source for pair in pairs], pipeline.source_tokenizer, **reading)
            sources = [pair.source for pair, fit in zip(pairs, fits, strict=True) if fit]
            translations = iter(pipeline.translate(sources, **options, progress=progress))
            texts[name] = [next(translations) if fit else None for fit in fits]
    return _compare_translations(texts, [pair.target for pair in pairs], language, tokenized)


def _compare_translations(
    texts: dict[str, list[str | None]], references: list[str], language: str | None, tokenized: bool
) -> dict[str, Any]:
    """Scores and pairs over the sentences that every model could translate (None: too long for its context)."""
    from chumoku.evaluation.model_pairs import compare_translations
    from chumoku.evaluation.translation import detect_language, score_translations

    for name, lines in texts.items():
        if len(lines) != len(references):
            raise UsageError(
                f"{name} has {pluralize(len(lines), 'translation')}, and there are "
                f"{pluralize(len(references), 'reference')}."
            )
    used = [number for number in range(len(references)) if all(lines[number] is not None for lines in texts.values())]
    chosen = {name: [lines[number] or "" for number in used] for name, lines in texts.items()}
    right = [references[number] for number in used]
    language = language or detect_language(right)
    scores = {
        name: score_translations(lines, right, language=language, tokenized=tokenized).as_dict()
        for name, lines in chosen.items()
    }
    if len(used) < len(references):
        number = f"{len(references) - len(used):,} of {len(references):,} sentences"
        say(f"{number} were skipped, because they are longer than a model's context.", err=True)
    return _report(scores, compare_translations(chosen, right, language=language, tokenized=tokenized))


def _report(scores: dict[str, Any], pairs: list[ModelPair]) -> dict[str, Any]:
    return {"models": scores, "pairs": [pair.as_dict() | {"answer": sentence(pair)} for pair in pairs]}


def sentence(pair: ModelPair) -> str:
    """ "B is better than A by 0.012 nats per token [0.010, 0.014]." """
    from chumoku.compare.answer import format_interval

    if pair.interval is None:
        size, evidence = f"{pair.difference:.2f}", f", p = {pair.p_value:.3f}"
    else:
        size, interval = format_interval(pair.interval)
        evidence = f" {interval}"
    if pair.better:
        return f"{pair.first} is better than {pair.second} by {size} {pair.unit}{evidence}."
    return f"{pair.first} and {pair.second} cannot be told apart: {size} {pair.unit}{evidence}."


def show_several(found: dict[str, Any]) -> None:
    """Print a row of scores for each model, and a sentence for each pair."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(heading("model"), overflow="fold")
    columns = [key for key, value in next(iter(found["models"].values())).items() if isinstance(value, float | int)]
    for key in columns:
        table.add_column(heading(key.replace("_", " ")), justify="right")
    for name, score in found["models"].items():
        values = (f"{score[key]:,.4f}" if isinstance(score[key], float) else f"{score[key]:,}" for key in columns)
        table.add_row(Text(name), *values)
    Console().print(table)
    for pair in found["pairs"]:
        say(pair["answer"])
