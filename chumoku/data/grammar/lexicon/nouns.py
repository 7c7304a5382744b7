"""Things: nouns by what can be done with them. The notation is explained in tables.py."""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import nouns

READING = nouns("""
本 a book
新聞 a newspaper
雑誌 a magazine
漫画 a comic book
小説 a novel
手紙 a letter
メール an email
物語 a story
教科書 a textbook
絵本 a picture book
記事 an article
葉書 a postcard
詩 a poem
""")
REPORT = nouns("レポート a report")
HOMEWORK = nouns("宿題 own homework")
SHOWS = nouns("""
テレビ some TV
映画 a movie
ドラマ a drama
アニメ some anime
ニュース the news
試合 a game
""")
STAGE = nouns("""
芝居 a play
コンサート a concert
""")
FIREWORKS = nouns("花火 pl fireworks")
SOUNDS = nouns("""
音楽 some music
ジャズ some jazz
ラジオ the radio
歌 a song
講義 a lecture
""")
SONGS = nouns("""
歌 a song
民謡 a folk song
童謡 a nursery rhyme
""")

CLOTHES = nouns("""
シャツ a shirt
セーター a sweater
コート a coat
着物 a kimono / kimonos
浴衣 a yukata / yukata
スーツ a suit
ドレス a dress
上着 a jacket
制服 a uniform
""")
LEGWEAR = nouns("""
靴 pl shoes
靴下 pl socks
ズボン pl pants
スカート a skirt
ジーンズ pl jeans
ブーツ pl boots
サンダル pl sandals
""")
HATS = nouns("""
帽子 a hat
ヘルメット a helmet
""")
GLASSES = nouns("""
眼鏡 pl glasses
サングラス pl sunglasses
""")
ACCESSORIES = nouns("""
ネクタイ a tie
手袋 pl gloves
マフラー a scarf / scarves
マスク a mask
""")

BODY = nouns("""
手 own hands
顔 own face / faces
髪 own hair
足 own feet
""")
TEETH = nouns("歯 own teeth")
DISHES = nouns("皿 the dishes")
LAUNDRY = nouns("服 pl clothes")
OPENINGS = nouns("""
窓 the window
ドア the door
カーテン the curtain
門 the gate
引き出し the drawer
箱 the box
""")
MACHINES = nouns("""
電気 the light
テレビ the TV
ラジオ the radio
パソコン the computer
エアコン the air conditioner
暖房 the heater
扇風機 the fan
""")
ROOMS = nouns("""
部屋 the room
台所 the kitchen
居間 the living room
教室 the classroom
廊下 the hallway
玄関 the entrance
庭 the garden
トイレ the toilet
""")
FURNITURE = nouns("""
机 a desk
椅子 a chair
棚 a shelf / shelves
テーブル a table
ソファー a sofa
""")
CRAFTS = nouns("""
人形 a doll
おもちゃ a toy
模型 a model
ロボット a robot
""")

STATIONERY = nouns("""
ペン a pen
鉛筆 a pencil
消しゴム an eraser
ノート a notebook
はさみ pl scissors
定規 a ruler
辞書 a dictionary
地図 a map
""")
DEVICES = nouns("""
パソコン a computer
カメラ a camera
時計 a watch
自転車 a bicycle
""")
BELONGINGS = nouns("""
鍵 a key
財布 a wallet
傘 an umbrella
鞄 a bag
携帯電話 a cell phone
切符 a ticket
パスポート a passport
""")
PRESENTS = nouns("""
花 a flower
写真 a photo
""")
PICTURE = nouns("絵 a picture")
PARCEL = nouns("荷物 a package")
VIDEO = nouns("""
写真 a photo
ビデオ a video
""")
CROCKERY = nouns("""
皿 a plate
コップ a cup
花瓶 a vase
""")
STAMPS = nouns("""
切手 pl stamps
貝殻 pl shells
コイン pl coins
""")
BALLS = nouns("""
ボール a ball
石 a stone
""")
LESSONS = nouns("""
漢字 some kanji
単語 pl words
""")

INSTRUMENTS = nouns("""
ピアノ the piano
ギター the guitar
バイオリン the violin
琴 the koto
""")
WINDS = nouns("""
フルート the flute
トランペット the trumpet
""")
SPORTS = nouns("""
テニス some tennis
サッカー some soccer
野球 some baseball
バスケットボール some basketball
卓球 some table tennis
バレーボール some volleyball
""")
GAMES = nouns("""
将棋 some shogi
チェス some chess
トランプ pl cards
""")
LANGUAGES = nouns("""
日本語 some Japanese
英語 some English
中国語 some Chinese
フランス語 some French
スペイン語 some Spanish
""")
SUBJECTS = nouns("""
数学 some math
歴史 some history
科学 some science
物理 some physics
法律 some law
経済 some economics
美術 some art
""")
PASTIMES = nouns("""
書道 some calligraphy
柔道 some judo
空手 some karate
生け花 some flower arrangement
""")
BATH = nouns("お風呂 a bath")
