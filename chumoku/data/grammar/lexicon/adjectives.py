"""What things and people are like, and which of them are like that.

A row of `DESCRIBED` reads: these nouns, the adjectives that stand before them and behind, those that only stand behind.
"""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon import food, nature, nouns
from chumoku.data.grammar.lexicon.tables import Adjective, Noun, only, rows

_TABLE = """
面白い i interesting
難しい i difficult
新しい i new
古い i old
長い i long
短い i short
厚い i thick
高い i expensive
安い i cheap
大きい i big
小さい i small
重い i heavy
軽い i light
赤い i red
青い i blue
白い i white
黒い i black
黄色い i yellow
かわいい i cute
美しい i beautiful
おいしい i delicious
甘い i sweet
辛い i spicy
苦い i bitter
すっぱい i sour
熱い i hot
冷たい i cold
暖かい i warm
明るい i bright
暗い i dark
広い i spacious
狭い i cramped
汚い i dirty
暑い i hot *
寒い i cold *
深い i deep
危ない i dangerous
強い i strong
怖い i scary
速い i fast
賢い i smart
若い i young
忙しい i busy *
優しい i kind
厳しい i strict
便利 na convenient
丈夫 na sturdy
新鮮 na fresh
簡単 na easy
退屈 na boring
有名 na famous
静か na quiet
きれい na clean
にぎやか na lively
立派 na splendid
安全 na safe
真面目 na serious
正直 na honest
幸せ na happy
暇 na free *
病気 na sick *
元気 na well *
"""


def _adjective(ja: str, description: str) -> Adjective:
    kind, en, *star = description.split()
    return Adjective(ja, kind, en, passing=bool(star))


ADJECTIVES = {ja: _adjective(ja, description) for ja, description in rows(_TABLE)}


def adjectives(names: str) -> tuple[Adjective, ...]:
    return tuple(ADJECTIVES[name] for name in names.split())


class Described(NamedTuple):
    nouns: tuple[Noun, ...]
    anywhere: tuple[Adjective, ...]
    behind: tuple[Adjective, ...]
    owners: bool  # whether it can be somebody's


def _row(group: tuple[Noun, ...], anywhere: str, behind: str = "", *, owners: bool = True) -> Described:
    return Described(group, adjectives(anywhere), adjectives(behind), owners)


_BOOKS = only(nouns.READING, "本 雑誌 小説 物語 教科書 絵本 漫画 記事 詩")
_VOLUMES = only(nouns.READING, "本 雑誌 小説 教科書 絵本")
_SWEETS = only(food.SNACKS, "クッキー ケーキ アイスクリーム チョコレート ドーナツ")
_DRESSES = only(nouns.CLOTHES + nouns.LEGWEAR, "ドレス スカート")
_WORN = tuple(noun for noun in nouns.CLOTHES + nouns.LEGWEAR + nouns.HATS + nouns.ACCESSORIES if noun not in _DRESSES)
_TALES = only(nouns.SHOWS, "映画 ドラマ 試合")

