"""Frames of animals, plants and moving about; the fields are explained in frame.py."""

from __future__ import annotations

from chumoku.data.grammar.lexicon import food
from chumoku.data.grammar.lexicon import nature as wild
from chumoku.data.grammar.lexicon import nouns as things
from chumoku.data.grammar.lexicon import places as where
from chumoku.data.grammar.lexicon.frame import ACCIDENT, EVENT, STATE, frame, inside, toward
from chumoku.data.grammar.lexicon.places import at
from chumoku.data.grammar.lexicon.tables import definite, nouns, only

_LEFT = nouns("""
家 = home
会社 = the office
学校 = school
部屋 = the room
ホテル = the hotel
図書館 = the library
""")

NATURE = (
    frame("見る.動物", wild.ZOO, at("動物園"), aspect=EVENT, span=2, how="友達と 家族と", described=True),
    frame("見る.動物", wild.FARM, at("牧場 農場 村"), aspect=EVENT, span=2, how="友達と 家族と", described=True),
    frame("見る.動物", wild.WILD, at("山 森 北海道"), aspect=ACCIDENT, span=2, how="友達と 家族と", described=True),
    frame("見る.動物", wild.MARINE, at("水族館 沖縄"), aspect=EVENT, span=2, how="友達と 家族と", described=True),
    frame(
        "捕まえる",
        wild.INSECTS,
        at("公園 森 庭 山 畑"),
        how="友達と 一人で",
        parts="morning day",
        each=True,
        described=True,
    ),
    frame(
        "なでる",
        definite(wild.PETS[:3]),
        at("庭 公園 居間"),
        every="0",
        span=0,
        how="静かに 優しく",
    ),
    frame(
        "植える",
        wild.PLANTS,
        at("庭 公園 畑"),
        at="に",
        every="2",
        span=2,
        how="家族と 一人で 友達と",
        described=True,
    ),
    frame(
        "育てる",
        wild.PLANTS[2:] + only(food.INGREDIENTS, "野菜 トマト にんじん 玉ねぎ きゅうり じゃがいも"),
        at("庭 畑 農場 ベランダ"),
        every="2",
        span=2,
        since=2,
        seasons=True,
        how="家族と 一人で",
        kinds=True,
    ),
    frame("投げる", things.BALLS, at("公園 運動場 海岸 庭"), aspect=EVENT, span=0),
    frame("蹴る", things.BALLS, at("公園 運動場 学校 庭"), aspect=EVENT, span=0),
    frame("飼っている", wild.PETS, aspect=STATE),
    frame(
        "持っている",
        things.DEVICES + wild.CARS + only(things.BELONGINGS, "傘 パスポート 携帯電話 鞄") + things.STATIONERY[6:],
        aspect=STATE,
    ),
    frame("住んでいる", inside(where.CITIES + where.COUNTRIES + at("村 町")), particle="に", aspect=STATE),
)

