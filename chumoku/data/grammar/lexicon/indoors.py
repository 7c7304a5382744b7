"""Frames of eating, reading, learning and keeping house; the fields are explained in frame.py."""

from __future__ import annotations

from chumoku.data.grammar.lexicon import food
from chumoku.data.grammar.lexicon import nature as wild
from chumoku.data.grammar.lexicon import nouns as things
from chumoku.data.grammar.lexicon.frame import ACCIDENT, EVENT, STATE, frame
from chumoku.data.grammar.lexicon.places import RECEIVERS, at
from chumoku.data.grammar.lexicon.tables import definite, nouns, only, owned

_TABLE_MANNERS = "ゆっくり 急いで 一人で 友達と 家族と"
_CAKE = nouns("ケーキ a cake")  # one eats cake and bakes a cake
_FOOD = food.FRUIT + food.SNACKS
_WRITTEN = only(things.READING, "手紙 メール 小説 詩 記事 物語 葉書") + things.REPORT
_COOKED = only(food.INGREDIENTS, "魚 肉 野菜 卵 きのこ じゃがいも")
_DRAWN = wild.PETS + wild.FARM[:1] + wild.PLANTS + wild.SCENERY + things.PICTURE + things.STATIONERY[-1:]

_FESTIVE = only(things.CLOTHES, "着物 浴衣 ドレス")
_EVERYDAY = only(things.CLOTHES, "シャツ セーター スーツ 上着 制服")

FOOD = (
    frame(
        "食べる",
        _FOOD,
        at("家 こたつ 公園 庭 ベンチ 電車 台所 居間 部屋 学校 会社 ベランダ 屋上 木の下 海岸"),
        how=_TABLE_MANNERS,
        each=True,
        described=True,
    ),
    frame(
        "食べる",
        food.MEALS,
        at("家 レストラン 食堂 居間 台所 ホテル 空港 会社"),
        how=_TABLE_MANNERS,
        each=True,
        described=True,
    ),
    frame(
        "食べる",
        only(food.INGREDIENTS, "魚 肉 野菜 卵 トマト チーズ"),
        at("家 レストラン 食堂 ホテル"),
        how=_TABLE_MANNERS,
        each=True,
        described=True,
    ),
    frame("食べる", only(food.INGREDIENTS, "魚 肉 にんじん"), at("台所 庭"), who="beasts", every="0", span=-1),
    frame(
        "飲む",
        food.DRINKS,
        at("家 喫茶店 こたつ 公園 台所 居間 会社 学校 部屋 ベンチ 電車 ベランダ レストラン"),
        how=_TABLE_MANNERS,
        described=True,
    ),
    frame(
        "飲む",
        food.ALCOHOL,
        at("家 居酒屋 レストラン ホテル ベランダ"),
        how="一人で 友達と ゆっくり",
        who="adults",
        parts="night",
    ),
    frame("飲む.薬", food.MEDICINE, at("家 会社 病院 台所 部屋 ホテル"), every="0", span=-1, described=True),
    frame(
        "作る",
        tuple(meal for meal in food.MEALS if meal.ja != "豆腐") + _CAKE + only(food.SNACKS, "お弁当 餅"),
        at("家 台所 レストラン"),
        how="一人で 友達と 家族と",
    ),
    frame(
        "作る",
        only(food.SNACKS, "サンドイッチ おにぎり クッキー ドーナツ"),
        at("家 台所 パン屋"),
        how="一人で 友達と 家族と",
        kinds=True,
    ),
    frame("料理する", _COOKED, at("家 台所 レストラン ホテル"), how="一人で 友達と 家族と 丁寧に"),
    frame(
        "焼く",
        only(food.SNACKS, "パン クッキー") + only(food.MEALS, "ピザ"),
        at("家 台所 パン屋"),
        how="一人で 友達と 家族と",
        kinds=True,
    ),
    frame("焼く", _CAKE, at("家 台所 パン屋"), how="一人で 友達と 家族と"),
    frame(
        "切る",
        only(food.INGREDIENTS, "肉 野菜 トマト にんじん 玉ねぎ きゅうり チーズ") + only(food.FRUIT, "りんご すいか"),
        at("台所 レストラン 家"),
        how="丁寧に ゆっくり 急いで",
        every="0",
        span=-1,
    ),
)

