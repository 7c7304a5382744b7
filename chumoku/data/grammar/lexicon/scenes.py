"""What is where, what is liked, and who is what: the tables of the sentences without an acting verb."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon import food, nature, nouns, people, places
from chumoku.data.grammar.lexicon.places import AROUND, IN, ON, UNDER, at, sides
from chumoku.data.grammar.lexicon.tables import Noun, Place, Verb, only
from chumoku.data.grammar.lexicon.verbs import VERBS

_SMALL = nouns.STATIONERY + nouns.DEVICES[1:3] + nouns.BELONGINGS + nouns.READING[:7] + nouns.GLASSES
_COLD = food.FRUIT + food.INGREDIENTS + food.DRINKS[2:5] + food.ALCOHOL[:2] + only(food.SNACKS, "ケーキ アイスクリーム")
_SERVED = food.FRUIT[:6] + food.SNACKS + nouns.CROCKERY + nouns.PRESENTS
_FOLDED = nouns.HATS[:1] + nouns.ACCESSORIES + only(nouns.CLOTHES, "シャツ セーター") + nouns.LEGWEAR[1:3]


class Scene(NamedTuple):
    """Things that may be in any of these places."""

    verb: Verb
    nouns: tuple[Noun, ...]
    places: tuple[Place, ...]


SCENES = (
    Scene(VERBS["ある"], _SMALL, sides(places.SURFACES[:3], ON) + sides(places.CONTAINERS[1:], IN)),
    Scene(VERBS["ある"], _COLD, sides(places.FRIDGE, IN)),
    Scene(VERBS["ある"], _SERVED, sides(places.SURFACES[1:2], ON)),
    Scene(VERBS["ある"], _FOLDED, sides(places.SURFACES[3:], ON) + sides(places.CONTAINERS, IN)),
    Scene(VERBS["ある"], nature.BUILDINGS, sides(places.GROUNDS, *AROUND)),
    Scene(VERBS["ある"], nature.RIDES[::2] + nature.CARS, sides(places.SHELTERS[2:4], *AROUND[:3])),
    Scene(
        VERBS["いる"],
        nature.PETS[:3],
        sides(places.SURFACES, UNDER) + sides(places.SHELTERS[:2], UNDER) + at("庭 公園 居間"),
    ),
    Scene(VERBS["いる"], nature.PETS[:3], sides(places.SHELTERS[2:4] + places.GROUNDS[:3], *AROUND[:2])),
    Scene(VERBS["いる"], nature.ZOO, at("動物園")),
    Scene(VERBS["いる"], nature.FARM, at("牧場 農場")),
    Scene(VERBS["いる"], nature.WILD, at("森 山 動物園")),
    Scene(VERBS["いる"], nature.MARINE[:2], at("水族館 海")),
    Scene(VERBS["いる"], nature.INSECTS, at("庭 公園 森")),
)


class Feeling(NamedTuple):
    """A predicate over が: 猫が好きだ. English says it with a verb, or with to be and a phrase."""

    ja: str
    kind: str
    en: str
    past: str
    be: bool
    nouns: tuple[Noun, ...]
    plural: bool  # English speaks of the kind: I like cats
    who: str = "people"
    deniable: bool = True


_LIKED = (
    nature.PETS + nature.ZOO + nature.MARINE + nature.PLANTS + food.FRUIT + food.SNACKS + food.MEALS + food.INGREDIENTS
    + food.DRINKS + nouns.SPORTS + nouns.GAMES + nouns.LANGUAGES + nouns.SUBJECTS + nouns.PASTIMES + nouns.SOUNDS[:2]
)  # fmt: skip
_ARTS = nouns.SPORTS + nouns.INSTRUMENTS + nouns.LANGUAGES + nouns.GAMES[:2] + nouns.SUBJECTS[:4] + nouns.PASTIMES
_WANTED = (
    nouns.STATIONERY + nouns.DEVICES + nouns.CLOTHES + nouns.LEGWEAR[:2] + nature.PETS + nature.CARS + nouns.CRAFTS
)
_NEEDED = nouns.STATIONERY + nouns.BELONGINGS + nature.NEEDS + food.MEDICINE + food.DRINKS[2:4] + nouns.DEVICES[::3]

FEELINGS = (
    Feeling("好き", "na", "like", "liked", False, _LIKED, True),
    Feeling("大好き", "na", "love", "loved", False, _LIKED, True, deniable=False),
    Feeling("嫌い", "na", "hate", "hated", False, _LIKED[:20] + food.INGREDIENTS + nouns.SUBJECTS, True),
    Feeling("上手", "na", "good at", "", True, _ARTS, True, who="others"),
    Feeling("苦手", "na", "bad at", "", True, _ARTS, True),
    Feeling("欲しい", "i", "want", "wanted", False, _WANTED, False, who="speakers"),
    Feeling("必要", "na", "need", "needed", False, _NEEDED, False),
)

WHEREABOUTS = places.INDOORS
OCCUPATIONS = people.OCCUPATIONS
