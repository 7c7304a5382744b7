"""A frame says which objects, places, times and manners go with a verb: it is the sense in the sentences."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon.tables import Noun, Place, Verb
from chumoku.data.grammar.lexicon.verbs import VERBS

HABIT, EVENT, ACCIDENT, STATE = "habit", "event", "accident", "state"


class Frame(NamedTuple):
    verb: Verb
    objects: tuple[Noun, ...]
    places: tuple[Place, ...]
    particle: str  # behind the object; two separated by a slash are free to choose from
    at: str  # behind the place
    aspect: str  # a habit, an event that is over or will be, an accident that is over, or a state
    every: str  # the scales on which it recurs: "0" daily, "1" weekly, "2" monthly and yearly
    span: int  # the largest scale of times at which one would still mention it; -1 is hours
    since: int  # the smallest: what takes months is not done last night
    how: tuple[str, ...]
    who: str  # people, adults, beasts or all
    kinds: bool  # English always speaks of the kind: they sell apples
    each: bool  # plural subjects have one object each: they eat apples
    described: bool  # the object may carry an adjective
    bound: bool  # never without its place
    parts: tuple[str, ...]  # parts of the day that suit it
    seasons: bool


def frame(
    verb: str,
    objects: tuple[Noun, ...] = (),
    places: tuple[Place, ...] = (),
    *,
    particle: str = "を",
    at: str = "で",
    aspect: str = HABIT,
    every: str = "01",
    span: int = 1,
    since: int = -1,
    how: str = "",
    who: str = "people",
    kinds: bool = False,
    each: bool = False,
    described: bool = False,
    bound: bool = False,
    parts: str = "morning day night",
    seasons: bool = False,
) -> Frame:
    manners = tuple(how.split())
    marks = (kinds, each, described, bound, tuple(parts.split()), seasons)
    return Frame(VERBS[verb], objects, places, particle, at, aspect, every, span, since, manners, who, *marks)


def toward(places: tuple[Place, ...]) -> tuple[Noun, ...]:
    """Places as goals: 公園に, to the park."""
    return tuple(Noun(place.ja, "=", place.there, place.there) for place in places)


def inside(places: tuple[Place, ...]) -> tuple[Noun, ...]:
    """Places that are walked through or arrived at: 公園を, in the park."""
    return tuple(Noun(place.ja, "=", place.here, place.here) for place in places)
