"""`chumoku.diff`: two finished models on the same texts.

    which is better     value of B − value of A of each text; mean over texts with a paired interval
    what changed        tokens, translations or neighbors (changes.py)
    where               weights, heads and stream of each block (inside.py), and transplants of blocks (transplant.py)

Both models are run as the user runs them: at their precision and by the engine that generates text. Texts count as
independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chumoku.config import settings_to_dict
from chumoku.decoding.defaults import BEAM
from chumoku.errors import UsageError, pluralize
from chumoku.evaluation.translation import compare_bleu, score_translations
from chumoku.model_diff.changes import (
    CHRF,
    Change,
    changed_neighbors,
    changed_tokens,
    changed_translations,
    score_sentences,
)
from chumoku.model_diff.inside import compare_inside
from chumoku.model_diff.results import BleuDiff, Measure, ModelDiff
from chumoku.model_diff.tasks import Metric, Pair, Scores, Task, TranslationTask, VectorTask, make_task
from chumoku.model_diff.transplant import transplant_parts
from chumoku.models.config import ModelConfig
from chumoku.nn.lora import Adapted
from chumoku.pipeline import Pipeline, load
from chumoku.text import Tokenizer
from chumoku.text.progress import Progress, silent

MOST_CHANGES = 12
TRANSPLANT_TOKENS = 500
LEAST_TEXTS = 8  # used for recording and transplants, if there are as many
# Settings that do not change the shape or the meaning of a block.
IGNORED = {"context", "dropout", "initialization", "max_seq_length", "normalize", "pooling", "prompts", "tie_output"}


def diff(
    a: Pipeline | Path | str,
    b: Pipeline | Path | str,
    texts: Iterable[str | Pair],
    *,
    names: tuple[str, str] = ("A", "B"),
    transplant_tokens: int = TRANSPLANT_TOKENS,
    beam: int = BEAM,
    into: str | None = None,
    source_language: str | None = None,
    progress: Progress = silent,
) -> ModelDiff:
    """Compare two models of one kind with the same tokenizer on the same texts.

    a, b                 what `load` returns, or a path
    texts                documents; for translators pairs (source, reference), for sentence encoders (query, document)
    names                of the two models, for the report
    transplant_tokens    use texts of about this many tokens for recordings and transplants; 0: no transplants
    beam, into, source_language    of translations, as in `Pipeline.translate`
    progress             called as progress(step, done, total, unit)
    """
    first, second = (each if isinstance(each, Pipeline) else load(each) for each in (a, b))
    given: list[str | Pair] = list(texts)
    check_comparable(first, second, given)
    task = make_task(first, given, into=into, source_language=source_language)
    if len(task) < 2:
        raise UsageError(
            f"{pluralize(len(task), 'text')} of {len(given):,} can be scored, and an interval needs two or more. Give "
            "more texts, or shorter ones."
        )
    options = {"beam": beam, "into": into, "source_language": source_language}
    outputs = compare_outputs(first, second, task, names, options, progress)
    if other := other_settings(first.config, second.config):
        return replace(outputs, other_shape=other)
    numbers = choose_texts(task, transplant_tokens or TRANSPLANT_TOKENS)
    inside = compare_inside(first.model, second.model, task, numbers, progress)
    transplants = []
    if transplant_tokens:
        transplants = transplant_parts(first.model, second.model, task, numbers, progress)
    return replace(outputs, inside=inside, transplants=transplants, transplant_texts=len(numbers))


def compare_outputs(
    a: Pipeline, b: Pipeline, task: Task, names: tuple[str, str], options: dict[str, Any], progress: Progress
) -> ModelDiff:
    """Which model is better, and what changed; `options` are those of translations."""
    sides = ((a, _add_name(progress, "A")), (b, _add_name(progress, "B")))
    one, two = (task.score(pipeline.model, range(len(task)), show) for pipeline, show in sides)
    measures = [compare_scores(task.metric, one, two)]
    changed: tuple[Sequence[Change], int]
    bleu = None
    if isinstance(task, TranslationTask):
        sources = [source for source, _ in task.pairs]
        translations = [pipeline.translate(sources, **options, progress=show) for pipeline, show in sides]
        changed = changed_translations(task, *translations, most=MOST_CHANGES)
        measures.insert(0, compare_scores(CHRF, *(score_sentences(task, side) for side in translations)))
        bleu = compare_translations(task, *translations)
    elif isinstance(task, VectorTask):
        changed = changed_neighbors(task, a.model, b.model, most=MOST_CHANGES)
    else:
        changed = changed_tokens(task, one, two, most=MOST_CHANGES)
    return ModelDiff(
        names=names,
        models=(describe(a), describe(b)),
        measures=measures,
        texts=len(task),
        tokens=int(sum(one.weights)),
        skipped=task.skipped,
        changed=list(changed[0]),
        changed_count=changed[1],
        bleu=bleu,
    )


def check_comparable(a: Pipeline, b: Pipeline, texts: Sequence[str | Pair]) -> None:
    """Refuse models that cannot be compared on these texts."""
    for name, pipeline in (("A", a), ("B", b)):
        pipeline.require_tokenizer()
        if any(isinstance(module, Adapted) for module in pipeline.model.modules()):
            raise UsageError(f"Model {name} has adapters that are not merged. Merge them: lora.merged_copy(model).")
    for setting in ("kind", "head_kind"):
        one, other = getattr(a.config, setting), getattr(b.config, setting)
        if one != other:
            what = "kind" if setting == "kind" else "head"
            raise UsageError(f"A has the {what} '{one}' and B the {what} '{other}'. Compare two models of one {what}.")
    if a.config.kind != "decoder" and a.config.context != b.config.context:
        raise UsageError(
            f"A reads up to {a.config.context:,} tokens and B up to {b.config.context:,}, so they would read different "
            "texts. Open both with one context: chumoku.load(path, context=…), or --context."
        )
    sides = [(text, text) if isinstance(text, str) else text for text in texts]
    for side, (one, other) in enumerate(((a.source_tokenizer, b.source_tokenizer), (a.tokenizer, b.tokenizer))):
        number = first_difference(one, other, [pair[side] for pair in sides])
        if number is not None:
            raise UsageError(
                f"The models have different tokenizers: text {number + 1} has other tokens in A than in B, so their "
                "losses are not comparable. `chumoku evaluate A B` compares bits per byte."
            )


def first_difference(a: Tokenizer, b: Tokenizer, texts: Sequence[str]) -> int | None:
    """The index of the first text that the two tokenizers encode differently; None if they agree on all texts."""
    if a is b or a.fingerprint == b.fingerprint:
        return None
    if (a.roles, a.frame) != (b.roles, b.frame):
        return 0
    return next((number for number, text in enumerate(texts) if a.encode(text) != b.encode(text)), None)


def other_settings(a: ModelConfig, b: ModelConfig) -> list[str]:
    """The settings in which the shapes of two models differ: "layers: 4, 6"."""
    one, other = settings_to_dict(a), settings_to_dict(b)
    return [f"{key}: {one[key]}, {other[key]}" for key in one if key not in IGNORED and one[key] != other[key]]


def choose_texts(task: Task, tokens: int) -> list[int]:
    """The numbers of the first texts with this many tokens together, but LEAST_TEXTS or more."""
    chosen: list[int] = []
    for number in range(len(task)):
        if len(chosen) >= LEAST_TEXTS and sum(map(task.tokens, chosen)) >= tokens:
            break
        chosen.append(number)
    return chosen


def describe(pipeline: Pipeline) -> str:
    """A model's kind, number of parameters and precision."""
    return repr(pipeline).removeprefix("Pipeline(").removesuffix(")")


def compare_translations(task: TranslationTask, a: Sequence[str], b: Sequence[str]) -> BleuDiff:
    references = [reference for _, reference in task.pairs]
    scores = [score_translations(side, references, language=task.language) for side in (a, b)]
    p_value = compare_bleu([a, b], references, language=task.language)[0].p_value
    return BleuDiff(scores[0].bleu, scores[1].bleu, p_value, scores[0].bleu_signature)


def compare_scores(metric: Metric, a: Scores, b: Scores) -> Measure:
    by_text = [two - one for one, two in zip(a.values, b.values, strict=True)]
    return Measure(metric, (a.mean, b.mean), b.interval(a), by_text)


def _add_name(progress: Progress, name: str) -> Progress:
    """The same progress, with the name of a model before each step."""

    def show(step: str, done: int | None = None, total: int | None = None, unit: str = "") -> object:
        return progress(f"{name}: {step[:1].upper()}{step[1:]}", done, total, unit)

    return show
