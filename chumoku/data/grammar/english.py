"""English sentences: subject and tense decide the form of the verb, the next word decides the article.

    statement   subject (adverb) verb[tense, person] rest.      She often drinks tea.
    negation    subject do[tense, person]n't verb rest.         She doesn't drink tea.
    question    Do[tense, person] subject (adverb) verb rest?   Does she drink tea?

`clause` builds these for full verbs, `be_clause` for am, is and are. Both return a finished sentence.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from chumoku.data.grammar.lexicon.tables import Noun, Person, Verb

PRESENT, PAST, FUTURE = "present", "past", "future"
_SOUNDS_LIKE_CONSONANT = ("uni", "use")
_SOUNDS_LIKE_VOWEL = ("hour", "honest")


class Mood(NamedTuple):
    """Tense, negation and question, which all sentence types share."""

    tense: str = PRESENT
    negative: bool = False
    question: bool = False


def with_article(words: str) -> str:
    """The words with an indefinite article that fits their first sound: an apple, a uniform."""
    vowel = words[0].lower() in "aeiou" and not words.startswith(_SOUNDS_LIKE_CONSONANT)
    return ("an " if vowel or words.startswith(_SOUNDS_LIKE_VOWEL) else "a ") + words


@cache
def noun_phrase(noun: Noun, *, plural: bool, owner: Person | None = None, adjective: str = "") -> str:
    """A noun with its article, adjective and number: a sweet mandarin, sweet mandarins, the piano, my face."""
    if noun.kind == "own" and owner is not None:
        return f"{owner.possessive} {noun.many if owner.plural else noun.one}"
    bare = noun.many if plural else noun.one
    described = f"{adjective} {bare}" if adjective else bare
    if noun.kind == "the":
        return f"the {described}"
    return with_article(described) if noun.kind == "a" and not plural else described


@cache
def third_person(verb: str) -> str:
    """The third person of a verb: eats, washes, studies, has. In a phrase the first word changes: looks for."""
    head, _, rest = verb.partition(" ")
    if head == "have":
        head = "has"
    elif head.endswith(("s", "sh", "ch", "x", "o")):
        head += "es"
    elif head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "ies"
    else:
        head += "s"
    return f"{head} {rest}" if rest else head


def to_sentence(words: list[str], *, question: bool) -> str:
    """Join the words that are not empty into a sentence, with a capital letter and "." or "?"."""
    text = " ".join([word for word in words if word])
    return text[0].upper() + text[1:] + ("?" if question else ".")


def clause(subject: Person, verb: Verb, rest: list[str], mood: Mood, *, adverb: str = "") -> str:
    """A sentence whose predicate is a full verb."""
    tense, negative, question = mood
    helper = {FUTURE: "will", PAST: "did"}.get(tense) or ("does" if subject.third else "do")
    if question:
        return to_sentence([helper, subject.en, adverb, verb.en, *rest], question=True)
    if negative:
        denial = "won't" if helper == "will" else f"{helper}n't"
        return to_sentence([subject.en, denial, adverb, verb.en, *rest], question=False)
    if tense == FUTURE:
        return to_sentence([subject.en, "will", adverb, verb.en, *rest], question=False)
    inflected = verb.past if tense == PAST else third_person(verb.en) if subject.third else verb.en
    return to_sentence([subject.en, adverb, inflected, *rest], question=False)


def be_form(subject: Person, tense: str) -> str:
    """The form of "be" for a subject: am, is, are, was or were."""
    if tense == PAST:
        return "was" if subject.third or subject.en == "I" else "were"
    return "is" if subject.third else "am" if subject.en == "I" else "are"


def be_clause(subject: Person, rest: list[str], mood: Mood) -> str:
    """A sentence whose verb is "be"."""
    tense, negative, question = mood
    if tense == FUTURE:
        if question:
            return to_sentence(["will", subject.en, "be", *rest], question=True)
        return to_sentence([subject.en, "won't be" if negative else "will be", *rest], question=False)
    form = be_form(subject, tense)
    if question:
        return to_sentence([form, subject.en, *rest], question=True)
    denied = "am not" if form == "am" else f"{form}n't"
    return to_sentence([subject.en, denied if negative else form, *rest], question=False)


def there_clause(noun: Noun, place: str, mood: Mood) -> str:
    """There is a book on the desk. There are no books in the box. Is there any bread on the table?"""
    none = mood.negative and not mood.question
    many = noun.kind == "pl" or (noun.kind == "a" and none)
    form = ("were" if many else "was") if mood.tense == PAST else ("are" if many else "is")
    indefinite = noun_phrase(noun, plural=False)
    if mood.question:
        return to_sentence([form, "there", indefinite if noun.kind == "a" else f"any {noun.one}", place], question=True)
    return to_sentence(
        ["there", form, f"no {noun.many if many else noun.one}" if none else indefinite, place], question=False
    )