MOTION = (
    frame("行く", toward(where.OUTINGS), where.MEANS, particle="に/へ", every="1", how="一人で 友達と 家族と"),
    frame("行く", toward(where.DAILY), where.MEANS, particle="に/へ", how="急いで 一人で 友達と 早く"),
    frame(
        "行く",
        toward(where.CITIES[:3]),
        where.FAR_MEANS[2:],
        particle="に/へ",
        every="2",
        span=2,
        how="一人で 友達と 家族と",
        seasons=True,
    ),
    frame(
        "行く",
        toward(where.CITIES[3:] + where.COUNTRIES[1:]),
        where.FAR_MEANS[:2],
        particle="に/へ",
        every="2",
        span=2,
        how="一人で 友達と 家族と",
        seasons=True,
    ),
    frame(
        "来る",
        toward(at("学校 大学 会社 公園 駅 図書館 空港")),
        where.MEANS,
        particle="に",
        how="一人で 友達と 早く 急いで",
    ),
    frame(
        "来る", toward(at("日本")), where.FAR_MEANS[:2], particle="に", every="2", span=2, how="一人で 友達と 家族と"
    ),
    frame(
        "帰る",
        toward(at("家 ホテル 会社")),
        where.MEANS,
        particle="に/へ",
        every="01",
        how="早く 一人で 急いで",
    ),
    frame("帰る", toward(at("東京 京都 大阪")), where.FAR_MEANS[2:], particle="に/へ", every="2", span=2),
    frame("出る", _LEFT, where.HOURS, at="に", every="01", span=0, how="静かに 急いで 一人で"),
    frame(
        "着く",
        inside(at("駅 空港 ホテル 会社 学校 病院 動物園")),
        where.HOURS,
        particle="に",
        at="に",
        aspect=EVENT,
        span=0,
    ),
    frame(
        "入る",
        things.ROOMS[:4] + definite(only(wild.BUILDINGS, "喫茶店 銀行 図書館 レストラン ホテル 映画館 お寺")),
        particle="に",
        aspect=EVENT,
        span=0,
        how="静かに 急いで 一人で",
    ),
    frame(
        "入る.風呂",
        things.BATH,
        particle="に",
        every="0",
        span=0,
        parts="morning night",
        how="ゆっくり 一人で",
    ),
    frame("登る", wild.CLIMBED[:1], particle="に", aspect=EVENT, span=2, how="ゆっくり 一人で 友達と"),
    frame("登る", wild.CLIMBED[1:], particle="に", aspect=EVENT, span=0, how="ゆっくり 急いで 一人で"),
    frame("渡る", wild.CROSSED, particle="を", every="0", span=-1, how="ゆっくり 急いで 一人で"),
    frame("座る", wild.SEATS, particle="に", every="0", span=-1, how="静かに 一人で"),
    frame("乗る", wild.RIDES[:3], at("公園 牧場 町 海岸"), particle="に", how="一人で 楽しそうに 上手に"),
    frame("乗る", wild.RIDES[3:], at("湖 川 海 公園"), particle="に", how="友達と 家族と"),
    frame("乗る.線", wild.LINES, where.HOURS, particle="に", at="に", every="01", span=0, how="一人で 友達と"),
    frame(
        "運転する",
        definite(wild.CARS + wild.LINES[:1]),
        at("町 東京 村"),
        who="adults",
        every="01",
        how="ゆっくり 上手に 丁寧に",
    ),
    frame("歩く", inside(at("公園 森 町 海岸 村 廊下 山")), how="ゆっくり 一人で 友達と"),
    frame("散歩する", inside(at("公園 森 町 海岸 村 庭")), how="一人で 友達と 家族と"),
    frame("走る", (), at("公園 運動場 海岸 町 体育館 森"), how="速く ゆっくり 一人で 友達と"),
    frame("走る", (), at("公園 庭 海岸 廊下"), who="beasts", every="0", span=0, how="速く"),
    frame("泳ぐ", (), at("海 川 湖 プール"), how="速く ゆっくり 上手に 友達と"),
    frame("遊ぶ", (), at("公園 庭 海岸 部屋 運動場 学校 川 森"), how="友達と 楽しそうに 一人で", parts="day"),
    frame("遊ぶ", (), at("公園 庭 居間 廊下"), who="beasts", every="0", span=0, how="楽しそうに", parts="morning day"),
    frame("踊る", (), at("祭り 劇場 部屋 体育館 居間 公園"), how="楽しそうに 上手に 友達と 一人で"),
    frame(
        "寝る", (), at("部屋 ベッド ソファー 布団 居間 ホテル 床 電車"), every="0", span=0, how="一人で", parts="night"
    ),
    frame("寝る", (), at("ソファー ベッド 床 居間 木の下 こたつ"), who="beasts", every="0", span=0),
    frame("起きる", (), where.HOURS[:4], at="に", every="01", span=0, parts="morning"),
    frame("休む", (), at("家 ベンチ 公園 部屋 喫茶店 木の下 ソファー ホテル"), how="ゆっくり 一人で"),
    frame(
        "働く",
        (),
        at("会社 病院 工場 銀行 レストラン 農場 空港 ホテル 市場 図書館 郵便局 動物園"),
        who="adults",
        span=2,
        how="一生懸命 楽しそうに",
    ),
    frame("運動する", (), at("公園 体育館 家 学校"), how="一人で 友達と 楽しそうに", parts="morning day"),
    frame(
        "買い物する",
        (),
        at("スーパー デパート 市場 町 コンビニ 東京 空港"),
        how="友達と 家族と 一人で",
        parts="morning day",
    ),
    frame(
        "旅行する",
        inside(where.CITIES[3:4] + where.COUNTRIES),
        where.FAR_MEANS[2:4],
        every="2",
        span=2,
        how="一人で 友達と 家族と",
        seasons=True,
    ),
    frame("笑う", (), at("教室 居間 電車 部屋 劇場"), every="0", span=-1, how="大声で 楽しそうに"),
    frame("泣く", (), at("部屋 映画館 駅 教室 病院"), aspect=ACCIDENT, span=0, how="一人で 静かに 大声で"),
)

OUTDOORS = NATURE + MOTION
