"""When, how often and how: adverbial phrases with what they go with."""

from __future__ import annotations

from typing import NamedTuple

from chumoku.data.grammar.lexicon.tables import Time

_DAYS = {
    "月曜日": "Monday",
    "火曜日": "Tuesday",
    "水曜日": "Wednesday",
    "木曜日": "Thursday",
    "金曜日": "Friday",
    "土曜日": "Saturday",
    "日曜日": "Sunday",
}


def _on_days(ja: str, en: str) -> tuple[Time, ...]:
    return tuple(
        Time(f"{ja}{day}に", f"{en} {name}", 1, "weekend" if name[0] == "S" else "") for day, name in _DAYS.items()
    )


EVERY = (
    Time("毎日", "every day", 0),
    Time("毎朝", "every morning", 0, "morning"),
    Time("毎晩", "every night", 0, "night"),
    *_on_days("毎週", "every"),
    Time("毎年", "every year", 2),
)
GENERAL = (
    Time("朝", "in the morning", 0, "morning"),
    Time("午後", "in the afternoon", 0, "day"),
    Time("夜", "at night", 0, "night"),
    Time("週末に", "on weekends", 1, "weekend"),
    Time("休みの日に", "on holidays", 1, "weekend"),
)
SEASONS = (
    Time("春に", "in spring", 2),
    Time("夏に", "in summer", 2),
    Time("秋に", "in fall", 2),
    Time("冬に", "in winter", 2),
)
BEFORE = (
    Time("昨日", "yesterday", 0),
    Time("おととい", "the day before yesterday", 0),
    Time("さっき", "a little while ago", -1, "moment"),
    Time("今朝", "this morning", -1, "morning"),
    Time("昨夜", "last night", -1, "night"),
    Time("先週", "last week", 1),
    *_on_days("先週の", "last"),
    Time("先月", "last month", 2),
    Time("去年", "last year", 2),
)
AFTER = (
    Time("明日", "tomorrow", 0),
    Time("明日の朝", "tomorrow morning", 0, "morning"),
    Time("あさって", "the day after tomorrow", 0),
    Time("あとで", "later", -1, "moment"),
    Time("今夜", "tonight", -1, "night"),
    Time("来週", "next week", 1),
    *_on_days("来週の", "next"),
    Time("来月", "next month", 2),
    Time("来年", "next year", 2),
)
NOW = Time("今", "now", 0)


class Frequency(NamedTuple):
    """`denies`: the Japanese verb is negative. Then English may say it with the adverb alone: rarely."""

    ja: str
    en: str
    denies: bool = False
    behind: str = ""  # what English puts behind the object of a denied verb instead


OFTEN = (
    Frequency("よく", "often"),
    Frequency("いつも", "always"),
    Frequency("ときどき", "sometimes"),
    Frequency("たいてい", "usually"),
)
SELDOM = (
    Frequency("めったに", "rarely", denies=True),
    Frequency("あまり", "", denies=True, behind="very often"),
)

MANNER = {
    "ゆっくり": "slowly",
    "静かに": "quietly",
    "急いで": "in a hurry",
    "一人で": "alone",
    "友達と": "with a friend",
    "家族と": "with own family",
    "丁寧に": "carefully",
    "一生懸命": "hard",
    "楽しそうに": "happily",
    "大声で": "loudly",
    "上手に": "well",
    "優しく": "gently",
    "早く": "early",
    "速く": "fast",
}
