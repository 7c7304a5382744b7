"""Sentences with an acting verb: (time) (subject は) (adverb) (place で) (object を) verb.

What is drawn, in this order: a frame, polarity, the subject, object and place, then time and adverb that suit them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chumoku.data.grammar.dice import Dice, Weighted
from chumoku.data.grammar.english import FUTURE, PAST, PRESENT, Mood, clause, phrase
from chumoku.data.grammar.inflection import NA_ADJECTIVE
from chumoku.data.grammar.lexicon.adjectives import ATTRIBUTES
from chumoku.data.grammar.lexicon.frame import ACCIDENT, EVENT, STATE, Frame
from chumoku.data.grammar.lexicon.indoors import INDOORS
from chumoku.data.grammar.lexicon.outdoors import OUTDOORS
from chumoku.data.grammar.lexicon.people import OWN_KIN
from chumoku.data.grammar.lexicon.places import CLOSED, FOR_ADULTS
from chumoku.data.grammar.lexicon.tables import Adjective, Noun, Person, Place, Time
from chumoku.data.grammar.lexicon.times import AFTER, BEFORE, EVERY, GENERAL, MANNER, OFTEN, SEASONS, SELDOM, Frequency
from chumoku.data.grammar.lexicon.trade import DEALINGS
from chumoku.data.grammar.sentence import Sentence, act, draw_polarity, draw_subject, opening

FRAMES = INDOORS + DEALINGS + OUTDOORS
FOR_WOMEN = frozenset(("スカート", "ドレス"))
_SEEN_FROM_OUTSIDE = ("楽しそうに", "上手に")  # one does not say these of oneself


class Timing(NamedTuple):
    tense: str
    time: Time | None = None
    frequency: Frequency | None = None
    recurring: bool = False  # 毎朝: each time one apple


class Scope:
    """A frame with the times that suit it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        recurring = [int(scale) for scale in frame.every]
        general = GENERAL + SEASONS if frame.seasons else GENERAL
        self.every = self._suiting(EVERY, recurring)
        self.general = self._suiting(general, recurring)
        mentioned = list(range(frame.since, frame.span + 1))
        self.before = self._suiting(BEFORE, mentioned)
        self.after = self._suiting(AFTER, mentioned)
        self.often = OFTEN if "0" in frame.every else OFTEN[::2]

    def _suiting(self, times: tuple[Time, ...], scales: list[int]) -> tuple[Time, ...]:
        momentary = self.frame.at != "に" and self.frame.span < 2
        parts = ("", "weekend", *self.frame.parts, *(["moment"] if momentary else []))
        return tuple(time for time in times if time.scale in scales and time.part in parts)

    @property
    def weight(self) -> int:
        """Grows with the number of its words, so that every word is seen about as often; and its verb as well."""
        return 8 + len(self.frame.objects) + len(self.frame.places)


_SCOPES = [Scope(frame) for frame in FRAMES]
_DECK = Weighted(_SCOPES, [scope.weight for scope in _SCOPES])


class Scheme(NamedTuple):
    """Everything about an action but its time and adverb."""

    scope: Scope
    subject: Person
    thing: Noun | None
    adjective: Adjective | None
    place: Place | None
    negative: bool
    question: bool


def draw_action(dice: Dice) -> Sentence | None:
    """One sentence, or none when what was drawn does not go together."""
    scheme = _scheme(dice)
    if _clashes(scheme):
        return None
    timing = _timing(dice, scheme)
    if timing.time is not None and _closed(scheme, timing.time):
        return None
    manner = _manner(dice, scheme, timing)
    thing, place, adjective = scheme.thing, scheme.place, scheme.adjective
    words = (thing.ja if thing else "", place.ja if place else "", *([adjective.ja] if adjective else []))
    return Sentence(
        tuple(_japanese(dice, scheme, timing, manner)),
        _english(scheme, timing, manner),
        (scheme.scope.frame.verb.ja, *words),
    )


def _scheme(dice: Dice) -> Scheme:
    scope = _DECK.draw(dice)
    frame = scope.frame
    negative, question = draw_polarity(dice)
    subject = draw_subject(dice, frame.who, question=question)
    thing = dice.pick(frame.objects) if frame.objects else None
    placed = frame.bound or (frame.places and dice.chance(0.6 if frame.objects else 0.8))
    place = dice.pick(frame.places) if placed else None
    adjective = None
    if frame.described and thing and not place and not negative and dice.chance(0.4):
        fitting = ATTRIBUTES.get(thing.ja)
        adjective = dice.pick(fitting) if fitting else None
    return Scheme(scope, subject, thing, adjective, place, negative, question)


def _clashes(scheme: Scheme) -> bool:
    """Nobody meets themselves, boys are not at the office, and men do not wear skirts; each of us has a wallet."""
    subject, thing = scheme.subject, scheme.thing
    others = [phrase.ja for phrase in (thing, scheme.place) if phrase]
    kin = subject.role == "own" and any(other in OWN_KIN for other in others)
    astray = not subject.adult and any(other in FOR_ADULTS for other in others)
    dressed = subject.masculine and any(other in FOR_WOMEN for other in others)
    several = thing is not None and thing.kind == "own" and subject.plural and thing.many != thing.one
    return kin or astray or dressed or several or subject.ja in others


