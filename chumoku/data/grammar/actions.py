"""Sentences with an action verb: (time) (subject は) (adverb) (place で) (object を) verb.

Drawn in this order: a frame, polarity, the subject, object and place, then a time and an adverb that fit all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chumoku.data.grammar.dice import Dice, Weighted
from chumoku.data.grammar.english import FUTURE, PAST, PRESENT, Mood, clause, noun_phrase
from chumoku.data.grammar.inflection import NA_ADJECTIVE
from chumoku.data.grammar.lexicon.adjectives import ATTRIBUTES
from chumoku.data.grammar.lexicon.frame import ACCIDENT, EVENT, FRAMES, STATE, Frame
from chumoku.data.grammar.lexicon.people import OWN_KIN
from chumoku.data.grammar.lexicon.tables import Adjective, Noun, Person, Place, Time
from chumoku.data.grammar.lexicon.times import AFTER, BEFORE, EVERY, GENERAL, MANNER, OFTEN, SEASONS, SELDOM, Frequency
from chumoku.data.grammar.lexicon.words import CLOSED, FOR_ADULTS
from chumoku.data.grammar.sentence import Sentence, draw_polarity, end_with_verb, subject_and_time
from chumoku.data.grammar.subjects import draw_subject

FOR_WOMEN = frozenset(("スカート", "ドレス"))
_NOT_ABOUT_ONESELF = ("楽しそうに", "上手に")  # not said about oneself


class Timing(NamedTuple):
    tense: str
    time: Time | None = None
    frequency: Frequency | None = None
    recurring: bool = False  # 毎朝: one apple each time


class TimedFrame:
    """A frame with the times that fit it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        recurring = [int(scale) for scale in frame.every]
        general = GENERAL + SEASONS if frame.seasons else GENERAL
        self.every = self._select_times(EVERY, recurring)
        self.general = self._select_times(general, recurring)
        scales = list(range(frame.since, frame.span + 1))
        self.before = self._select_times(BEFORE, scales)
        self.after = self._select_times(AFTER, scales)
        self.often = OFTEN if "0" in frame.every else OFTEN[::2]

    def _select_times(self, times: tuple[Time, ...], scales: list[int]) -> tuple[Time, ...]:
        momentary = self.frame.at != "に" and self.frame.span < 2
        parts = ("", "weekend", *self.frame.parts, *(["moment"] if momentary else []))
        return tuple(time for time in times if time.scale in scales and time.part in parts)

    @property
    def weight(self) -> int:
        """The drawing weight: it grows with the number of words, so that all words are about equally frequent."""
        return 8 + len(self.frame.objects) + len(self.frame.places)


_TIMED_FRAMES = [TimedFrame(frame) for frame in FRAMES]
_WEIGHTED_FRAMES = Weighted(_TIMED_FRAMES, [timed.weight for timed in _TIMED_FRAMES])


class ActionPlan(NamedTuple):
    """All parts of an action except its time and adverb."""

    timed: TimedFrame
    subject: Person
    thing: Noun | None
    adjective: Adjective | None
    place: Place | None
    negative: bool
    question: bool


def draw_action(dice: Dice) -> Sentence | None:
    """One random sentence, or None if the drawn words do not fit together."""
    plan = _plan_action(dice)
    if _is_implausible(plan):
        return None
    timing = _draw_timing(dice, plan)
    if timing.time is not None and _is_closed(plan, timing.time):
        return None
    manner = _draw_manner(dice, plan, timing)
    thing, place, adjective = plan.thing, plan.place, plan.adjective
    words = (thing.ja if thing else "", place.ja if place else "", *([adjective.ja] if adjective else []))
    return Sentence(
        tuple(_to_japanese(dice, plan, timing, manner)),
        _to_english(plan, timing, manner),
        (plan.timed.frame.verb.ja, *words),
    )


def _plan_action(dice: Dice) -> ActionPlan:
    timed = _WEIGHTED_FRAMES.draw(dice)
    frame = timed.frame
    negative, question = draw_polarity(dice)
    subject = draw_subject(dice, frame.who, question=question)
    thing = dice.pick(frame.objects) if frame.objects else None
    placed = frame.bound or (frame.places and dice.chance(0.6 if frame.objects else 0.8))
    place = dice.pick(frame.places) if placed else None
    adjective = None
    if frame.described and thing and not place and not negative and dice.chance(0.4):
        fitting = ATTRIBUTES.get(thing.ja)
        adjective = dice.pick(fitting) if fitting else None
    return ActionPlan(timed, subject, thing, adjective, place, negative, question)


def _is_implausible(plan: ActionPlan) -> bool:
    """Whether a subject meets itself, a child is at the office, a man wears a skirt, or several people own a thing."""
    subject, thing = plan.subject, plan.thing
    others = [word.ja for word in (thing, plan.place) if word]
    family = subject.role == "own" and any(other in OWN_KIN for other in others)
    child_at_work = not subject.adult and any(other in FOR_ADULTS for other in others)
    wrong_clothes = subject.masculine and any(other in FOR_WOMEN for other in others)
    several_owners = thing is not None and thing.kind == "own" and subject.plural and thing.many != thing.one
    return family or child_at_work or wrong_clothes or several_owners or subject.ja in others


def _is_closed(plan: ActionPlan, time: Time) -> bool:
    """Whether a place is closed at that time: school at night, the bank on Sunday."""
    closed = CLOSED.get(time.part, frozenset())
    return any(word.ja in closed for word in (plan.thing, plan.place) if word)


