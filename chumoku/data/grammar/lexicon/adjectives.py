"""What things and people are like, and which of them are like that.

A row of descriptions.tsv reads: these nouns, the adjectives that stand before them and behind, those that only stand
behind, and whether the nouns can be somebody's.
"""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon.tables import Adjective, Noun, read_table
from chumoku.data.grammar.lexicon.words import ADJECTIVES, adjectives, nouns


class Described(NamedTuple):
    nouns: tuple[Noun, ...]
    anywhere: tuple[Adjective, ...]
    behind: tuple[Adjective, ...]
    owners: bool  # whether it can be somebody's


DESCRIBED = tuple(
    Described(nouns(row["nouns"]), adjectives(row["adjectives"]), adjectives(row["behind"]), bool(row["owners"]))
    for row in read_table("descriptions")
)


def _bearers(adjective: Adjective) -> tuple[tuple[Noun, bool], ...]:
    """The nouns an adjective can stand behind, each with whether it can be somebody's."""
    fitting = [row for row in DESCRIBED if adjective in row.anywhere + row.behind]
    return tuple(dict.fromkeys((noun, row.owners) for row in fitting for noun in row.nouns))


# By adjective, so that each is drawn as often as the others.
DESCRIPTIONS = tuple((adjective, bearers) for adjective in ADJECTIVES.values() if (bearers := _bearers(adjective)))

TRAITS = adjectives("忙しい 優しい 若い 有名 真面目 正直 幸せ 強い 賢い 暇 厳しい 静か 病気 元気")
SELF_TRAITS = adjectives("忙しい 幸せ 暇 病気 元気")  # of oneself, nobody says: I am smart
ATTRIBUTES: dict[str, tuple[Adjective, ...]] = {}
for _described in DESCRIBED:
    for _noun in _described.nouns:
        ATTRIBUTES[_noun.ja] = ATTRIBUTES.get(_noun.ja, ()) + _described.anywhere
