"""chumoku demo: train a small translator and show its attention; then translate with the shipped one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chumoku.cli.shared import pad, say
from chumoku.messages import choose

if TYPE_CHECKING:
    from torch import Tensor

    from chumoku.models.model import EncoderDecoderModel
    from chumoku.pipeline import Pipeline

SOURCE = "こたつでみかんを食べる"
SHIPPED = "ja-en"
ORDINARY = {  # sentence → file of its figure
    "こたつでみかんを食べる。": "ja-en-short.png",
    "明日は雨が降るでしょう。": None,
    "駅までの道を教えていただけませんか。": None,
    "猫は窓のそばで寝ています。": None,
    "彼女は子どものころから音楽が好きで、毎日ピアノの練習をしていました。": "ja-en-long.png",
}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and its figures.")] = Path("runs/demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; default: as in the recipe.")] = None,
) -> None:
    """Train a small Japanese-English translator (two to three minutes on two cores), score it, and show its attention.
    Then translate ordinary sentences with the translator that ships with chumoku."""
    import chumoku
    from chumoku.data.grammar import split
    from chumoku.evaluation.translation import score_translations
    from chumoku.probe.plot_style import draw_attention_maps, label
    from chumoku.training.recipe import load_recipe
    from chumoku.training.run import train

    recipe = load_recipe("demo", [f"train.out={out}", *_step_changes(steps), *_tokenizer_changes()])
    delete_old_run(out)
    say(
        f"A grammar generates {recipe.data.count:,} Japanese-English pairs; a new Transformer learns to translate them."
    )
    trained = train(recipe)
    if not trained.finished:
        raise typer.Exit(trained.exit_code)

    pipeline = chumoku.load(trained.last)
    test = split(recipe.data.count).test
    say(f"\nTranslating {len(test):,} held-out sentences: known words in new combinations.")
    translations = pipeline.translate([pair.source for pair in test], beam=1)
    scores = score_translations(translations, [pair.target for pair in test], language="en")
    right = sum(one == pair.target for one, pair in zip(translations, test, strict=True)) / len(test)
    say(f"BLEU {scores.bleu:.1f}, chrF {scores.chrf:.1f}, {right:.0%} exact matches.   ({scores.bleu_signature})")

    words, weights = translate_with_attention(pipeline, SOURCE)
    print(f"\n{SOURCE} → {pipeline.tokenizer.decode(words)}")
    names = [pipeline.tokenizer.decode([word]).strip() for word in words] + [label("(end)")]
    keys = [*pipeline.source_tokenizer.pieces(SOURCE), label("(end)")]
    print_attention(weights[-1], names, keys)
    say("  (The encoder has already mixed the words: a particle may stand for the word before it.)")
    path = draw_attention_maps(
        weights,
        queries=names,
        keys=keys,
        titles=[label("decoder block {0}", layer) for layer in range(len(weights))],
        title=label("Attention of each English word (mean over heads)"),
        path=out / "attention.png",
    )
    say(f"\nThe figure is {path} (above: its last block), the loss curve is {out / 'loss.png'}.")
    show_shipped(out)
    say(f'Next: chumoku translate {trained.last} "庭で花を植える", or your own sentence with similar words;')
    say(f'chumoku look {trained.last} "{SOURCE}" draws its internals; chumoku serve {out} opens it in a browser;')
    say(f"chumoku evaluate {trained.last} {out / 'data' / 'test.tsv'}; or train your own: see recipes/.")


def show_shipped(out: Path) -> None:
    """Translate ordinary sentences with the shipped translator, and draw which words each word attended to."""
    import chumoku
    from chumoku.pretrained import installed_models
    from chumoku.probe.plot_style import draw_attention_maps, label

    say("\nThe model trained just now knows only the words of its grammar.")
    if SHIPPED not in installed_models():
        say(f"This installation has no translator {SHIPPED}, so ordinary sentences are not translated here.\n")
        return
    say(f"The translator {SHIPPED}, which ships with chumoku, was trained earlier, on ordinary sentences:")
    pipeline = chumoku.load(SHIPPED)
    for sentence, file in ORDINARY.items():
        translation, names, keys, weights = attention_between_words(pipeline, sentence)
        print(f"  {sentence} → {translation}")
        if file is not None:
            titles, title = [label("mean over layers and heads")], label("{0}: attention of each English word", SHIPPED)
            draw_attention_maps(weights[None], queries=names, keys=keys, titles=titles, title=title, path=out / file)
    figures = choose(" and ", "、").join(str(out / file) for file in ORDINARY.values() if file is not None)
    say(f"The figures {figures} show which words each word of {SHIPPED} attended to.\n")


def print_attention(weights: Tensor, names: list[str], keys: list[str]) -> None:
    """Print the two keys that each name attended to most, of weights [T, S]."""
    for name, row in zip(names, weights, strict=True):
        most = row.topk(2)
        places = choose(" and ", "、").join(
            f"{keys[int(place)]} ({value:.0%})" for value, place in zip(*most, strict=True)
        )
        say(f"  {pad(name, 12)} attended to {places}")


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
    say("Japanese is split into characters; to split it into words: pip install 'chumoku[ja]'.")
    return ["tokenizer.kind=character", "tokenizer.whole_words=false"]


def attention_between_words(pipeline: Pipeline, source: str) -> tuple[str, list[str], list[str], Tensor]:
    """The translation, its words, the source's words, and the attention between them [words, words]."""
    from chumoku.decoding.defaults import BEAM
    from chumoku.decoding.translate import begin_and_end, encode
    from chumoku.probe.plot_style import label
    from chumoku.probe.word_attention import END, find_words, merge_tokens

    tokens, weights = translate_with_attention(pipeline, source, beam=BEAM)
    (read,) = encode(pipeline.model, [source], pipeline.source_tokenizer)  # type: ignore[arg-type]
    rows = find_words(pipeline.tokenizer, [*tokens, begin_and_end(pipeline.tokenizer)[1]])
    columns = find_words(pipeline.source_tokenizer, read)
    names, keys = ([label(END) if word.text == END else word.text for word in words] for words in (rows, columns))
    return pipeline.tokenizer.decode(tokens), names, keys, merge_tokens(weights.mean(0), rows, columns)


def translate_with_attention(pipeline: Pipeline, source: str, *, beam: int = 1) -> tuple[list[int], Tensor]:
    """The translation's token ids, and the cross-attention of each block [L, T, S], averaged over heads."""
    from chumoku.decoding.beam import cross_attention
    from chumoku.decoding.translate import begin_and_end, encode, hypotheses

    model: EncoderDecoderModel = pipeline.model  # type: ignore[assignment]
    sources = encode(model, [source], pipeline.source_tokenizer)
    tokens = hypotheses(model, sources, tokenizer=pipeline.tokenizer, beam=beam)[0][0].tokens
    return tokens, cross_attention(model, sources[0], tokens, begin_and_end(pipeline.tokenizer)[0]).mean(1)
