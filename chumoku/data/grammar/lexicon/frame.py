"""A frame says which objects, places, times and manners go with a verb: it is the sense in the sentences.

frames.tsv has a frame a line: verb, objects, places, how, and as options the fields that differ from their default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from chumoku.data.grammar.lexicon.tables import Noun, Place, Row, Verb, read_options, read_table
from chumoku.data.grammar.lexicon.words import VERBS, nouns, places

HABIT, EVENT, ACCIDENT, STATE = "habit", "event", "accident", "state"


class Frame(NamedTuple):
    verb: Verb
    objects: tuple[Noun, ...]
    places: tuple[Place, ...]
    how: tuple[str, ...]
    particle: str = "を"  # behind the object; two separated by a slash are free to choose from
    at: str = "で"  # behind the place
    aspect: str = HABIT  # a habit, an event that is over or will be, an accident that is over, or a state
    every: str = "01"  # the scales on which it recurs: "0" daily, "1" weekly, "2" monthly and yearly
    span: int = 1  # the largest scale of times at which one would still mention it; -1 is hours
    since: int = -1  # the smallest: what takes months is not done last night
    who: str = "people"  # people, adults, beasts or all
    kinds: bool = False  # English always speaks of the kind: they sell apples
    each: bool = False  # plural subjects have one object each: they eat apples
    described: bool = False  # the object may carry an adjective
    bound: bool = False  # never without its place
    parts: tuple[str, ...] = ("morning", "day", "night")  # parts of the day that suit it
    seasons: bool = False


def _frame(row: Row) -> Frame:
    options: dict[str, Any] = read_options(row["options"])
    convert: dict[str, Callable[[str], Any]] = {
        "span": int,
        "since": int,
        "parts": lambda names: tuple(names.split(",")),
    }
    options |= {name: convert[name](options[name]) for name in convert.keys() & options}
    return Frame(VERBS[row["verb"]], nouns(row["objects"]), places(row["places"]), tuple(row["how"].split()), **options)


FRAMES = tuple(map(_frame, read_table("frames")))
