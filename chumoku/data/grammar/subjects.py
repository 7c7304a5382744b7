"""Who acts in a sentence: people, adults, others than the speaker, speakers, or beasts."""

from __future__ import annotations

from chumoku.data.grammar.dice import Dice
from chumoku.data.grammar.lexicon.people import BEASTS, DROPPED_I, DROPPED_YOU, PEOPLE, may_stand
from chumoku.data.grammar.lexicon.tables import Person

DROPPED_SHARE = 0.3


def _subject_pool(who: str, *, question: bool) -> tuple[Person, ...]:
    if who == "beasts":
        return BEASTS
    people = tuple(person for person in PEOPLE if may_stand(person, question=question))
    if who == "adults":
        return tuple(person for person in people if person.adult)
    if who == "others":
        return tuple(person for person in people if person.role != "self")
    if who == "speakers":
        return tuple(person for person in people if person.en == ("you" if question else "I"))
    return people


_POOLS = {
    (who, question): _subject_pool(who, question=question)
    for who in ("people", "adults", "others", "speakers", "beasts")
    for question in (False, True)
}


def draw_subject(dice: Dice, who: str, *, question: bool) -> Person:
    """A random subject from the group `who`. A dropped subject means "I", or "you" in a question."""
    droppable = who != "beasts" and (question or who != "others")
    if droppable and dice.chance(DROPPED_SHARE):
        return DROPPED_YOU if question else DROPPED_I
    return dice.pick(_POOLS[who, question])
