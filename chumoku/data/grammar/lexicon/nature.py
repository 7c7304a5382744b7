"""Animals, plants, vehicles, landscape and buildings."""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import nouns

PETS = nouns("""
犬 a dog
猫 a cat
うさぎ a rabbit
鳥 a bird
ハムスター a hamster
""")
FARM = nouns("""
馬 a horse
牛 a cow
豚 a pig
羊 a sheep / sheep
にわとり a chicken
""")
ZOO = nouns("""
象 an elephant
ライオン a lion
虎 a tiger
パンダ a panda
きりん a giraffe
猿 a monkey
""")
WILD = nouns("""
熊 a bear
狐 a fox
鹿 a deer / deer
猿 a monkey
蛇 a snake
""")
MARINE = nouns("""
いるか a dolphin
ペンギン a penguin
亀 a turtle
くらげ a jellyfish / jellyfish
""")
INSECTS = nouns("""
蝶 a butterfly
とんぼ a dragonfly
蛙 a frog
せみ a cicada
""")

PLANTS = nouns("""
花 a flower
木 a tree
ばら a rose
ひまわり a sunflower
チューリップ a tulip
""")
SCENERY = nouns("""
山 a mountain
海 the sea
星 pl stars
月 the moon
虹 a rainbow
""")

RIDES = nouns("""
自転車 a bicycle
馬 a horse
バイク a motorcycle
ボート a boat
""")
LINES = nouns("""
バス the bus
電車 the train
""")
AIRPORT_LINE = nouns("飛行機 the plane")
TAXI = nouns("タクシー the taxi")
CARS = nouns("""
車 a car
トラック a truck
""")

BUILDINGS = nouns("""
銀行 a bank
病院 a hospital
郵便局 a post office
学校 a school
ホテル a hotel
図書館 a library
スーパー a supermarket
本屋 a bookstore
薬局 a pharmacy
レストラン a restaurant
神社 a shrine
お寺 a temple
映画館 a movie theater
喫茶店 a coffee shop
公園 a park
""")
CROSSED = nouns("""
橋 the bridge
道 the street
川 the river
""")
CLIMBED = nouns("""
山 the mountain
木 the tree
屋根 the roof
""")
SEATS = nouns("""
椅子 = on the chair
ソファー = on the sofa
ベンチ = on the bench
床 = on the floor
畳 = on the tatami
""")
NEEDS = nouns("""
お金 some money
時間 some time
""")