MEDIA = (
    frame(
        "読む",
        things.READING,
        at("図書館 家 部屋 電車 バス 公園 喫茶店 居間 ベンチ こたつ ベッド ソファー 木の下 空港 ベランダ"),
        how="ゆっくり 静かに 一人で",
        each=True,
        described=True,
        span=2,
    ),
    frame(
        "書く",
        _WRITTEN,
        at("家 部屋 図書館 喫茶店 会社 ホテル こたつ"),
        how="丁寧に 一人で 急いで",
        each=True,
        described=True,
        span=2,
    ),
    frame("書く", only(things.READING, "手紙 メール 葉書"), RECEIVERS, at="に", bound=True, each=True),
    frame(
        "見る",
        things.SHOWS,
        at("家 居間 部屋 ホテル ソファー こたつ"),
        how="一人で 友達と 家族と",
        described=True,
        parts="day night",
    ),
    frame("見る", things.SHOWS[1:2], at("映画館"), how="一人で 友達と 家族と", bound=True, parts="day night", span=2),
    frame(
        "見る", things.SHOWS[-1:], at("スタジアム 体育館"), how="友達と 家族と", bound=True, parts="day night", span=2
    ),
    frame(
        "見る",
        things.STAGE,
        at("劇場 公園 大学"),
        how="一人で 友達と 家族と",
        described=True,
        span=2,
        every="2",
        parts="day night",
    ),
    frame(
        "見る",
        things.FIREWORKS,
        at("公園 海岸 屋上 祭り ベランダ 神社"),
        how="友達と 家族と",
        every="2",
        span=2,
        parts="night",
    ),
    frame(
        "聞く", things.SOUNDS[:4], at("家 部屋 電車 バス 居間 喫茶店 公園 お風呂 ベッド"), how="静かに 一人で 友達と"
    ),
    frame(
        "聞く", things.SOUNDS[4:], at("大学 学校 美術館 博物館"), parts="morning day", how="静かに 友達と", bound=True
    ),
    frame(
        "歌う",
        things.SONGS,
        at("お風呂 家 学校 公園 祭り 教室 部屋"),
        how="楽しそうに 大声で 上手に 一人で 友達と",
        described=True,
    ),
    frame("弾く", things.INSTRUMENTS, at("家 部屋 学校 居間 劇場 レストラン 大学"), how="上手に 楽しそうに 一人で"),
    frame("吹く", things.WINDS, at("家 部屋 学校 公園 劇場 屋上"), how="上手に 楽しそうに 一人で"),
    frame("描く", _DRAWN, at("家 公園 部屋 学校 教室 海岸 美術館"), how="丁寧に 上手に 一人で", each=True, span=2),
    frame(
        "撮る",
        things.VIDEO,
        at("公園 動物園 海岸 祭り 京都 お寺 神社 学校 森 庭 屋上"),
        how="友達と 家族と",
        span=2,
        each=True,
    ),
)

STUDY = (
    frame(
        "勉強する",
        things.LANGUAGES + things.SUBJECTS,
        at("家 部屋 図書館 学校 大学 喫茶店 教室 こたつ"),
        how="一生懸命 一人で 友達と",
    ),
    frame(
        "教える",
        things.LANGUAGES + things.SUBJECTS + things.PASTIMES + things.INSTRUMENTS,
        at("学校 大学 家"),
        who="adults",
        how="丁寧に",
        parts="morning day",
    ),
    frame(
        "習う",
        things.PASTIMES + things.LANGUAGES + things.INSTRUMENTS,
        at("学校 大学 東京"),
        how="友達と",
        span=2,
        every="1",
        parts="day",
    ),
    frame(
        "話す",
        things.LANGUAGES,
        at("家 会社 学校 大学 ホテル 空港 アメリカ"),
        how="上手に ゆっくり",
        every="0",
        span=-1,
    ),
    frame("わかる", things.LANGUAGES + things.LESSONS + things.SUBJECTS[:1], particle="が", aspect=STATE, span=0),
    frame(
        "練習する",
        things.SPORTS + things.INSTRUMENTS + things.WINDS + things.PASTIMES[:3] + things.LESSONS[:1],
        at("学校 大学"),
        how="一生懸命 一人で 友達と",
    ),
    frame("覚える", things.LESSONS, at("家 部屋 学校 図書館 電車 教室"), how="一生懸命 一人で"),
    frame(
        "する.宿題",
        things.HOMEWORK,
        at("家 部屋 図書館 学校 教室 居間 こたつ"),
        how="一人で 友達と 急いで",
        every="0",
    ),
    frame(
        "する.遊び",
        things.SPORTS,
        at("学校 公園 体育館 大学 運動場"),
        how="楽しそうに 友達と 家族と",
        parts="morning day",
    ),
    frame(
        "する.遊び",
        things.GAMES,
        at("家 居間 部屋 こたつ ホテル 喫茶店"),
        how="楽しそうに 友達と 家族と",
        parts="day night",
    ),
)

