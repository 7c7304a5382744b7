"""Who acts. The role says where a subject may stand:

self    私 and a dropped subject; statements only      own    my kin: 母; statements only
you     あなた, or nobody named; questions only        your   your kin: お母さん; questions only
other   everybody else, anywhere                       beast  animals, for verbs that take them
"""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import Person, read_table

_ALL = tuple(
    Person(row["ja"], row["en"], row["role"], row["possessive"], adult=row["age"] != "child")
    for row in read_table("people")
)
PEOPLE = tuple(person for person in _ALL if person.role != "beast")
BEASTS = tuple(person for person in _ALL if person.role == "beast")
OWN_KIN = frozenset(person.ja for person in PEOPLE if person.role == "own")
DROPPED_I, DROPPED_YOU = (next(one for one in PEOPLE if one.en == en)._replace(ja="") for en in ("I", "you"))


def may_stand(person: Person, *, question: bool) -> bool:
    """Nobody asks what they do themselves, or tells others what the others and their mothers do."""
    return person.role not in (("self", "own") if question else ("you", "your"))
