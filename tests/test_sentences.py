"""Sentences of a text: where they end, that nothing is lost, and how their translations are joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chumoku.text.sentences import join_sentences, split_sentences

TEXTS = {
    "猫が好きです。": ["猫が好きです。"],
    "今日は寒いですね。こたつでみかんを食べたい。": ["今日は寒いですね。", "こたつでみかんを食べたい。"],
    "本当？！すごい！": ["本当？！", "すごい！"],
    "彼は「はい。」と言った。そして帰った。": ["彼は「はい。」と言った。", "そして帰った。"],
    "「行こう。」「うん。」": ["「行こう。」", "「うん。」"],
    "「行こう。急げ！」と叫んだ。": ["「行こう。急げ！」と叫んだ。"],
    "彼は来た（遅れて。）。私は帰った。": ["彼は来た（遅れて。）。", "私は帰った。"],
    "円周率は３．１４です。Yahoo!ニュースを読む。": ["円周率は３．１４です。", "Yahoo!ニュースを読む。"],
    "終わりがない文": ["終わりがない文"],
    "えっ…そうなの？うん!いいよ…": ["えっ…そうなの？", "うん!", "いいよ…"],
    "「はい。」 と言った。": ["「はい。」 と言った。"],
    '彼は言った。"行く。"そして行った。': ["彼は言った。", '"行く。"', "そして行った。"],
    "He said no. She left. So did I. See No. 5.": ["He said no.", "She left.", "So did I.", "See No. 5."],
    "1. First item\n2. Second": ["1. First item", "2. Second"],
    "I like cats. Do you? Yes!": ["I like cats.", "Do you?", "Yes!"],
    "Dr. Sato met J. Smith at 3.14 p.m. in the U.S. yesterday.": [
        "Dr. Sato met J. Smith at 3.14 p.m. in the U.S. yesterday."
    ],
    "See e.g. Fig. 3. It is clear.": ["See e.g. Fig. 3.", "It is clear."],
    '"Stop!" he said. She did.': ['"Stop!" he said.', "She did."],
    "Go to https://example.com/a.b?c=d. Then wait...": ["Go to https://example.com/a.b?c=d.", "Then wait..."],
    "Well... maybe. Version 2.0 is out.": ["Well... maybe.", "Version 2.0 is out."],
    "First line\nsecond line\n\nThird.": ["First line", "second line", "Third."],
}


@pytest.mark.parametrize("text", TEXTS)
def test_sentences_of_a_text(text: str) -> None:
    assert [sentence.text for sentence in split_sentences(text)] == TEXTS[text]


@given(st.text(alphabet="ab A.!?。！？．…「」（)\n\t \"'1猫にゃ", max_size=61))
def test_nothing_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join(sentence.text + sentence.space for sentence in sentences) == text
    assert all(sentence.space.strip() == "" for sentence in sentences)
    assert not any(sentence.text != sentence.text.strip() or "\n" in sentence.text for sentence in sentences)
    assert all(sentence.text for sentence in sentences[1:])


@pytest.mark.parametrize(
    ("texts", "spaces", "joined"),
    [
        (["I am cold.", "I want tea."], ["", ""], "I am cold. I want tea."),
        (["寒い。", "お茶を飲む。"], [" ", ""], "寒い。お茶を飲む。"),
        (["One.", "Two."], ["\n\n", "\n"], "One.\n\nTwo.\n"),
        (["", "One.", "Two."], ["  ", " ", ""], "  One. Two."),
        (["He said OK", "はい。"], [" ", ""], "He said OKはい。"),
        (["Hello.", "", "Bye.", ""], [" ", " ", " ", ""], "Hello. Bye."),
        ([], [], ""),
    ],
)
def test_translations_are_joined_as_their_language_is_written(texts: list[str], spaces: list[str], joined: str) -> None:
    assert join_sentences(texts, spaces) == joined


def test_long_texts_take_linear_time() -> None:
    text = "これは文です。" * 3001 + "a. " * 3001 + "「" * 3001 + "。" * 3001 + "b" + " " * 200_003 + "c"
    text += "x. " * 200_003 + "\n「" + '。"' * 200_003
    assert "".join(sentence.text + sentence.space for sentence in split_sentences(text)) == text
