"""Nouns, places, verbs and adjectives, and how other tables refer to them.

fruit + snacks: パン 餅      all nouns of one group and some of another
the cars, own hats: 帽子     nouns as known things (the car), or as the subject's own (my hat)
to outings, at 公園 町       places as goals (to the park), or as passed or reached (in the park)
家 公園 + hours: 五時        places of the group `places`, or of another group
on,under surfaces: 机        every relation to every place: 机の上 (on the desk), 机の下
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from chumoku.data.grammar.lexicon.tables import Adjective, Noun, Place, Row, Verb, read_groups, read_table

Word = TypeVar("Word", Noun, Place)

_RELATIONS = {
    "on": ("の上", "on"),
    "under": ("の下", "under"),
    "in": ("の中", "in"),
    "front": ("の前", "in front of"),
    "behind": ("の後ろ", "behind"),
    "next": ("の隣", "next to"),
    "near": ("の近く", "near"),
}


def _noun(row: Row) -> Noun:
    return Noun(row["ja"], "a" if row["kind"] == "an" else row["kind"], row["one"], row["many"] or row["one"])


def _words(groups: Mapping[str, tuple[Word, ...]], term: str) -> tuple[Word, ...]:
    if term in groups:
        return groups[term]
    group, _, names = term.rpartition(": ")
    found = {word.ja: word for word in groups[group or "places"]}
    return tuple(found[name] for name in names.split())


def _split(cell: str) -> list[tuple[str, str, str]]:
    """Each term of a cell: the whole, its first word, and the rest."""
    return [(term, *term.partition(" ")[::2]) for term in cell.split(" + ") if term]


def nouns(cell: str) -> tuple[Noun, ...]:
    """The nouns that a table refers to."""
    found: list[Noun] = []
    for term, first, rest in _split(cell):
        if first == "the":
            found += (noun._replace(kind="the", many=noun.one) for noun in _words(NOUNS, rest))
        elif first == "own":
            found += (noun._replace(kind="own") for noun in _words(NOUNS, rest))
        elif first == "to":
            found += (Noun(place.ja, "=", place.there, place.there) for place in _words(PLACES, rest))
        elif first == "at":
            found += (Noun(place.ja, "=", place.here, place.here) for place in _words(PLACES, rest))
        else:
            found += _words(NOUNS, term)
    return tuple(found)


def places(cell: str) -> tuple[Place, ...]:
    """The places that a table refers to."""
    found: list[Place] = []
    for term, first, rest in _split(cell):
        relations = [_RELATIONS[name] for name in first.split(",") if name in _RELATIONS]
        if relations:
            grounds = _words(PLACES, rest)
            found += (Place(one.ja + ja, f"{en} {one.here}", "") for one in grounds for ja, en in relations)
        else:
            found += _words(PLACES, term)
    return tuple(found)


def adjectives(cell: str) -> tuple[Adjective, ...]:
    return tuple(ADJECTIVES[name] for name in cell.split())


NOUNS = read_groups("nouns", _noun)
PLACES = read_groups("places", lambda row: Place(row["ja"], row["here"], row["there"]))
PLACES |= {row["name"]: _words(PLACES, row["places"]) for row in read_table("place_lists")}
# Where a Japanese verb needs two English ones, a dot and a name keep them apart: 飲む.薬, take.
VERBS = {
    row["name"]: Verb(row["name"].partition(".")[0], row["kind"], row["en"], row["past"]) for row in read_table("verbs")
}
ADJECTIVES = {
    row["ja"]: Adjective(row["ja"], row["kind"], row["en"], bool(row["passing"])) for row in read_table("adjectives")
}


def _names(group: str) -> frozenset[str]:
    return frozenset(place.ja for place in PLACES[group])


FOR_ADULTS = _names("for_adults")
CLOSED = {"night": _names("closed_at_night"), "weekend": _names("closed_on_weekends")}  # where nobody is then
