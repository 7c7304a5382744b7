"""The answer of a comparison as sentences in English and Japanese, and as JSON.

    rotary is better than learned by 0.031 nats [0.022, 0.040], 12 seeds.
    learned and none cannot be told apart: 0.002 nats [−0.006, 0.010], 12 seeds.

With more than two arms the best come first; with more than four arms, pairs without the first of the ranking are in the
table only. Differences have as many digits as their interval allows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chumoku.compare.results import Comparison, Metric
from chumoku.compare.verdicts import Decision, PairVerdict
from chumoku.errors import pluralize
from chumoku.evaluation.paired import PairedInterval
from chumoku.evaluation.sequential import detectable_effect
from chumoku.probe.bilingual import Words

MOST_ARMS = 4  # of which all pairs are said in sentences
MOST_DIGITS = 6


def answer(comparison: Comparison, decision: Decision) -> list[Words]:
    """The sentences of the answer: the best arms, pairs, diverged runs."""
    names, arms = short_names(comparison), len(comparison.arms)
    told = [pair for pair in decision.pairs if arms <= MOST_ARMS or decision.ranking[0] in (pair.first, pair.second)]
    hopeless = {name for name, (diverged, seeds) in decision.diverging.items() if diverged == seeds}
    sentences = [_best(decision, names)] if arms > 2 else []
    sentences += [
        _pair(pair, names, comparison.metric) for pair in told if not hopeless.intersection((pair.first, pair.second))
    ]
    for name, (diverged, seeds) in decision.diverging.items():
        sentences.append(
            Words(
                f"{names[name]} diverged in {diverged} of {pluralize(seeds, 'seed')}.",
                f"{names[name]} は {seeds} シード中 {diverged} シードで発散しました。",
            )
        )
    return sentences


def short_names(comparison: Comparison) -> dict[str, str]:
    """Names of arms for sentences: "rotary pre" for "model.position=rotary model.placement=pre", if that is enough.

    A number or a switch keeps the last part of its key: "layers=2".
    """
    keys = {tuple(part.partition("=")[0] for part in arm.name.split()) for arm in comparison.arms}
    if len(keys) != 1 or () in keys:
        return {arm.name: arm.name or "recipe" for arm in comparison.arms}
    short = {arm.name: " ".join(map(_short_part, arm.name.split())) for arm in comparison.arms}
    return short if len(set(short.values())) == len(short) else {arm.name: arm.name for arm in comparison.arms}


def _short_part(part: str) -> str:
    key, equals, value = part.partition("=")
    is_word = value[:1].isalpha() and value.lower() not in ("true", "false")
    return value if is_word else f"{key.rpartition('.')[2]}{equals}{value}"


def _best(decision: Decision, names: dict[str, str]) -> Words:
    best = [names[name] for name in decision.best]
    judged = any(pair.verdict != "not judged" for pair in decision.pairs)
    if not judged or not best:
        return Words("No arm can be called the best.", "どれが最良かは判定できません。")
    if len(best) == 1:
        return Words(f"{best[0]} is the best of {len(names)}.", f"{len(names)} 個のうち {best[0]} が最良です。")
    return Words(
        f"{join_words(best, 'and')} are the best of {len(names)}, and cannot be told apart.",
        f"{len(names)} 個のうち {'、'.join(best)} が最良で、互いに区別できません。",
    )


def _pair(pair: PairVerdict, names: dict[str, str], metric: Metric) -> Words:
    first, second, seeds = names[pair.first], names[pair.second], pluralize(pair.seeds, "seed")
    if pair.verdict == "not judged":
        return Words(
            f"{first} and {second} are not judged: {seeds}.",
            f"{first} と {second} は未判定です（{pair.seeds} シード）。",
        )
    better = pair.verdict == "better"
    if pair.interval is None:
        won = f"{first} wins in {pair.wins} and loses in {pair.losses} of {seeds}"
        won_ja = f"{pair.seeds} シード中、{first} が {pair.wins} 勝 {pair.losses} 敗"
        if better:
            return Words(
                f"{first} is better than {second}: {won}.", f"{first} は {second} より優れています: {won_ja}。"
            )
        return Words(
            f"{first} and {second} cannot be told apart: {won}.", f"{first} と {second} は区別できません: {won_ja}。"
        )
    difference, interval = format_interval(pair.interval)
    size = f"{difference} {metric.unit} {interval}"
    if better:
        return Words(
            f"{first} is better than {second} by {size}, {seeds}.",
            f"{first} は {second} より {difference} {metric.unit} 優れています {interval}、{pair.seeds} シード。",
        )
    return Words(
        f"{first} and {second} cannot be told apart: {size}, {seeds}.",
        f"{first} と {second} は区別できません: {size}、{pair.seeds} シード。",
    )


def format_interval(found: PairedInterval) -> tuple[str, str]:
    """The difference and its interval with as many digits as its width allows: 0.031 and [0.022, 0.040]."""
    width = found.high - found.low
    digits = 3 if width <= 0 else min(MOST_DIGITS, max(0, -math.floor(math.log10(width / 6))))
    # The end of an interval that excludes 0 is not written as 0.
    while (
        digits < MOST_DIGITS and found.low * found.high > 0 and not round(min(abs(found.low), abs(found.high)), digits)
    ):
        digits += 1
    difference, low, high = (format_signed(value, digits) for value in (found.difference, found.low, found.high))
    return difference, f"[{low}, {high}]"


def format_signed(value: float, digits: int) -> str:
    """A number with a minus sign as in print, and no −0."""
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def join_words(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def detectable_difference(pair: PairVerdict, decision: Decision) -> float | None:
    """The difference that is found with 80 % in the planned seeds, given the spread of this pair; None if unknown."""
    if pair.interval is None or decision.planned_seeds < 2 or pair.interval.low == pair.interval.high:
        return None
    alpha = (1 - decision.confidence) / len(decision.pairs)
    return statistics.stdev(pair.differences) * detectable_effect(decision.planned_seeds, alpha=alpha)


def as_dict(comparison: Comparison, decision: Decision) -> dict[str, Any]:
    """Everything that was measured and decided, for JSON."""
    sentences = answer(comparison, decision)
    pairs = [
        {
            **asdict(pair),
            "bootstrap": pair.bootstrap and asdict(pair.bootstrap),
            "differences": [value if math.isfinite(value) else None for value in pair.differences],
            "detectable": detectable_difference(pair, decision),
        }
        for pair in decision.pairs
    ]
    return {
        "answer": {"en": " ".join(words.en for words in sentences), "ja": "".join(words.ja for words in sentences)},
        "best": decision.best,
        "ranking": decision.ranking,
        "pairs": pairs,
        "diverged": {name: {"runs": runs, "seeds": seeds} for name, (runs, seeds) in decision.diverging.items()},
        "confidence": decision.confidence,
        "planned_seeds": decision.planned_seeds,
        "finished": decision.finished,
        **asdict(comparison),
    }
