"""What a run is judged by: its validation loss, or scores of its last weights on a table of test pairs.

loss     validation loss over all validation data, in nats
bleu     of translations (beam search), by sacrebleu          chrf    the same with chrF
recall   share of queries whose document is the nearest (recall@1), in percent
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chumoku.compare.results import Metric
from chumoku.errors import UsageError
from chumoku.training.settings import as_list

if TYPE_CHECKING:
    from chumoku.data.pairs import Pair
    from chumoku.pipeline import Pipeline
    from chumoku.training.recipe import Recipe

METRICS = {
    "loss": Metric("validation loss", "nats", lower_is_better=True),
    "bleu": Metric("BLEU", "BLEU", lower_is_better=False),
    "chrf": Metric("chrF", "chrF", lower_is_better=False),
    "recall": Metric("recall@1", "%", lower_is_better=False),
}
DATA_KINDS = {"bleu": ("pairs", "embedded"), "chrf": ("pairs", "embedded"), "recall": ("sentences",)}


def choose_test_files(metric: str, recipe: Recipe, files: Sequence[str]) -> list[str]:
    """The given test files, or else data.validation_files; UsageError if the metric needs files and has no others."""
    if metric not in METRICS:
        raise UsageError(f"--metric {metric} is unknown; choose {', '.join(METRICS)}.")
    if metric == "loss":
        if files:
            raise UsageError("--on is for --metric bleu, chrf and recall; the loss is that of the validation data.")
        return []
    if recipe.data.kind not in DATA_KINDS[metric]:
        kinds = " or ".join(DATA_KINDS[metric])
        raise UsageError(f"--metric {metric} is for data.kind = {kinds}, not for '{recipe.data.kind}'.")
    chosen = list(files) or as_list(recipe.data.validation_files)
    if not chosen:
        raise UsageError(f"--metric {metric} needs test pairs: give a table, or two files, with --on.")
    for name in chosen:
        if not Path(name).is_file():
            raise UsageError(f"{name}, given with --on, is not a file.")
    return chosen


def score_model(metric: str, folder: Path, recipe: Recipe, files: Sequence[str], *, device: str) -> float:
    """The score of the model in `folder` on test pairs."""
    from chumoku.pipeline import load

    pipeline = load(folder, device=device)
    columns = tuple(recipe.data.columns or (0, 1))[:2]
    pairs = _read_pairs(files, columns)
    if metric == "recall":
        return 100 * _recall(pipeline, pairs)
    into = recipe.data.languages[1] if recipe.data.both_directions and recipe.data.languages else None
    return _translation_score(metric, pipeline, pairs, into=into)


def _read_pairs(files: Sequence[str], columns: Any) -> list[Pair]:
    """Every pair, including duplicates and odd lengths: a test set is not cleaned."""
    from chumoku.data.pairs import Cleaning, read_pairs

    return read_pairs(list(files), columns=columns, cleaning=Cleaning(1 << 20, float("inf"), duplicates=True))[0]


def _translation_score(metric: str, pipeline: Pipeline, pairs: Sequence[Pair], *, into: str | None) -> float:
    from chumoku.decoding.translate import fits_context
    from chumoku.evaluation.translation import score_translations
    from chumoku.text.japanese import share_of_japanese

    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    language = "ja" if share_of_japanese("".join(references[:1000])) > 0.1 else "en"
    fits = fits_context(pipeline.model, sources, pipeline.source_tokenizer, into=into)
    found = iter(pipeline.translate([source for source, fit in zip(sources, fits, strict=True) if fit], into=into))
    translations = [next(found) if fit else "" for fit in fits]  # too long for the model: an empty translation
    return float(getattr(score_translations(translations, references, language=language), metric))


def _recall(pipeline: Pipeline, pairs: Sequence[Pair]) -> float:
    from chumoku.evaluation.retrieval import score_retrieval

    def embed(texts: list[str], prompt: Any) -> Any:
        return pipeline.embed(texts, prompt=prompt if getattr(pipeline.config.prompts, prompt) else None)

    return score_retrieval([(pair.source, pair.target) for pair in pairs], embed).recall_at_1
