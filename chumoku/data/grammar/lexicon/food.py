"""What is eaten and drunk. The notation is explained in tables.py."""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import nouns

FRUIT = nouns("""
みかん a mandarin
りんご an apple
バナナ a banana
桃 a peach
梨 a pear
柿 a persimmon
オレンジ an orange
ぶどう pl grapes
いちご pl strawberries
すいか some watermelon
さくらんぼ pl cherries
""")
SNACKS = nouns("""
サンドイッチ a sandwich
おにぎり a rice ball
ハンバーガー a hamburger
クッキー a cookie
ケーキ some cake
アイスクリーム some ice cream
チョコレート some chocolate
せんべい a rice cracker
ドーナツ a doughnut
餅 some mochi
パン some bread
お弁当 a boxed lunch / boxed lunches
""")
MEALS = nouns("""
ご飯 some rice
寿司 some sushi
ラーメン some ramen
うどん some udon
そば some soba
カレー some curry
ピザ some pizza
サラダ a salad
豆腐 some tofu
天ぷら some tempura
スパゲッティ some spaghetti
オムレツ an omelet
ステーキ a steak
""")
INGREDIENTS = nouns("""
魚 some fish
肉 some meat
卵 an egg
野菜 pl vegetables
トマト a tomato
にんじん a carrot
玉ねぎ an onion
きゅうり a cucumber
じゃがいも a potato
きのこ pl mushrooms
チーズ some cheese
""")
DRINKS = nouns("""
お茶 some tea
コーヒー some coffee
水 some water
牛乳 some milk
ジュース some juice
ココア some cocoa
コーラ some cola
""")
ALCOHOL = nouns("""
ビール some beer
ワイン some wine
日本酒 some sake
""")
MEDICINE = nouns("薬 some medicine")
