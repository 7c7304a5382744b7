"""Frames of having, giving and losing things, and of meeting people; the fields are explained in frame.py."""

from __future__ import annotations

from chumoku.data.grammar.lexicon import food
from chumoku.data.grammar.lexicon import nature as wild
from chumoku.data.grammar.lexicon import nouns as things
from chumoku.data.grammar.lexicon import places as where
from chumoku.data.grammar.lexicon.frame import ACCIDENT, EVENT, frame
from chumoku.data.grammar.lexicon.people import ACQUAINTANCES
from chumoku.data.grammar.lexicon.places import at
from chumoku.data.grammar.lexicon.tables import Noun, definite, only, owned

_WORN = things.CLOTHES + things.LEGWEAR + things.HATS + things.GLASSES + things.ACCESSORIES
_LOST = owned(things.BELONGINGS + things.GLASSES[:1] + things.HATS[:1] + things.DEVICES[1:3])
_BOOKS = only(things.READING, "本 雑誌 小説 漫画 絵本 教科書")
_LENT = _BOOKS + only(things.STATIONERY, "ペン 辞書 ノート 地図") + only(things.BELONGINGS, "傘") + wild.NEEDS[:1]
_GIVEN = _BOOKS[:1] + things.PRESENTS + only(food.SNACKS, "ケーキ クッキー チョコレート") + things.CRAFTS[:2]
_SHOWN = (
    things.VIDEO + things.PICTURE + definite(only(things.STATIONERY, "ノート 地図")) + owned(things.BELONGINGS[-2:])
)
_SENT = only(things.READING, "手紙 メール 葉書") + things.PARCEL + things.PRESENTS
_FRIENDS = tuple(Noun(friend.ja, "=", friend.here, friend.here) for friend in where.PARTNERS)
_STRANGERS = where.RECEIVERS[:2] + where.RECEIVERS[6:]

TRADE = (
    frame("買う", food.FRUIT + food.INGREDIENTS, at("スーパー 市場"), described=True, how="一人で 家族と"),
    frame("買う", food.SNACKS + food.DRINKS, at("スーパー コンビニ 駅 デパート"), how="急いで 一人で 友達と"),
    frame(
        "買う",
        only(food.SNACKS, "パン ケーキ クッキー サンドイッチ ドーナツ"),
        at("パン屋"),
        bound=True,
        parts="morning day",
    ),
    frame("買う", _BOOKS, at("本屋 デパート 大学"), span=2, every="12", described=True, how="一人で 友達と"),
    frame("買う", only(things.READING, "新聞 雑誌"), at("駅 コンビニ 空港"), every="0"),
    frame("買う", _WORN, at("デパート 市場 東京"), aspect=EVENT, span=2, described=True, how="一人で 友達と 家族と"),
    frame("買う", things.STATIONERY, at("コンビニ デパート 本屋"), aspect=EVENT, span=2, described=True),
    frame(
        "買う",
        things.DEVICES + things.BELONGINGS[1:5] + things.FURNITURE,
        at("デパート 東京"),
        aspect=EVENT,
        span=2,
        described=True,
        how="一人で 家族と",
    ),
    frame("買う", food.MEDICINE, at("薬局 病院 駅"), aspect=EVENT, described=True),
    frame("買う", wild.PLANTS[:1] + wild.PLANTS[2:], at("花屋 市場 駅"), described=True, span=2, each=True),
    frame(
        "売る",
        food.FRUIT + food.INGREDIENTS + wild.PLANTS[2:3],
        at("市場 スーパー 村"),
        who="adults",
        parts="morning day",
        kinds=True,
    ),
    frame(
        "売る",
        things.CROCKERY + things.CRAFTS,
        at("市場 デパート 祭り"),
        who="adults",
        parts="morning day",
        kinds=True,
    ),
    frame("使う", things.STATIONERY + things.DEVICES[:2], at("家 学校 会社 部屋 教室"), every="0", span=0, each=True),
    frame(
        "選ぶ",
        things.CLOTHES[:6] + things.DEVICES[1:3],
        at("デパート 市場"),
        aspect=EVENT,
        described=True,
        how="ゆっくり 急いで 友達と",
    ),
    frame("選ぶ", _BOOKS, at("本屋 図書館"), aspect=EVENT, described=True, how="ゆっくり 急いで 一人で"),
    frame("借りる", _BOOKS + things.STATIONERY[6:], where.LENDERS[:3], span=2, every="1", described=True),
    frame(
        "借りる",
        things.DEVICES[3:] + only(things.BELONGINGS, "傘"),
        where.LENDERS[3:],
        aspect=EVENT,
    ),
    frame("貸す", _LENT, where.RECEIVERS, at="に", bound=True, aspect=EVENT, span=2),
    frame("返す", definite(_LENT), where.RECEIVERS, at="に", bound=True, aspect=EVENT),
    frame("あげる", _GIVEN, _STRANGERS, at="に", bound=True, aspect=EVENT, span=2, described=True),
    frame("見せる", _SHOWN, where.RECEIVERS, at="に", bound=True, aspect=EVENT),
    frame("送る", _SENT, where.RECEIVERS, at="に", every="12", span=2, each=True),
    frame("探す", _LOST, at("部屋 家 駅 会社 公園 電車"), aspect=ACCIDENT, span=0),
    frame("なくす", _LOST, at("駅 公園 電車 空港 祭り 学校 バス"), aspect=ACCIDENT, span=2),
    frame("見つける", _LOST, at("部屋 駅 公園 会社 教室"), aspect=ACCIDENT),
    frame("忘れる", _LOST, aspect=ACCIDENT),
    frame("拾う", things.STAMPS[1:] + things.BALLS, at("海岸 公園 庭 森"), aspect=ACCIDENT, each=True),
    frame("集める", things.STAMPS, every="0", span=2, how="一人で 友達と"),
    frame("集める", things.STAMPS[1:2], at("海岸 沖縄"), every="0", span=2, how="一人で 友達と", bound=True),
    frame(
        "運ぶ",
        definite(things.PARCEL + things.FURNITURE + things.OPENINGS[-1:]),
        at("会社 学校 工場"),
        aspect=EVENT,
        how="一人で ゆっくり 友達と",
    ),
)

PEOPLE = (
    frame(
        "会う",
        ACQUAINTANCES,
        at("駅 喫茶店 公園 空港 学校 病院 祭り レストラン 映画館 市場 東京 京都"),
        particle="に",
        every="1",
        span=2,
    ),
    frame(
        "待つ",
        ACQUAINTANCES + wild.LINES + wild.TAXI,
        at("駅 公園 空港 学校 ホテル 病院"),
        every="0",
        how="一人で",
    ),
    frame("手伝う", ACQUAINTANCES, at("家 台所 会社 畑 庭 市場"), every="01"),
    frame("電話する", ACQUAINTANCES, where.CALLERS, particle="に", at="から", every="01"),
    frame("招待する", ACQUAINTANCES, where.PARTIES, at="に", aspect=EVENT, span=2, bound=True),
    frame(
        "おしゃべりする", _FRIENDS, at("喫茶店 公園 電車 駅 学校 居酒屋"), particle="と", every="01", how="楽しそうに"
    ),
)

DEALINGS = TRADE + PEOPLE
