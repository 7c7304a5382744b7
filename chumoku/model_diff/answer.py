"""The differences of two models as sentences in English and Japanese.

B is better than A by 0.031 nats per token [0.022, 0.040], 120 texts.
A and B cannot be told apart: B − A is 0.002 nats per token [−0.006, 0.010], 120 texts.
"""

from __future__ import annotations

import math

from chumoku.errors import pluralize
from chumoku.evaluation.paired import PairedInterval
from chumoku.model_diff.changes import ChangedNeighbor, ChangedTranslation
from chumoku.model_diff.inside import Inside
from chumoku.model_diff.results import Measure, ModelDiff
from chumoku.model_diff.transplant import REST
from chumoku.probe.bilingual import Words

MOST_DIGITS = 6
UNITS = {
    "nats per token": "nat/トークン",
    "nats per masked token": "nat/マスクされたトークン",
    "chrF": "chrF",
    "reciprocal rank": "（順位の逆数）",
}
PARTS = {REST: Words(REST, "埋め込みと出力")}


def answer(diff: ModelDiff) -> list[Words]:
    """All sentences, the most important first."""
    sentences = [_verdict(measure, diff) for measure in diff.measures]
    if diff.bleu is not None:
        scores = f"BLEU: A {diff.bleu.a:.1f}, B {diff.bleu.b:.1f}"
        sentences.append(
            Words(
                f"{scores}; p = {diff.bleu.p_value:.3f} by sacrebleu's paired bootstrap.",
                f"{scores}。sacrebleu の対応のあるブートストラップで p = {diff.bleu.p_value:.3f}。",
            )
        )
    sentences.append(_changed(diff))
    if diff.other_shape:
        keys = "; ".join(diff.other_shape)
        sentences.append(
            Words(
                f"The models differ in shape ({keys}), so blocks and heads are not compared and not transplanted.",
                f"モデルの形が異なるため（{keys}）、ブロックとヘッドの比較と移植は行いません。",
            )
        )
    if diff.inside is not None:
        sentences.append(_inside(diff.inside))
    if diff.transplants:
        sentences.append(_transplants(diff))
    if diff.skipped:
        count = pluralize(diff.skipped, "text")
        sentences.append(
            Words(
                f"{count} could not be scored: empty, or longer than the context.",
                f"{diff.skipped:,} 件のテキストは、空か文脈長より長いため採点していません。",
            )
        )
    return sentences


def _verdict(measure: Measure, diff: ModelDiff) -> Words:
    unit, texts = measure.metric.unit, pluralize(diff.texts, "text")
    unit_ja, interval = UNITS[unit], measure.interval
    if measure.better is None:
        numbers = f"{format_number(interval.difference, interval)} {{}} {format_bounds(interval)}"
        return Words(
            f"A and B cannot be told apart: B − A is {numbers.format(unit)}, {texts}.",
            f"A と B は区別できません: B − A は {numbers.format(unit_ja)}、{diff.texts:,} 件。",
        )
    better, worse = ("B", "A") if measure.better == "B" else ("A", "B")
    low, high = sorted((abs(interval.low), abs(interval.high)))
    size = PairedInterval(abs(interval.difference), low, high, interval.count)
    numbers = f"{format_number(size.difference, size)} {{}} {format_bounds(size)}"
    return Words(
        f"{better} is better than {worse} by {numbers.format(unit)}, {texts}.",
        f"{better} は {worse} より {numbers.format(unit_ja)} 優れています、{diff.texts:,} 件。",
    )


def _changed(diff: ModelDiff) -> Words:
    first, count = next(iter(diff.changed), None), diff.changed_count
    if first is None:
        return Words("No output differs.", "出力に違いはありません。")
    if isinstance(first, ChangedTranslation):
        return Words(
            f"{count:,} of {diff.texts:,} translations differ.",
            f"{diff.texts:,} 件中 {count:,} 件の翻訳が異なります。",
        )
    if isinstance(first, ChangedNeighbor):
        return Words(
            f"{count:,} of {diff.texts:,} queries have another nearest document.",
            f"{diff.texts:,} 件中 {count:,} 件の検索文で、最も近い文書が異なります。",
        )
    largest = abs(first.logprob_b - first.logprob_a)
    return Words(
        f"{count:,} of {diff.tokens:,} tokens have another probability; the largest change is {largest:.2f} nats.",
        f"{diff.tokens:,} トークン中 {count:,} の確率が異なります。最大の変化は {largest:.2f} nats です。",
    )


def _inside(inside: Inside) -> Words:
    block = max(inside.blocks, key=lambda one: one.weights)
    if block.weights == 0:
        return Words("No weight differs.", "重みに違いはありません。")
    part = PARTS.get(block.address, Words(block.address, block.address))
    heads = max(inside.heads, key=lambda one: max(one.patterns))
    pattern = max(heads.patterns)
    head = heads.patterns.index(pattern)
    return Words(
        f"The weights of {part.en} changed most, by {block.weights:.2%}. The attention pattern that changed most is "
        f"that of head {head} of {heads.address}: {pattern:.2g} of total variation.",
        f"重みの変化が最も大きいのは {part.ja} で、{block.weights:.2%} です。アテンションの変化が最も大きいのは "
        f"{heads.address} のヘッド {head} で、全変動距離は {pattern:.2g} です。",
    )


def _transplants(diff: ModelDiff) -> Words:
    found, texts = diff.decisive, diff.transplant_texts
    if found is None:
        return Words(
            f"No transplant of a single part has a sure effect on {pluralize(texts, 'text')} (Holm, 5 %).",
            f"単独の部分の移植で確かな効果を持つものはありません（{texts:,} 件、Holm、5 %）。",
        )
    host, donor = found.into, "A" if found.into == "B" else "B"
    part = PARTS.get(found.part, Words(found.part, found.part))
    unit = diff.measures[-1].metric.unit
    numbers = f"{format_number(found.interval.difference, found.interval, signed=True)} {{}}"
    bounds = format_bounds(found.interval)
    return Words(
        f"The transplant with the largest sure effect is {part.en} of {donor} in {host}: "
        f"{numbers.format(unit)} {bounds}, {pluralize(texts, 'text')}.",
        f"確かな効果が最も大きい移植は、{donor} の {part.ja} を {host} に入れたものです: "
        f"{numbers.format(UNITS[unit])} {bounds}、{texts:,} 件。",
    )


def format_number(value: float, interval: PairedInterval, *, signed: bool = False) -> str:
    """A number with as many digits as its interval allows, with a real minus sign."""
    width = interval.high - interval.low
    digits = 3 if width == 0 else min(MOST_DIGITS, max(1, 1 - math.floor(math.log10(width))))
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")


def format_bounds(interval: PairedInterval) -> str:
    return f"[{format_number(interval.low, interval)}, {format_number(interval.high, interval)}]"
