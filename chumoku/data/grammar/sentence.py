"""A sentence in both languages, and what all sentence types share: subject, time, polarity and politeness."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.dice import Dice
from chumoku.data.grammar.english import PAST, Mood
from chumoku.data.grammar.inflection import NA_ADJECTIVE, Form, conjugate, inflect_adjective, make_question
from chumoku.data.grammar.lexicon.people import BEASTS, DROPPED_I, DROPPED_YOU, PEOPLE, may_stand
from chumoku.data.grammar.lexicon.tables import Person, Time, Verb

DROPPED_SHARE = 0.3
MAX_WORDS = 12


class Sentence(NamedTuple):
    """`units` joined are the Japanese sentence; `combination` is the unit that the split keeps together."""

    units: tuple[str, ...]
    target: str
    combination: tuple[str, ...]

    @property
    def source(self) -> str:
        return "".join(self.units)


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


def draw_polarity(dice: Dice, *, deniable: bool = True) -> tuple[bool, bool]:
    """Random (negative, question). Negative questions are left out, because 食べませんか is an invitation."""
    share = dice.roll()
    return deniable and share < 0.2, share >= 0.78


def subject_and_time(dice: Dice, subject: Person, time: Time | None) -> list[str]:
    """The units of subject and time, in random order."""
    topic = [subject.ja, "は"] if subject.ja else []
    if time is None:
        return topic
    when = [time.ja] if time.ja.endswith("に") else [time.ja, "、"]
    return [*topic, *when] if topic and dice.chance(0.5) else [*when, *topic]


def _to_units(form: Form, mood: Mood, *, polite: bool, copula: bool) -> list[str]:
    final = make_question(form, polite=polite, copula=copula) if mood.question else form
    return [unit for unit in final if unit]


def end_with_verb(verb: Verb, mood: Mood, *, polite: bool) -> list[str]:
    """The units of the verb at the end of a Japanese sentence."""
    form = conjugate(verb.ja, verb.kind, past=mood.tense == PAST, negative=mood.negative, polite=polite)
    return _to_units(form, mood, polite=polite, copula=False)


def end_with_adjective(word: str, kind: str, mood: Mood, *, polite: bool) -> list[str]:
    """The units of the adjective, or of the noun with its copula, at the end of a Japanese sentence."""
    form = inflect_adjective(word, kind, past=mood.tense == PAST, negative=mood.negative, polite=polite)
    return _to_units(form, mood, polite=polite, copula=kind == NA_ADJECTIVE)
