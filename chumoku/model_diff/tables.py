"""The tables of two models' differences, as rows of texts for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chumoku.model_diff.answer import PARTS, format_bounds, format_number
from chumoku.model_diff.changes import Change, ChangedToken, ChangedTranslation
from chumoku.model_diff.results import ModelDiff
from chumoku.model_diff.transplant import REST, Transplant
from chumoku.probe.bilingual import Words

Cell = str | Words
METRICS = {
    "loss": "損失（nat/トークン）",
    "loss of the references": "参照訳の損失（nat/トークン）",
    "mean chrF of the sentences": "文ごとの chrF の平均",
    "reciprocal rank": "順位の逆数の平均",
}
SHORT = {
    REST: "rest",
    "encoder.blocks.": "enc ",
    "decoder.blocks.": "dec ",
    ".cross_attention": " cross",
    ".attention": "",
}


@dataclass(frozen=True)
class Rows:
    """A table; cells that are the same in both languages, such as numbers and texts of a model, are strings."""

    title: Words
    heads: tuple[Words, ...]
    cells: Sequence[tuple[Cell, ...]]


def short_name(address: str) -> str:
    """decoder.blocks.3.cross_attention → dec 3 cross"""
    for long, short in SHORT.items():
        address = address.replace(long, short)
    return address


def measure_rows(diff: ModelDiff) -> Rows:
    """Both models by each metric."""
    cells: list[tuple[Cell, ...]] = []
    for measure in diff.measures:
        a, b = (f"{value:,.4f}" for value in measure.values)
        difference = format_number(measure.interval.difference, measure.interval, signed=True)
        name = Words(f"{measure.metric.name} ({measure.metric.unit})", METRICS[measure.metric.name])
        cells.append((name, a, b, difference, format_bounds(measure.interval)))
    heads = (Words("metric", "指標"), _same("A"), _same("B"), _same("B − A"), Words("95 % interval", "95 % 区間"))
    return Rows(Words("Scores", "スコア"), heads, cells)


def block_rows(diff: ModelDiff, *, narrow: bool = False) -> Rows | None:
    """The changes of each block, and the effects of its transplants; None if blocks were not compared.

    narrow    with short names, and without the parts of blocks
    """
    if diff.inside is None:
        return None
    known = {name for block in diff.inside.blocks for name in block.parts}
    parts = [name for name in ("attention", "cross_attention", "feedforward") if name in known and not narrow]
    heads = [Words("part", "部分"), Words("weights", "重み"), *map(_same, parts)]
    heads.append(Words("stream", "ストリーム"))
    effects = {(one.part, one.into): one for one in diff.transplants}
    if effects:
        heads += [Words("A's in B", "A のを B に"), Words("B's in A", "B のを A に")]
    cells: list[tuple[Cell, ...]] = []
    for block in diff.inside.blocks:
        name = short_name(block.address) if narrow else PARTS.get(block.address, block.address)
        row: list[Cell] = [name, f"{block.weights:.3%}"]
        row += [f"{block.parts[name]:.3%}" if name in block.parts else "" for name in parts]
        row.append("" if block.stream is None else f"{block.stream:.2g}")
        row += [_effect(effects[block.address, host]) for host in ("B", "A") if effects]
        cells.append(tuple(row))
    return Rows(Words("Blocks", "ブロック"), tuple(heads), cells)


def _effect(one: Transplant) -> str:
    number = format_number(one.interval.difference, one.interval, signed=True)
    return f"{number} {format_bounds(one.interval)}{' *' if one.decisive else ''}"


def head_rows(diff: ModelDiff, most: int = 10) -> Rows | None:
    """The heads whose patterns changed most."""
    if diff.inside is None:
        return None
    every = [
        (pattern, weights, one.address, head)
        for one in diff.inside.heads
        for head, (pattern, weights) in enumerate(zip(one.patterns, one.weights, strict=True))
    ]
    every.sort(key=lambda each: -each[0])
    cells: list[tuple[Cell, ...]] = [
        (f"{address}, {head}", f"{pattern:.3g}", f"{weights:.3%}") for pattern, weights, address, head in every[:most]
    ]
    heads = (
        Words("head", "ヘッド"),
        Words("pattern (total variation)", "アテンション（全変動距離）"),
        Words("weights", "重み"),
    )
    return Rows(Words("Heads that changed most", "変化の大きいヘッド"), heads, cells)


def change_rows(diff: ModelDiff, *, narrow: bool = False) -> Rows | None:
    """The outputs that changed most; if `narrow`, a token and the text around it share a column."""
    if not diff.changed:
        return None
    first, number = diff.changed[0], Words("text", "番号")
    if isinstance(first, ChangedToken):
        title = Words("Tokens that changed most", "変化の大きいトークン")
        heads = [Words("before", "前の文"), Words("token", "トークン"), Words("after", "後の文")]
        heads = [Words("[token] in its text", "文中の [トークン]")] if narrow else heads
        heads += [_same("log P, A"), _same("log P, B"), Words("A expects", "A の予測"), Words("B expects", "B の予測")]
    elif isinstance(first, ChangedTranslation):
        title = Words("Translations that changed most", "変化の大きい翻訳")
        heads = [Words("source", "原文"), Words("reference", "参照訳"), *map(_same, ("A", "B", "chrF, A", "chrF, B"))]
    else:
        title = Words("Neighbors that changed most", "変化の大きい近傍")
        heads = [Words("query", "検索文"), Words("nearest in A", "A で最も近い文書")]
        heads += [Words("nearest in B", "B で最も近い文書"), *map(_same, ("cos, A", "cos, B"))]
    return Rows(title, (number, *heads), [_change_cells(one, narrow=narrow) for one in diff.changed])


def _change_cells(one: Change, *, narrow: bool) -> tuple[str, ...]:
    if isinstance(one, ChangedToken):
        around = (f"{one.before}[{one.token}]{one.after}".replace("\n", " "),)
        text = around if narrow else (one.before, one.token, one.after)
        chances = (f"{one.logprob_a:.2f}".replace("-", "−"), f"{one.logprob_b:.2f}".replace("-", "−"))
        return (str(one.text), *text, *chances, one.expected_a, one.expected_b)
    if isinstance(one, ChangedTranslation):
        texts = (one.source, one.reference, one.translation_a, one.translation_b)
        return (str(one.text), *texts, f"{one.chrf_a:.1f}", f"{one.chrf_b:.1f}")
    return (str(one.text), one.query, one.nearest_a, one.nearest_b, f"{one.cosine_a:.3f}", f"{one.cosine_b:.3f}")


def _same(text: str) -> Words:
    return Words(text, text)
