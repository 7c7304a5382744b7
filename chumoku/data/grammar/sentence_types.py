"""The grammar: sentence types, each a function that draws one random sentence.

    action       (time) (subject は) (adverb) (place で) (object を) verb      母は毎朝庭でお茶を飲む    (actions.py)
    scene        place に thing が ある / いる                                机の上に本がある
    whereabouts  person は place に いる                                      母は台所にいる
    description  この thing は adjective                                      この本は面白い
    trait        person は adjective, or occupation                           父は医者だ
    feeling      (subject は) thing が 好き                                   猫が好きだ

Each Japanese sentence has one translation. A dropped subject is "I" in a statement and "you" in a question. The
non-past is a habit (I eat), or the future with a future time (I will eat). A countable object is singular, or plural
where English uses the generic plural (`actions._is_generic`). Politeness and word order do not change the English.

A sentence's combination is its content words without time and adverb: (verb, object, place), (adjective, noun). The
subject is part of it only where the sentence describes the subject: (busy, my mother), (doctor, my father).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from chumoku.data.grammar.actions import action_combinations, draw_action
from chumoku.data.grammar.dice import Dice, Weighted
from chumoku.data.grammar.english import FUTURE, PAST, PRESENT, Mood, be_clause, clause, noun_phrase, there_clause
from chumoku.data.grammar.inflection import NA_ADJECTIVE
from chumoku.data.grammar.lexicon.adjectives import DESCRIPTIONS, SELF_TRAITS, TRAITS
from chumoku.data.grammar.lexicon.people import PEOPLE
from chumoku.data.grammar.lexicon.scenes import FEELINGS, OCCUPATIONS, SCENES, WHEREABOUTS
from chumoku.data.grammar.lexicon.tables import Noun, Person, Time, Verb
from chumoku.data.grammar.lexicon.times import AFTER, BEFORE, NOW
from chumoku.data.grammar.sentence import (
    MAX_WORDS,
    Sentence,
    draw_polarity,
    end_with_adjective,
    end_with_verb,
    subject_and_time,
)
from chumoku.data.grammar.subjects import draw_subject

_NEARBY_PAST = tuple(time for time in BEFORE if time.scale <= 0)
_NEARBY_FUTURE = tuple(time for time in AFTER if time.scale <= 0)
_DEMONSTRATIVES = (("この", "this", "these"), ("あの", "that", "those"))
_OWNERS = (
    ("彼の", "his"),
    ("彼女の", "her"),
    ("あなたの", "your"),
    ("田中さんの", "Mr. Tanaka's"),
    ("マリアの", "Maria's"),
)
_MY_OWNERS = (("私の", "my"), ("母の", "my mother's"), ("父の", "my father's"))
_SCENE_DECK = Weighted(SCENES, [len(scene.nouns) + len(scene.places) for scene in SCENES])
_FEELING_DECK = Weighted(FEELINGS, [len(feeling.nouns) for feeling in FEELINGS])


def _draw_tense(dice: Dice) -> str:
    return PAST if dice.chance(0.3) else PRESENT


@cache
def _definite_subject(noun: Noun, singular: str, plural: str) -> Person:
    """A noun as a subject: this book, these shoes, the bread."""
    many = noun.kind == "pl"
    return Person(noun.ja, f"{plural if many else singular} {noun.one}", "thing", "their" if many else "its")


def _draw_temporary_time(dice: Dice) -> tuple[str, Time | None]:
    """A random tense and time of a temporary state, such as being busy or being somewhere."""
    share = dice.roll()
    if share < 0.3:
        return PRESENT, None
    if share < 0.45:
        return PRESENT, NOW
    if share < 0.55:
        return PAST, None
    return (PAST, dice.pick(_NEARBY_PAST)) if share < 0.8 else (FUTURE, dice.pick(_NEARBY_FUTURE))


def draw_scene(dice: Dice) -> Sentence | None:
    scene = _SCENE_DECK.draw(dice)
    thing, place = dice.pick(scene.nouns), dice.pick(scene.places)
    if place.ja.startswith(thing.ja):
        return None
    negative, question = draw_polarity(dice)
    mood = Mood(_draw_tense(dice), negative, question)
    ending = end_with_verb(scene.verb, mood, polite=dice.chance(0.5))
    combination = (scene.verb.ja, thing.ja, place.ja)
    if dice.chance(0.35):
        subject = _definite_subject(thing, "the", "the")
        return Sentence((thing.ja, "は", place.ja, "に", *ending), be_clause(subject, [place.here], mood), combination)
    return Sentence((place.ja, "に", thing.ja, "が", *ending), there_clause(thing, place.here, mood), combination)


def draw_whereabouts(dice: Dice) -> Sentence | None:
    negative, question = draw_polarity(dice)
    person, place = draw_subject(dice, "people", question=question), dice.pick(WHEREABOUTS)
    tense, time = _draw_temporary_time(dice)
    mood = Mood(tense, negative, question)
    ending = end_with_verb(_BE_SOMEWHERE, mood, polite=dice.chance(0.5))
    units = (*subject_and_time(dice, person, time), place.ja, "に", *ending)
    here = place.here.replace(" own ", f" {person.possessive} ")
    target = be_clause(person, [here, time.en if time else ""], mood)
    return Sentence(units, target, ("いる", person.en, place.ja))


_BE_SOMEWHERE = Verb("いる", "ichidan", "be", "was")


def draw_description(dice: Dice) -> Sentence | None:
    adjective, nouns = dice.pick(DESCRIPTIONS)
    thing, ownable = dice.pick(nouns)
    negative, question = draw_polarity(dice)
    mood = Mood(_draw_tense(dice), negative, question)
    if ownable and dice.chance(0.5):
        ja, en = dice.pick(_OWNERS if question else _OWNERS + _MY_OWNERS)
        subject = _definite_subject(thing, en, en)
    else:
        ja, one, many = dice.pick(_DEMONSTRATIVES)
        subject = _definite_subject(thing, one, many)
    ending = end_with_adjective(adjective.ja, adjective.kind, mood, polite=dice.chance(0.5))
    return Sentence((ja, thing.ja, "は", *ending), be_clause(subject, [adjective.en], mood), (adjective.ja, thing.ja))


def draw_trait(dice: Dice) -> Sentence | None:
    adjective = dice.pick(TRAITS)
    negative, question = draw_polarity(dice)
    person = draw_subject(dice, "adults", question=question)
    if person.role == "self" and adjective not in SELF_TRAITS:
        return None
    tense, time = _draw_temporary_time(dice) if adjective.passing else (_draw_tense(dice), None)
    mood = Mood(tense, negative, question)
    ending = end_with_adjective(adjective.ja, adjective.kind, mood, polite=dice.chance(0.5))
    target = be_clause(person, [adjective.en, time.en if time else ""], mood)
    return Sentence((*subject_and_time(dice, person, time), *ending), target, (adjective.ja, person.en))


def draw_occupation(dice: Dice) -> Sentence | None:
    work = dice.pick(OCCUPATIONS)
    negative, question = draw_polarity(dice)
    person = draw_subject(dice, "adults", question=question)
    if person.en == "the teacher" or person.plural:
        return None
    mood = Mood(_draw_tense(dice), negative, question)
    ending = end_with_adjective(work.ja, NA_ADJECTIVE, mood, polite=dice.chance(0.5))
    target = be_clause(person, [noun_phrase(work, plural=False)], mood)
    return Sentence((*subject_and_time(dice, person, None), *ending), target, (work.ja, person.en))


def draw_feeling(dice: Dice) -> Sentence | None:
    feeling = _FEELING_DECK.draw(dice)
    thing = dice.pick(feeling.nouns)
    negative, question = draw_polarity(dice, deniable=not feeling.undeniable)
    person = draw_subject(dice, feeling.who, question=question)
    mood = Mood(_draw_tense(dice), negative, question)
    object_phrase = noun_phrase(thing, plural=feeling.plural)
    if feeling.be:
        target = be_clause(person, [feeling.en, object_phrase], mood)
    else:
        target = clause(person, Verb("", "", feeling.en, feeling.past), [object_phrase], mood)
    ending = end_with_adjective(feeling.ja, feeling.kind, mood, polite=dice.chance(0.5))
    return Sentence((*subject_and_time(dice, person, None), thing.ja, "が", *ending), target, (feeling.ja, thing.ja))


_Draw = Callable[[Dice], "Sentence | None"]
_TYPES: Weighted[_Draw] = Weighted(
    [draw_action, draw_scene, draw_whereabouts, draw_description, draw_trait, draw_occupation, draw_feeling],
    [0.62, 0.08, 0.04, 0.12, 0.04, 0.03, 0.07],
)


def draw_sentence(dice: Dice) -> Sentence:
    """One random sentence of any type, with at most MAX_WORDS English words."""
    while True:
        sentence = _TYPES.draw(dice)(dice)
        if sentence is not None and sentence.target.count(" ") < MAX_WORDS:
            return sentence


def combinations() -> Iterator[tuple[str, ...]]:
    """Every combination of the grammar; some appear more than once."""
    yield from action_combinations()
    for scene in SCENES:
        places = [place.ja for place in scene.places]
        yield from ((scene.verb.ja, thing.ja, place) for thing in scene.nouns for place in places)
    yield from (("いる", person.en, place.ja) for person in PEOPLE for place in WHEREABOUTS)
    yield from ((adjective.ja, thing.ja) for adjective, nouns in DESCRIPTIONS for thing, _ in nouns)
    yield from ((adjective.ja, person.en) for adjective in TRAITS for person in PEOPLE if person.adult)
    yield from ((work.ja, person.en) for work in OCCUPATIONS for person in PEOPLE if person.adult)
    yield from ((feeling.ja, thing.ja) for feeling in FEELINGS for thing in feeling.nouns)