HOUSE = (
    frame("着る", things.CLOTHES, described=True, each=True, every="0", parts="morning day"),
    frame("着る", _FESTIVE, at("祭り 京都 神社 家"), described=True, each=True, span=2, every="12"),
    frame("着る", _EVERYDAY, at("学校 会社 大学 レストラン"), described=True, each=True, every="0"),
    frame("履く", things.LEGWEAR, described=True, each=True, every="0", parts="morning day"),
    frame("履く", only(things.LEGWEAR, "スカート ジーンズ ブーツ"), at("学校 会社 大学"), each=True, every="0"),
    frame("かぶる", things.HATS, described=True, each=True, every="0", parts="morning day"),
    frame("かぶる", things.HATS[:1], at("公園 学校 海岸 山 畑"), each=True, every="0", parts="morning day"),
    frame("かぶる", things.HATS[1:], at("工場 スタジアム"), each=True, every="0", parts="morning day"),
    frame("かける", things.GLASSES[:1], at("家 学校 会社 図書館 映画館 教室"), each=True, every="0", span=-1),
    frame("かける", things.GLASSES[1:], at("公園 海岸 町"), each=True, every="0", span=0, parts="morning day"),
    frame("する.服", things.ACCESSORIES, at("学校 会社 公園 病院 電車"), each=True, described=True, every="0"),
    frame(
        "脱ぐ",
        owned(things.LEGWEAR[:2] + only(things.CLOTHES, "コート 上着") + things.HATS[:1]),
        at("玄関 家 お寺 教室 レストラン"),
        every="0",
        span=-1,
        how="静かに 急いで",
    ),
    frame("洗う", things.BODY, at("家 お風呂 洗面所 ホテル"), every="0", span=-1, how="急いで 丁寧に"),
    frame(
        "洗う", things.DISHES + things.LAUNDRY + definite(wild.CARS), at("家"), every="01", how="急いで 丁寧に 一人で"
    ),
    frame(
        "洗う",
        only(food.INGREDIENTS, "野菜 トマト じゃがいも きゅうり"),
        at("台所 レストラン"),
        kinds=True,
        every="0",
        span=-1,
        how="丁寧に 急いで",
    ),
    frame(
        "磨く", things.TEETH, at("家 洗面所 お風呂 学校 会社 ホテル"), every="0", span=-1, how="丁寧に ゆっくり 急いで"
    ),
    frame("掃除する", things.ROOMS, how="丁寧に 一人で 家族と 急いで"),
    frame("片付ける", things.ROOMS[:4] + definite(things.FURNITURE[:3]), how="急いで 一人で 家族と"),
    frame("開ける", things.OPENINGS, every="0", span=-1, how="静かに ゆっくり 急いで"),
    frame("閉める", things.OPENINGS, every="0", span=-1, how="静かに ゆっくり 急いで"),
    frame("つける", things.MACHINES, at("部屋 居間 台所 家 会社 教室"), every="0", span=-1),
    frame("消す", things.MACHINES, at("部屋 居間 台所 家 会社 教室"), every="0", span=-1),
    frame(
        "作る",
        things.CRAFTS + things.FURNITURE,
        at("家 部屋 学校 工場"),
        aspect=EVENT,
        span=2,
        how="丁寧に 一人で 友達と",
    ),
    frame(
        "直す",
        definite(things.DEVICES + things.FURNITURE[:2] + wild.CARS + wild.CLIMBED[2:3] + things.CRAFTS[-1:]),
        at("家 庭 工場"),
        aspect=EVENT,
        span=2,
        who="adults",
        how="一人で 丁寧に 急いで",
    ),
    frame("割る", things.CROCKERY + things.OPENINGS[:1], at("台所 家 レストラン ホテル"), aspect=ACCIDENT),
    frame("洗濯する", (), at("家 ホテル"), how="一人で 急いで"),
)
INDOORS = FOOD + MEDIA + STUDY + HOUSE
