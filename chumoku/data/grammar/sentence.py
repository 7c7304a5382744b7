"""A sentence in both languages, and what all sentence types share: order, polarity and politeness."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.dice import Dice
from chumoku.data.grammar.english import PAST, Mood
from chumoku.data.grammar.inflection import NA_ADJECTIVE, Form, conjugate, inflect_adjective, make_question
from chumoku.data.grammar.lexicon.tables import Person, Time, Verb

MAX_WORDS = 12


class Sentence(NamedTuple):
    """`units` joined are the Japanese sentence; `combination` is the unit that the split keeps together."""

    units: tuple[str, ...]
    target: str
    combination: tuple[str, ...]

    @property
    def source(self) -> str:
        return "".join(self.units)


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
