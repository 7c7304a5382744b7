"""Verbs: Japanese, class, English. Where a Japanese verb needs two English ones, a dot and a name keep them apart."""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import Verb, rows, verb

_TABLE = """
食べる ichidan eat, ate
飲む godan drink, drank
飲む.薬 godan take, took
読む godan read, read
書く godan write, wrote
見る ichidan watch
見る.動物 ichidan see, saw
聞く godan listen to
歌う godan sing, sang
踊る godan dance
着る ichidan wear, wore
履く godan wear, wore
かぶる godan wear, wore
かける ichidan wear, wore
する.服 suru wear, wore
する.遊び suru play
する.宿題 suru do, did
脱ぐ godan take off, took
洗う godan wash
磨く godan brush
掃除する suru clean
片付ける ichidan tidy up, tidied
開ける ichidan open
閉める ichidan close
つける ichidan turn on
消す godan turn off
作る godan make, made
料理する suru cook
焼く godan bake
切る godan cut, cut
描く godan draw, drew
弾く godan play
吹く godan play
勉強する suru study
教える ichidan teach, taught
習う godan learn
話す godan speak, spoke
練習する suru practice
覚える ichidan memorize
買う godan buy, bought
売る godan sell, sold
使う godan use
選ぶ godan choose, chose
借りる ichidan borrow
貸す godan lend, lent
返す godan return
あげる ichidan give, gave
見せる ichidan show
送る godan send, sent
探す godan look for
なくす godan lose, lost
見つける ichidan find, found
忘れる ichidan forget, forgot
拾う godan pick up
割る godan break, broke
直す godan repair
運ぶ godan carry
集める ichidan collect
投げる ichidan throw, threw
蹴る godan kick
撮る godan take, took
植える ichidan plant
育てる ichidan grow, grew
捕まえる ichidan catch, caught
なでる ichidan pet, petted
会う godan meet, met
待つ godan wait for
手伝う godan help
電話する suru call
招待する suru invite
おしゃべりする suru chat
乗る godan ride, rode
乗る.線 godan take, took
運転する suru drive, drove
行く godan go, went
来る kuru come, came
帰る godan go back, went
出る ichidan leave, left
着く godan arrive
入る godan enter
入る.風呂 godan take, took
登る godan climb
渡る godan cross
座る godan sit, sat
歩く godan walk
散歩する suru take a walk, took
走る godan run, ran
泳ぐ godan swim, swam
遊ぶ godan play
寝る ichidan sleep, slept
起きる ichidan get up, got
休む godan rest
働く godan work
運動する suru exercise
洗濯する suru do the laundry, did
買い物する suru shop, shopped
旅行する suru travel
笑う godan laugh
泣く godan cry
住んでいる ichidan live
持っている ichidan have, had
飼っている ichidan have, had
わかる godan understand, understood
ある godan be
いる ichidan be
"""


def _row(name: str, description: str) -> Verb:
    return verb(name.partition(".")[0], description)


VERBS = {name: _row(name, description) for name, description in rows(_TABLE)}
