"""chumoku demo: train a small translator and show its attention."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from chumoku.models.model import EncoderDecoderModel
    from chumoku.pipeline import Pipeline

SOURCE = "こたつでみかんを食べる"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and its figures.")] = Path("runs/demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; default: as in the recipe.")] = None,
) -> None:
    """Train a small Japanese-English translator (two minutes on two cores), score it, and show its attention."""
    import chumoku
    from chumoku.data.grammar import split
    from chumoku.evaluation.translation import score_translations
    from chumoku.probe.plot_style import draw_attention_maps
    from chumoku.training.recipe import load_recipe
    from chumoku.training.run import train

    recipe = load_recipe("demo", [f"train.out={out}", *_step_changes(steps), *_tokenizer_changes()])
    delete_old_run(out)
    print(f"A grammar generates {recipe.data.count:,} Japanese-English pairs; a Transformer learns to translate them.")
    trained = train(recipe)
    if not trained.finished:
        raise typer.Exit(trained.exit_code)

    pipeline = chumoku.load(trained.last)
    test = split(recipe.data.count).test
    print(f"\nTranslating {len(test):,} held-out sentences: known words in new combinations.")
    translations = pipeline.translate([pair.source for pair in test], beam=1)
    scores = score_translations(translations, [pair.target for pair in test], language="en")
    right = sum(one == pair.target for one, pair in zip(translations, test, strict=True)) / len(test)
    print(f"BLEU {scores.bleu:.1f}, chrF {scores.chrf:.1f}, {right:.0%} exact matches.   ({scores.bleu_signature})")

    words, weights = translate_with_attention(pipeline, SOURCE)
    print(f"\n{SOURCE} → {pipeline.tokenizer.decode(words)}")
    names = [pipeline.tokenizer.decode([word]).strip() for word in words] + ["(end)"]
    keys = [*pipeline.source_tokenizer.pieces(SOURCE), "(end)"]
    for name, row in zip(names, weights[-1], strict=True):
        most = row.topk(2)
        places = " and ".join(f"{keys[int(place)]} ({value:.0%})" for value, place in zip(*most, strict=True))
        print(f"  {name:<12} attended to {places}")
    print("  (The encoder has already mixed the words: a particle may stand for the word before it.)")
    path = draw_attention_maps(
        weights,
        queries=names,
        keys=keys,
        titles=[f"decoder block {layer}" for layer in range(len(weights))],
        title="Attention of each English word (mean over heads)",
        path=out / "attention.png",
    )
    print(f"\nThe figure is {path} (above: its last block), the loss curve is {out / 'loss.png'}.")
    print(f'Next: chumoku translate {trained.last} "庭で花を植える", or your own sentence with similar words;')
    print(f'chumoku look {trained.last} "{SOURCE}" draws its internals; chumoku serve {out} opens it in a browser;')
    print(f"chumoku evaluate {trained.last} {out / 'data' / 'test.tsv'}; or train your own: see recipes/.")


def delete_old_run(out: Path) -> None:
    """Delete an earlier demo run but keep its prepared data; UsageError if the folder has another run."""
    import json
    import shutil

    from chumoku.errors import UsageError
    from chumoku.training.interrupt import lock_folder

    old = [out / name for name in ("checkpoints", "best", "last") if (out / name).exists()]
    if not old:
        return
    try:
        kind = json.loads((out / "recipe.json").read_text(encoding="utf-8"))["data"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        kind = None
    if kind != "embedded":
        raise UsageError(f"{out} contains a run that is not a demo. Choose another folder with --out.")
    with lock_folder(out):
        for place in old:
            shutil.rmtree(place)


def _step_changes(steps: int | None) -> list[str]:
    return [] if steps is None else [f"train.steps={steps}", f"schedule.warmup={steps // 8}"]


def _tokenizer_changes() -> list[str]:
    """Overrides for a character tokenizer if SudachiPy, which splits Japanese into words, is not installed."""
    if importlib.util.find_spec("sudachipy") is not None:
        return []
    print("Japanese is split into characters; to split it into words: pip install 'chumoku[ja]'.")
    return ["tokenizer.kind=character"]


def translate_with_attention(pipeline: Pipeline, source: str) -> tuple[list[int], Tensor]:
    """The translation's token ids, and the cross-attention of each block [L, T, S], averaged over heads."""
    from chumoku.decoding.beam import cross_attention
    from chumoku.decoding.translate import begin_and_end, encode, hypotheses

    model: EncoderDecoderModel = pipeline.model  # type: ignore[assignment]
    sources = encode(model, [source], pipeline.source_tokenizer)
    tokens = hypotheses(model, sources, tokenizer=pipeline.tokenizer, beam=1)[0][0].tokens
    return tokens, cross_attention(model, sources[0], tokens, begin_and_end(pipeline.tokenizer)[0]).mean(1)
