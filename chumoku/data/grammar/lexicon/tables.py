"""How the lexicon is written down: one word a line, Japanese first.

nouns    りんご an apple        the first English word says how the noun behaves:
         a, an   countable               an apple, apples      (an odd plural follows a slash: a sheep / sheep)
         some    mass, no article        bread
         pl      plural only             shoes
         the     always definite         the piano
         own     belongs to the subject  my face, their faces
         =       taken as it stands      Mr. Tanaka
places   公園 in the park       where one is; where one goes is "to the park", or what follows a slash
verbs    食べる ichidan eat, ate   the past is written when it is not made with -ed
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    ja: str
    kind: str
    one: str
    many: str


class Place(NamedTuple):
    """Where, whither, with what or to whom: a phrase beside the object."""

    ja: str
    here: str
    there: str


class Verb(NamedTuple):
    ja: str
    kind: str
    en: str
    past: str


class Person(NamedTuple):
    """A subject. `role` says in which sentences it may stand: see people.py."""

    ja: str
    en: str
    role: str
    possessive: str
    third: bool = True
    plural: bool = False
    adult: bool = True

    @property
    def masculine(self) -> bool:
        return self.possessive == "his" or self.ja == "僕"


class Adjective(NamedTuple):
    ja: str
    kind: str
    en: str
    passing: bool = False  # a state that may hold yesterday or tomorrow only: busy, but not famous


class Time(NamedTuple):
    """`scale`: -1 hours, 0 days, 1 weeks, 2 months and years. `part`: morning, day, night, weekend, moment, or none."""

    ja: str
    en: str
    scale: int
    part: str = ""


def rows(table: str) -> list[list[str]]:
    """The lines of a table as [Japanese, rest]."""
    return [line.split(maxsplit=1) for line in table.strip().splitlines()]


def plural_of(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x", "tomato", "potato")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def noun(ja: str, english: str) -> Noun:
    article, _, rest = english.partition(" ")
    one, _, many = (part.strip() for part in rest.partition("/"))
    kind = "a" if article == "an" else article
    regular = plural_of(one) if kind == "a" else one
    return Noun(ja, kind, one, many or regular)


def nouns(table: str) -> tuple[Noun, ...]:
    return tuple(noun(*row) for row in rows(table))


def place(ja: str, english: str) -> Place:
    here, _, there = (part.strip() for part in english.partition("/"))
    return Place(ja, here, there or "to " + here.partition(" ")[2])


def places(table: str) -> tuple[Place, ...]:
    return tuple(place(*row) for row in rows(table))


def verb(ja: str, description: str) -> Verb:
    kind, _, english = description.partition(" ")
    base, _, past = (part.strip() for part in english.partition(","))
    head, _, rest = base.partition(" ")
    regular = head + "d" if head.endswith("e") else head[:-1] + "ied" if _consonant_y(head) else head + "ed"
    changed = past or regular
    return Verb(ja, kind, base, f"{changed} {rest}" if rest else changed)


def _consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def definite(group: tuple[Noun, ...]) -> tuple[Noun, ...]:
    """The same nouns as known things: the door."""
    return tuple(word._replace(kind="the", many=word.one) for word in group)


def owned(group: tuple[Noun, ...]) -> tuple[Noun, ...]:
    """The same nouns as the subject's own: my wallet, their wallets."""
    return tuple(word._replace(kind="own") for word in group)


def only(group: tuple[Noun, ...], names: str) -> tuple[Noun, ...]:
    """Those of a group that are named; a name that is not there is a mistake in the table."""
    found = {word.ja: word for word in group}
    return tuple(found[name] for name in names.split())
