"""Who acts. The role says where a subject may stand:

self    私 and a dropped subject; statements only      own    my kin: 母; statements only
you     あなた, or nobody named; questions only        your   your kin: お母さん; questions only
other   everybody else, anywhere                       beast  animals, for verbs that take them
"""

from __future__ import annotations

from chumoku.data.grammar.lexicon.tables import Noun, Person, nouns, rows

I = Person("私", "I", "self", "my", third=False)  # noqa: E741 - the pronoun
YOU = Person("あなた", "you", "you", "your", third=False)
DROPPED_I, DROPPED_YOU = I._replace(ja=""), YOU._replace(ja="")
PRONOUNS = (
    I,
    I._replace(ja="僕"),
    YOU,
    Person("私たち", "we", "self", "our", third=False, plural=True),
    Person("彼", "he", "other", "his"),
    Person("彼女", "she", "other", "her"),
    Person("彼ら", "they", "other", "their", third=False, plural=True),
)
_KIN = """
母 お母さん her mother
父 お父さん his father
兄 お兄さん his older brother
姉 お姉さん her older sister
弟 弟さん his younger brother
妹 妹さん her younger sister
祖父 おじいさん his grandfather
祖母 おばあさん her grandmother
妻 奥さん her wife
夫 ご主人 his husband
息子 息子さん his son
娘 娘さん her daughter
両親 ご両親 their parents
"""
_OTHERS = """
先生 her the teacher
田中さん his Mr. Tanaka
山本さん his Mr. Yamamoto
佐藤さん her Ms. Sato
鈴木さん her Ms. Suzuki
サンディー her Sandy
マリア her Maria
花子 her Hanako
ケン his Ken
トム his Tom
太郎 his Taro
男の子 his the boy
女の子 her the girl
子供たち their the children
"""
_BEASTS = """
猫 its the cat
犬 its the dog
うさぎ its the rabbit
"""
_YOUNG = {"息子", "娘", "息子さん", "娘さん", "男の子", "女の子", "子供たち"}


def _person(ja: str, possessive: str, en: str, role: str) -> Person:
    plural = possessive == "their"
    return Person(ja, en, role, possessive, third=not plural, plural=plural, adult=ja not in _YOUNG)


def _kin() -> list[Person]:
    people = []
    for mine, description in rows(_KIN):
        yours, possessive, en = description.split(maxsplit=2)
        people += [_person(mine, possessive, f"my {en}", "own"), _person(yours, possessive, f"your {en}", "your")]
    return people


def _others(table: str, role: str) -> list[Person]:
    split = [(ja, *description.split(maxsplit=1)) for ja, description in rows(table)]
    return [_person(ja, possessive, en, role) for ja, possessive, en in split]


PEOPLE = (*PRONOUNS, *_kin(), *_others(_OTHERS, "other"))
BEASTS = tuple(_others(_BEASTS, "beast"))
OWN_KIN = frozenset(person.ja for person in PEOPLE if person.role == "own")

ACQUAINTANCES: tuple[Noun, ...] = nouns("""
友達 = a friend
先生 = the teacher
田中さん = Mr. Tanaka
佐藤さん = Ms. Sato
マリア = Maria
花子 = Hanako
トム = Tom
母 = my mother
父 = my father
祖父 = my grandfather
祖母 = my grandmother
""")
OCCUPATIONS = nouns("""
医者 a doctor
看護師 a nurse
弁護士 a lawyer
学生 a student
会社員 an office worker
歌手 a singer
画家 a painter
作家 a writer
警察官 a police officer
料理人 a cook
パイロット a pilot
大工 a carpenter
科学者 a scientist
俳優 an actor
記者 a reporter
技術者 an engineer
音楽家 a musician
""")


def may_stand(person: Person, *, question: bool) -> bool:
    """Nobody asks what they do themselves, or tells others what the others and their mothers do."""
    return person.role not in (("self", "own") if question else ("you", "your"))
