"""Japanese inflection: a word and three flags give a form.

    form(word, past, negative, polite) = stem + ending        飲む → 飲み + ませんでした

The stem of a verb depends on its class and on the ending that follows:

    godan     飲む   飲み+ます   飲ま+ない   飲ん+だ      the last kana moves along its row of the kana table
    ichidan   食べる 食べ+ます   食べ+ない   食べ+た      る falls away
    する      する   し+ます     し+ない     し+た
    来る      来る   来+ます     来+ない     来+た        in kana: き, こ, き

Stem and ending are returned separately: they are the units in which the corpus counts its words.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

GODAN, ICHIDAN, SURU, KURU = "godan", "ichidan", "suru", "kuru"
I_ADJECTIVE, NA_ADJECTIVE = "i", "na"

# Last kana → its stem before ます, its stem before ない, its stem before た/だ, and which of た/だ follows.
_GODAN_ROWS = {
    "う": ("い", "わ", "っ", "た"),
    "く": ("き", "か", "い", "た"),
    "ぐ": ("ぎ", "が", "い", "だ"),
    "す": ("し", "さ", "し", "た"),
    "つ": ("ち", "た", "っ", "た"),
    "ぬ": ("に", "な", "ん", "だ"),
    "ぶ": ("び", "ば", "ん", "だ"),
    "む": ("み", "ま", "ん", "だ"),
    "る": ("り", "ら", "っ", "た"),
}
_POLITE_ENDINGS = {
    (False, False): "ます",
    (False, True): "ません",
    (True, False): "ました",
    (True, True): "ませんでした",
}
_I_ENDINGS = {(False, False): "い", (False, True): "くない", (True, False): "かった", (True, True): "くなかった"}
_PLAIN_COPULA = {(False, False): "だ", (False, True): "じゃない", (True, False): "だった", (True, True): "じゃなかった"}
_POLITE_COPULA = {
    (False, False): "です",
    (False, True): "じゃありません",
    (True, False): "でした",
    (True, True): "じゃありませんでした",
}


class Form(NamedTuple):
    """An inflected word in two units; the ending may be empty."""

    stem: str
    ending: str

    @property
    def text(self) -> str:
        return self.stem + self.ending


class _Stems(NamedTuple):
    polite: str  # before ます
    negative: str  # before ない
    past: str  # before た or だ
    past_ending: str


def _stems(verb: str, kind: str) -> _Stems:
    if kind == ICHIDAN:
        return _Stems(verb[:-1], verb[:-1], verb[:-1], "た")
    if kind == SURU:
        stem = verb.removesuffix("する") + "し"
        return _Stems(stem, stem, stem, "た")
    if kind == KURU:
        head = verb.removesuffix("くる")
        return _Stems(head + "き", head + "こ", head + "き", "た") if head != verb else _Stems("来", "来", "来", "た")
    polite, negative, past, ending = _GODAN_ROWS[verb[-1]]
    head = verb[:-1]
    if verb.endswith("行く"):
        past = "っ"
    return _Stems(head + polite, "" if verb == "ある" else head + negative, head + past, ending)


@cache
def conjugate(verb: str, kind: str, *, past: bool = False, negative: bool = False, polite: bool = False) -> Form:
    """A verb of class `kind` in one of its eight forms."""
    stems = _stems(verb, kind)
    if polite:
        return Form(stems.polite, _POLITE_ENDINGS[past, negative])
    if negative:
        return Form(stems.negative, "なかった" if past else "ない")
    return Form(stems.past, stems.past_ending) if past else Form(verb, "")


@cache
def inflect_adjective(
    word: str, kind: str, *, past: bool = False, negative: bool = False, polite: bool = False
) -> Form:
    """The predicate form of an い-adjective, or of a な-adjective or noun with its copula."""
    if kind == I_ADJECTIVE:
        stem = word[:-1]
        if word == "いい" and (past or negative):
            stem = "よ"
        return Form(stem, _I_ENDINGS[past, negative] + ("です" if polite else ""))
    return Form(word, (_POLITE_COPULA if polite else _PLAIN_COPULA)[past, negative])


def make_question(form: Form, *, polite: bool, copula: bool = False) -> Form:
    """The question of an affirmative form: 食べますか, 食べるの？. A plain copula changes from だ to な: 静かなの？."""
    if polite:
        return Form(form.stem, form.ending + "か")
    ending = "な" if copula and form.ending == "だ" else form.ending
    return Form(form.stem, ending + "の？")
