"""Places with the preposition each takes, and what else stands beside an object: means, hours, receivers.

What follows a slash is said when one goes there.
"""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import Place, places

_ALL = places("""
家 at home / home
公園 in the park
学校 at school / to school
大学 at the university
会社 at the office
教室 in the classroom
図書館 at the library
体育館 in the gym
運動場 on the playground
台所 in the kitchen
居間 in the living room
部屋 in own room
庭 in the garden
ベランダ on the balcony
屋上 on the rooftop
玄関 at the entrance
廊下 in the hallway
お風呂 in the bath
洗面所 in the bathroom
こたつ at the kotatsu
ベッド in bed
ソファー on the sofa
ベンチ on the bench
床 on the floor
布団 on the futon
木の下 under the tree
電車 on the train
バス on the bus
駅 at the station
空港 at the airport
喫茶店 at the coffee shop
レストラン at the restaurant
食堂 in the cafeteria
居酒屋 at the pub
ホテル at the hotel
スーパー at the supermarket
市場 at the market
デパート at the department store
コンビニ at the convenience store
本屋 at the bookstore
花屋 at the flower shop
パン屋 at the bakery
薬局 at the pharmacy
病院 at the hospital
銀行 at the bank
郵便局 at the post office
工場 at the factory
農場 on the farm
畑 in the field
牧場 on the ranch
動物園 at the zoo
水族館 at the aquarium
博物館 at the museum
美術館 at the art museum
映画館 at the movie theater
劇場 at the theater
スタジアム at the stadium
神社 at the shrine
お寺 at the temple
祭り at the festival
海岸 on the beach
海 in the sea
川 in the river
湖 in the lake
プール in the pool
山 in the mountains
森 in the forest
村 in the village
町 in the town
東京 in Tokyo
京都 in Kyoto
大阪 in Osaka
北海道 in Hokkaido
沖縄 in Okinawa
日本 in Japan
アメリカ in America
フランス in France
イタリア in Italy
中国 in China
インド in India
""")
_BY_NAME = {entry.ja: entry for entry in _ALL}


def at(names: str) -> tuple[Place, ...]:
    """The places named, in order."""
    return tuple(_BY_NAME[name] for name in names.split())


# Part of the time → where nobody is then.
CLOSED = {
    "night": frozenset(
        place.ja
        for place in at(
            "学校 大学 教室 図書館 運動場 市場 デパート 本屋 花屋 パン屋 薬局 銀行 郵便局 "
            "農場 畑 牧場 動物園 水族館 博物館 美術館 お寺 山 森"
        )
    ),
    "weekend": frozenset(place.ja for place in at("学校 大学 教室 会社 銀行 郵便局 工場")),
}

FOR_ADULTS = frozenset(place.ja for place in at("会社 居酒屋 工場 銀行"))
CITIES = at("東京 京都 大阪 北海道 沖縄")
COUNTRIES = at("日本 アメリカ フランス イタリア 中国 インド")
OUTINGS = at(
    "公園 図書館 駅 空港 喫茶店 レストラン スーパー 市場 デパート コンビニ 本屋 花屋 パン屋 薬局 病院 銀行 郵便局 "
    "動物園 水族館 博物館 美術館 映画館 劇場 神社 お寺 祭り 海岸 プール 体育館 湖 森"
)
DAILY = at("学校 大学 会社 公園 図書館 病院 プール 体育館 スーパー 市場 工場 駅")
INDOORS = at("家 部屋 居間 台所 庭 学校 会社 図書館 教室 駅 喫茶店 ベランダ 屋上 お風呂 病院 体育館 銀行 ホテル")

MEANS = places("""
バス by bus
電車 by train
車 by car
自転車 by bicycle
タクシー by taxi
""")
FAR_MEANS = places("""
飛行機 by plane
船 by ship
電車 by train
車 by car
新幹線 by bullet train
""")
HOURS = places("""
五時 at five
六時 at six
七時 at seven
八時 at eight
九時 at nine
""")
RECEIVERS = places("""
友達 to a friend
先生 to the teacher
母 to my mother
父 to my father
祖母 to my grandmother
祖父 to my grandfather
田中さん to Mr. Tanaka
佐藤さん to Ms. Sato
マリア to Maria
トム to Tom
花子 to Hanako
""")
PARTNERS = places("""
友達 with a friend
先生 with the teacher
母 with my mother
父 with my father
祖母 with my grandmother
祖父 with my grandfather
田中さん with Mr. Tanaka
佐藤さん with Ms. Sato
マリア with Maria
トム with Tom
花子 with Hanako
""")
LENDERS = places("""
図書館 from the library
学校 from the school
大学 from the university
ホテル from the hotel
駅 from the station
""")
CALLERS = places("""
駅 from the station
会社 from the office
家 from home
ホテル from the hotel
空港 from the airport
""")
PARTIES = places("""
家 home
パーティー to the party
結婚式 to the wedding
コンサート to the concert
レストラン to the restaurant
""")
SURFACES = places("""
机 the desk
テーブル the table
棚 the shelf
椅子 the chair
ベッド the bed
""")
CONTAINERS = places("""
箱 the box
鞄 the bag
引き出し the drawer
""")
FRIDGE = places("冷蔵庫 the refrigerator")
GROUNDS = places("""
駅 the station
学校 the school
公園 the park
銀行 the bank
病院 the hospital
ホテル the hotel
図書館 the library
スーパー the supermarket
""")
SHELTERS = places("""
木 the tree
車 the car
家 the house
門 the gate
橋 the bridge
""")
ON, UNDER, IN = ("の上", "on"), ("の下", "under"), ("の中", "in")
AROUND = (("の前", "in front of"), ("の後ろ", "behind"), ("の隣", "next to"), ("の近く", "near"))


def sides(grounds: tuple[Place, ...], *relations: tuple[str, str]) -> tuple[Place, ...]:
    """Every relation to every ground: 机の上, on the desk."""
    return tuple(Place(ground.ja + ja, f"{en} {ground.here}", "") for ground in grounds for ja, en in relations)
