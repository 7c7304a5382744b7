"""When, how often and how: adverbial phrases with what they go with."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon.tables import Time, read_groups, read_table


class Frequency(NamedTuple):
    """`denies`: the Japanese verb is negative. Then English may say it with the adverb alone: rarely."""

    ja: str
    en: str
    denies: bool = False
    behind: str = ""  # what English puts behind the object of a denied verb instead


_TIMES = read_groups("times", lambda row: Time(row["ja"], row["en"], int(row["scale"]), row["part"]))
EVERY, GENERAL, SEASONS, BEFORE, AFTER, (NOW,) = (
    _TIMES[name] for name in ("every", "general", "seasons", "before", "after", "now")
)
_FREQUENCIES = [
    Frequency(row["ja"], row["en"], bool(row["denies"]), row["behind"]) for row in read_table("frequencies")
]
OFTEN = tuple(one for one in _FREQUENCIES if not one.denies)
SELDOM = tuple(one for one in _FREQUENCIES if one.denies)
MANNER = {row["ja"]: row["en"] for row in read_table("manners")}