def _closed(scheme: Scheme, time: Time) -> bool:
    """At school at night, at the bank on Sunday."""
    shut = CLOSED.get(time.part, frozenset())
    return any(phrase.ja in shut for phrase in (scheme.thing, scheme.place) if phrase)


def _timing(dice: Dice, scheme: Scheme) -> Timing:
    scope, share = scheme.scope, dice.roll()
    if scope.frame.aspect == STATE:
        return Timing(PAST if share < 0.2 and scope.frame.span > 0 else PRESENT)
    if scope.frame.aspect in (EVENT, ACCIDENT):
        if share < 0.3:
            return Timing(PAST)
        share = 0 if scope.frame.aspect == ACCIDENT else share
        return Timing(PAST, dice.pick(scope.before)) if share < 0.75 else Timing(FUTURE, dice.pick(scope.after))
    if share < 0.55:
        return _habit(dice, scheme, share / 0.55)
    if share < 0.65:
        return Timing(PAST)
    return Timing(PAST, dice.pick(scope.before)) if share < 0.85 else Timing(FUTURE, dice.pick(scope.after))


def _habit(dice: Dice, scheme: Scheme, share: float) -> Timing:
    scope = scheme.scope
    if share < 0.2 and scope.general:
        return Timing(PRESENT, dice.pick(scope.general))
    if share < 0.45 and scope.every and not scheme.negative:
        return Timing(PRESENT, dice.pick(scope.every), recurring=True)
    if share < 0.75:
        frequency = dice.pick(SELDOM if scheme.negative else scope.often)
        tense = PAST if not scheme.question and dice.chance(0.2) else PRESENT
        return Timing(tense, frequency=frequency)
    return Timing(PRESENT)


def _manner(dice: Dice, scheme: Scheme, timing: Timing) -> str:
    frame, subject = scheme.scope.frame, scheme.subject
    if not frame.how or scheme.negative or timing.frequency or not dice.chance(0.35):
        return ""
    manner = dice.pick(frame.how)
    wrong = (
        (manner in _SEEN_FROM_OUTSIDE and subject.role == "self")
        or (manner == "家族と" and subject.role in ("own", "your"))
        or (manner == "一人で" and subject.plural)
    )
    return "" if wrong else manner


def _japanese(dice: Dice, scheme: Scheme, timing: Timing, manner: str) -> Iterator[str]:
    frame = scheme.scope.frame
    phrases = [[scheme.place.ja, frame.at]] if scheme.place else []
    if scheme.thing:
        swapped = bool(phrases) and frame.particle != frame.at and dice.chance(0.3)
        phrases.insert(0 if swapped else len(phrases), _object(dice, scheme.thing, scheme.adjective, frame))
    adverb = timing.frequency.ja if timing.frequency else manner
    if adverb:
        phrases.insert(int(dice.roll() * (len(phrases) + 1)), [adverb])
    yield from opening(dice, scheme.subject, timing.time)
    for units in phrases:
        yield from units
    mood = Mood(timing.tense, scheme.negative, scheme.question)
    yield from act(frame.verb, mood, polite=dice.chance(0.5))


def _object(dice: Dice, thing: Noun, adjective: Adjective | None, frame: Frame) -> list[str]:
    particle = dice.pick(frame.particle.split("/")) if "/" in frame.particle else frame.particle
    if adjective is None:
        return [thing.ja, particle]
    qualities = [adjective.ja, "な"] if adjective.kind == NA_ADJECTIVE else [adjective.ja[:-1], "い"]
    return [*qualities, thing.ja, particle]


def _english(scheme: Scheme, timing: Timing, manner: str) -> str:
    frame, subject, frequency = scheme.scope.frame, scheme.subject, timing.frequency
    rest = []
    if scheme.thing:
        described = scheme.adjective.en if scheme.adjective else ""
        plural = _of_the_kind(scheme, timing)
        rest.append(phrase(scheme.thing, plural=plural, owner=subject, adjective=described))
    if manner:
        rest.append(MANNER[manner].replace(" own ", f" {subject.possessive} "))
    if scheme.place:
        rest.append(scheme.place.here.replace(" own ", f" {subject.possessive} "))
    if frequency:
        rest.append(frequency.behind)
    if timing.time:
        rest.append(timing.time.en)
    negative = scheme.negative and not (frequency and frequency.en)
    mood = Mood(timing.tense, negative, scheme.question)
    return clause(subject, frame.verb, rest, mood, adverb=frequency.en if frequency else "")


def _of_the_kind(scheme: Scheme, timing: Timing) -> bool:
    """Whether English speaks of apples rather than an apple: a habit asked after, denied or counted, or one each."""
    if scheme.scope.frame.aspect == STATE:
        return False
    if scheme.scope.frame.kinds or timing.frequency or (scheme.scope.frame.each and scheme.subject.plural):
        return True
    return timing.tense == PRESENT and not timing.recurring and (scheme.negative or scheme.question)


def action_combinations() -> Iterator[tuple[str, ...]]:
    """Every combination an action can have."""
    for frame in FRAMES:
        verb = frame.verb.ja
        places = [*([] if frame.bound else [""]), *(place.ja for place in frame.places)]
        for thing in frame.objects or [None]:
            name = thing.ja if thing else ""
            yield from ((verb, name, place) for place in places if not place or place != name)
            if frame.described and not frame.bound:
                yield from ((verb, name, "", adjective.ja) for adjective in ATTRIBUTES.get(name, ()))
