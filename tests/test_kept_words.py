"""Addresses and words with unknown characters survive translation."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import serving

import chumoku
from chumoku.text import train
from chumoku.text.kept_words import STAND_INS, keep_words, restore_words

UNKNOWN = frozenset("麤𠮷鷗😀Δẽßé∑П\u00ad\u200b")
PARTS = [*"あ漢麤𠮷😀Δéß∑aB2 。.,()@/:\n", "https://a.b/c", "www.x.y", "me@x.org", "B2", "野家", "Пр", "http://"]
texts = st.lists(st.sampled_from(PARTS), max_size=29).map("".join)


def is_unknown(character):
    return character in UNKNOWN


@given(texts)
def test_a_translator_that_copies_gives_the_same_text(text):
    kept = keep_words(text, is_unknown)
    assert restore_words(kept.text, kept) == text


@given(texts, st.booleans())
def test_every_kept_word_is_in_the_result_whatever_the_model_writes(text, silent):
    kept = keep_words(text, is_unknown)
    result = restore_words("" if silent else " ".join(name for name, _ in kept.words[::-1]), kept)
    assert all(word in result for _, word in kept.words)
    if len(kept.words) < len(STAND_INS) - 1:
        assert not any(is_unknown(character) for character in kept.text if character not in "麤鷗")
        assert "https://a.b" not in kept.text


@pytest.mark.parametrize(
    ("text", "read", "words", "after"),
    [
        ("詳しくは https://example.com/help を見て。", "詳しくは B2 を見て。", ["https://example.com/help"], ""),
        ("https://a.b/c?d=1にある。", "B2にある。", ["https://a.b/c?d=1"], ""),
        ("See www.example.com.", "See B2.", ["www.example.com"], ""),
        ("(See https://a.org/b_(c).)", "(See B2.)", ["https://a.org/b_(c)"], ""),
        ("Write to taro@example.co.jp!", "Write to B2!", ["taro@example.co.jp"], ""),
        ("𠮷野家で食べた。", "B2で食べた。", ["𠮷野家"], ""),
        ("Приветと言った。", "B2と言った。", ["Привет"], ""),
        ("麤𠮷野家で食べた。", "B2で食べた。", ["麤𠮷野家"], ""),
        ("蛙と麤を見た。", "蛙と麤を見た。", [], ""),
        ("B2 or Δ?", "B2 or K2?", ["Δ"], ""),
        ("Ｂ２とk2とΔ。", "Ｂ２とk2とP2。", ["Δ"], ""),
        ("co\u00adoperate, \u200bΔ", "co\u00adoperate, \u200bB2", ["Δ"], ""),
        ("連絡先は_me@x.org", "連絡先はB2", ["_me@x.org"], ""),
        ("ここ😀https://a.b", "ここB2", ["😀https://a.b"], ""),
        ("楽しかった😀", "楽しかった", [], "😀"),
        ("That was fun 😀😀", "That was fun", [], " 😀😀"),
        ("楽しい😀。", "楽しいB2。", ["😀"], ""),
        ("a @ b, 12:30, C++, x@y", "a @ b, 12:30, C++, x@y", [], ""),
    ],
)
def test_what_is_kept(text, read, words, after):
    kept = keep_words(text, is_unknown)
    assert kept.text == read
    assert [word for _, word in kept.words] == words
    assert kept.after == after


def test_a_lost_word_is_appended():
    kept = keep_words("https://a.b を見て。", is_unknown)
    assert restore_words("Look.", kept) == "Look. (https://a.b)"


@pytest.mark.parametrize("part", ["a", "é", "www.", "a@", "Δ a@b.c ", "Δ1", "a.a@a."])
def test_long_texts_take_linear_time(part):
    text, start = part * (50_000 // len(part)), time.process_time()
    restore_words("B2", keep_words(text, is_unknown))
    assert time.process_time() - start < 2


def translator(kind):
    words = ["the cat and B2 K2", "the dog", "a bird 2 3 4 5 6 B K P R T"] * 5
    tokenizer = train(words, kind=kind, vocabulary=557)
    config = chumoku.preset("tiny-encoder-decoder", vocabulary=tokenizer.size)
    return chumoku.Pipeline(chumoku.build(config), tokenizer)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "character"])
def test_translating_keeps_addresses(kind):
    """Also with a model that writes nonsense; a vocabulary of words has no stand-ins, so there nothing is kept."""
    text = "the cat https://a.b/c"
    (result,) = translator(kind).translate([text], max_new_tokens=5)
    assert ("https://a.b/c" in result) == (kind != "word")
    (raw,) = translator(kind).translate([text], max_new_tokens=5, split=False)
    assert "https://a.b/c" not in raw


def test_the_server_keeps_the_same_words():
    """A text of symbols only has nothing to translate; two sentences may have the same stand-in."""
    pipeline = translator("unigram")
    texts = ["😀", "the cat 😀", "the dog https://a.b/c.\nthe dog https://d.e/f."]
    with serving({"one": pipeline}) as server:
        answer = server.post("/v1/translate", model="one", text=texts, max_tokens=5, alignment=True).json()
    found = answer["translations"]
    assert [one["hypotheses"][0]["text"] for one in found] == pipeline.translate(texts, max_new_tokens=5)
    pairs = [[tuple(word.values()) for word in one["stand_ins"]] for one in found]
    assert pairs == [[], [], [("B2", "https://a.b/c"), ("B2", "https://d.e/f")]]
