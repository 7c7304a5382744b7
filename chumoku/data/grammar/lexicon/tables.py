"""The entries of the lexicon, and the reader of its tables: a .tsv file beside this one, one entry a line.

The kind of a noun says how it behaves in English:

    a, an   countable               an apple, apples
    some    mass, no article        bread
    pl      plural only             shoes
    the     always definite         the piano
    own     belongs to the subject  my face, their faces
    =       taken as it stands      Mr. Tanaka
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

Row = dict[str, str]
Entry = TypeVar("Entry")


class Noun(NamedTuple):
    ja: str
    kind: str
    one: str
    many: str


class Place(NamedTuple):
    """A phrase next to the object: where, to which place, with what or to whom."""

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
    adult: bool = True

    @property
    def third(self) -> bool:
        return self.possessive in ("his", "her", "its")

    @property
    def plural(self) -> bool:
        return self.possessive in ("our", "their")

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


def read_table(name: str) -> list[Row]:
    """The rows of a table by column; cells that are missing at the end of a line are empty."""
    with Path(__file__).with_name(f"{name}.tsv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""))


def read_groups(name: str, make: Callable[[Row], Entry]) -> dict[str, tuple[Entry, ...]]:
    """The entries of a table by their group."""
    groups: dict[str, tuple[Entry, ...]] = {}
    for row in read_table(name):
        groups[row["group"]] = (*groups.get(row["group"], ()), make(row))
    return groups


def read_options(cell: str) -> dict[str, str | bool]:
    """`each every=0` → {"each": True, "every": "0"}"""
    return {name: value or True for name, _, value in (option.partition("=") for option in cell.split())}