DESCRIBED = (
    _row(_BOOKS, "面白い 難しい 長い 短い 有名", "退屈", owners=False),
    _row(_VOLUMES, "新しい 古い 厚い", "高い 安い 重い"),
    _row(_TALES, "面白い 長い 有名", "退屈 短い", owners=False),
    _row(nouns.STAGE, "面白い 長い", "退屈", owners=False),
    _row(food.FRUIT, "甘い 新鮮 おいしい", "すっぱい 高い 安い", owners=False),
    _row(food.MEALS, "おいしい", "高い 安い", owners=False),
    _row(only(food.MEALS, "ラーメン うどん カレー スパゲッティ"), "辛い 熱い", owners=False),
    _row(_SWEETS, "甘い おいしい", "高い 安い", owners=False),
    _row(only(food.SNACKS, "サンドイッチ おにぎり ハンバーガー パン お弁当"), "おいしい 大きい 小さい", owners=False),
    _row(food.INGREDIENTS, "新鮮", "高い 安い", owners=False),
    _row(only(food.DRINKS, "お茶 コーヒー ココア"), "熱い", "苦い おいしい", owners=False),
    _row(only(food.DRINKS, "水 牛乳 ジュース コーラ"), "冷たい", "おいしい", owners=False),
    _row(food.MEDICINE, "苦い 新しい", "高い", owners=False),
    _row(_WORN, "新しい 古い 赤い 青い 白い 黒い", "高い 安い 大きい 小さい かわいい きれい 汚い"),
    _row(_DRESSES, "新しい 古い 赤い 青い 白い 黒い", "高い 安い かわいい", owners=False),
    _row(only(_WORN, "セーター コート 手袋 靴下 マフラー ブーツ"), "暖かい", "丈夫"),
    _row(nouns.STATIONERY, "新しい 古い", "便利 高い 安い"),
    _row(nouns.DEVICES + nature.CARS, "新しい 古い 赤い 黒い", "便利 高い 安い 丈夫"),
    _row(nouns.DEVICES[:2] + nouns.PARCEL + nouns.FURNITURE, "重い 軽い 大きい 小さい"),
    _row(nature.CARS + nature.RIDES[2:3], "速い", "危ない 安全"),
    _row(nouns.BELONGINGS[1:5], "新しい 古い 赤い 黒い", "高い 安い 大きい 小さい"),
    _row(nouns.FURNITURE, "新しい 古い", "高い 安い 丈夫 汚い きれい"),
    _row(nouns.CRAFTS, "かわいい 新しい 古い 大きい 小さい"),
    _row(nouns.CROCKERY, "美しい 白い 青い 新しい", "高い 安い きれい 汚い"),
    _row(nature.PLANTS, "美しい 大きい 小さい", owners=False),
    _row(nature.PLANTS[:1] + nature.PLANTS[2:3], "赤い 白い 黄色い", owners=False),
    _row(nouns.PICTURE + nouns.PRESENTS[1:], "美しい 古い 有名", "高い", owners=False),
    _row(nature.PETS, "かわいい 小さい 白い 黒い", "賢い"),
    _row(nature.FARM, "大きい 小さい", "賢い かわいい", owners=False),
    _row(nature.ZOO + nature.MARINE, "かわいい 大きい 小さい", "賢い", owners=False),
    _row(only(nature.WILD, "熊 蛇") + nature.ZOO[1:3], "怖い 大きい", "強い 危ない", owners=False),
    _row(nature.INSECTS, "大きい 小さい", owners=False),
    _row(nature.INSECTS[:2], "美しい", owners=False),
    _row(nouns.ROOMS, "", "広い 狭い 明るい 暗い 静か きれい 汚い 暑い 寒い", owners=False),
    _row(nature.BUILDINGS, "", "大きい 小さい 新しい 古い 有名 静か きれい 立派", owners=False),
    _row(nature.CROSSED[:2], "", "長い 危ない 安全 古い 新しい", owners=False),
    _row(nature.CROSSED[2:], "", "深い 美しい 長い 危ない 冷たい", owners=False),
    _row(only(nature.BUILDINGS, "喫茶店 公園 レストラン"), "", "にぎやか 明るい", owners=False),
    _row(nouns.SONGS, "美しい 古い 有名", "長い 短い 難しい", owners=False),
    _row(nouns.REPORT + nouns.READING[6:8], "長い 短い", "難しい 簡単"),
)


def _bearers(adjective: Adjective) -> tuple[tuple[Noun, bool], ...]:
    """The nouns an adjective can stand behind, each with whether it can be somebody's."""
    fitting = [row for row in DESCRIBED if adjective in row.anywhere + row.behind]
    return tuple(dict.fromkeys((noun, row.owners) for row in fitting for noun in row.nouns))


# By adjective, so that each is drawn as often as the others.
DESCRIPTIONS = tuple((adjective, bearers) for adjective in ADJECTIVES.values() if (bearers := _bearers(adjective)))

TRAITS = adjectives("忙しい 優しい 若い 有名 真面目 正直 幸せ 強い 賢い 暇 厳しい 静か 病気 元気")
SELF_TRAITS = adjectives("忙しい 幸せ 暇 病気 元気")  # of oneself, nobody says: I am smart
ATTRIBUTES: dict[str, tuple[Adjective, ...]] = {}
for _described in DESCRIBED:
    for _noun in _described.nouns:
        ATTRIBUTES[_noun.ja] = ATTRIBUTES.get(_noun.ja, ()) + _described.anywhere
