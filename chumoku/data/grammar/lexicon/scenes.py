"""What is where, what is liked, and who is what: the tables of the sentences without an acting verb."""

from __future__ import annotations

from typing import Any, NamedTuple

from chumoku.data.grammar.lexicon.tables import Noun, Place, Row, Verb, read_options, read_table
from chumoku.data.grammar.lexicon.words import NOUNS, PLACES, VERBS, nouns, places


class Scene(NamedTuple):
    """Things that may be in any of these places."""

    verb: Verb
    nouns: tuple[Noun, ...]
    places: tuple[Place, ...]


class Feeling(NamedTuple):
    """A predicate over が: 猫が好きだ. English says it with a verb, or with to be and a phrase."""

    ja: str
    kind: str
    en: str
    past: str
    nouns: tuple[Noun, ...]
    be: bool = False
    plural: bool = False  # English speaks of the kind: I like cats
    who: str = "people"
    undeniable: bool = False


def _feeling(row: Row) -> Feeling:
    options: dict[str, Any] = read_options(row["options"])
    return Feeling(row["ja"], row["kind"], row["en"], row["past"], nouns(row["nouns"]), **options)


SCENES = tuple(Scene(VERBS[row["verb"]], nouns(row["nouns"]), places(row["places"])) for row in read_table("scenes"))
FEELINGS = tuple(map(_feeling, read_table("feelings")))
WHEREABOUTS = PLACES["indoors"]
OCCUPATIONS = NOUNS["occupations"]