def _draw_timing(dice: Dice, plan: ActionPlan) -> Timing:
    timed, share = plan.timed, dice.roll()
    if timed.frame.aspect == STATE:
        return Timing(PAST if share < 0.2 and timed.frame.span > 0 else PRESENT)
    if timed.frame.aspect in (EVENT, ACCIDENT):
        if share < 0.3:
            return Timing(PAST)
        share = 0 if timed.frame.aspect == ACCIDENT else share
        return Timing(PAST, dice.pick(timed.before)) if share < 0.75 else Timing(FUTURE, dice.pick(timed.after))
    if share < 0.55:
        return _draw_habit(dice, plan, share / 0.55)
    if share < 0.65:
        return Timing(PAST)
    return Timing(PAST, dice.pick(timed.before)) if share < 0.85 else Timing(FUTURE, dice.pick(timed.after))


def _draw_habit(dice: Dice, plan: ActionPlan, share: float) -> Timing:
    timed = plan.timed
    if share < 0.2 and timed.general:
        return Timing(PRESENT, dice.pick(timed.general))
    if share < 0.45 and timed.every and not plan.negative:
        return Timing(PRESENT, dice.pick(timed.every), recurring=True)
    if share < 0.75:
        frequency = dice.pick(SELDOM if plan.negative else timed.often)
        tense = PAST if not plan.question and dice.chance(0.2) else PRESENT
        return Timing(tense, frequency=frequency)
    return Timing(PRESENT)


def _draw_manner(dice: Dice, plan: ActionPlan, timing: Timing) -> str:
    frame, subject = plan.timed.frame, plan.subject
    if not frame.how or plan.negative or timing.frequency or not dice.chance(0.35):
        return ""
    manner = dice.pick(frame.how)
    wrong = (
        (manner in _NOT_ABOUT_ONESELF and subject.role == "self")
        or (manner == "家族と" and subject.role in ("own", "your"))
        or (manner == "一人で" and subject.plural)
    )
    return "" if wrong else manner


def _to_japanese(dice: Dice, plan: ActionPlan, timing: Timing, manner: str) -> Iterator[str]:
    frame = plan.timed.frame
    phrases = [[plan.place.ja, frame.at]] if plan.place else []
    if plan.thing:
        swapped = bool(phrases) and frame.particle != frame.at and dice.chance(0.3)
        phrases.insert(0 if swapped else len(phrases), _object_phrase(dice, plan.thing, plan.adjective, frame))
    adverb = timing.frequency.ja if timing.frequency else manner
    if adverb:
        phrases.insert(int(dice.roll() * (len(phrases) + 1)), [adverb])
    yield from subject_and_time(dice, plan.subject, timing.time)
    for units in phrases:
        yield from units
    mood = Mood(timing.tense, plan.negative, plan.question)
    yield from end_with_verb(frame.verb, mood, polite=dice.chance(0.5))


def _object_phrase(dice: Dice, thing: Noun, adjective: Adjective | None, frame: Frame) -> list[str]:
    particle = dice.pick(frame.particle.split("/")) if "/" in frame.particle else frame.particle
    if adjective is None:
        return [thing.ja, particle]
    qualities = [adjective.ja, "な"] if adjective.kind == NA_ADJECTIVE else [adjective.ja[:-1], "い"]
    return [*qualities, thing.ja, particle]


def _to_english(plan: ActionPlan, timing: Timing, manner: str) -> str:
    frame, subject, frequency = plan.timed.frame, plan.subject, timing.frequency
    rest = []
    if plan.thing:
        described = plan.adjective.en if plan.adjective else ""
        plural = _is_generic(plan, timing)
        rest.append(noun_phrase(plan.thing, plural=plural, owner=subject, adjective=described))
    if manner:
        rest.append(MANNER[manner].replace(" own ", f" {subject.possessive} "))
    if plan.place:
        rest.append(plan.place.here.replace(" own ", f" {subject.possessive} "))
    if frequency:
        rest.append(frequency.behind)
    if timing.time:
        rest.append(timing.time.en)
    negative = plan.negative and not (frequency and frequency.en)
    mood = Mood(timing.tense, negative, plan.question)
    return clause(subject, frame.verb, rest, mood, adverb=frequency.en if frequency else "")


def _is_generic(plan: ActionPlan, timing: Timing) -> bool:
    """Whether English uses the plural "apples" instead of "an apple": for habits in questions, negations or with a
    frequency, and when several people have one each."""
    if plan.timed.frame.aspect == STATE:
        return False
    if plan.timed.frame.kinds or timing.frequency or (plan.timed.frame.each and plan.subject.plural):
        return True
    return timing.tense == PRESENT and not timing.recurring and (plan.negative or plan.question)


def action_combinations() -> Iterator[tuple[str, ...]]:
    """Every possible combination of an action."""
    for frame in FRAMES:
        verb = frame.verb.ja
        places = [*([] if frame.bound else [""]), *(place.ja for place in frame.places)]
        for thing in frame.objects or [None]:
            name = thing.ja if thing else ""
            yield from ((verb, name, place) for place in places if not place or place != name)
            if frame.described and not frame.bound:
                yield from ((verb, name, "", adjective.ja) for adjective in ATTRIBUTES.get(name, ()))
