"""Tokenizers in a web page: Chromium encodes, decodes and labels as Python does; what it could not is refused.

`make strings` tests 100,000 random texts for each tokenizer instead of a hundred.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import module_page
from test_foreign_text import load_bert, trained_model
from test_sentences import TEXTS as SENTENCES
from test_text import ENGLISH, JAPANESE, MIXED, random_text
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from chumoku.errors import UsageError
from chumoku.server.token_text import label_tokens, token_text
from chumoku.text import KINDS, Tokenizer, load, train
from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.formats.gguf import from_ggml, to_ggml
from chumoku.text.kept_words import keep_words, restore_words
from chumoku.text.languages import source_frame, source_languages, target_languages, target_prompt
from chumoku.text.sentences import join_sentences, split_sentences
from chumoku.web.javascript_regex import translate
from chumoku.web.tokenizer_data import tokenizer_data

COUNT = int(os.environ.get("CHUMOKU_STRINGS", "101"))
BATCH = 5003
# Texts that tokenizers treat differently: special tokens, spaces, accents, jamo, cases, line ends, joiners.
PIECES = [
    *("<s>", "</s>", "<unk>", "<0x41>", "[CLS]", "<|endoftext|>", "##a", "bad", " Fed", " The ", "of ", "▁", " ", "  "),
    *("\n", "\r\n", "'s", "'LL", "don't", "12", "1234", "ﬁ", "Ａ\u0301", "e\u0301\u0327", "\u0334", "각", "ᄀ", "ᅡ", "ᆨ"),
    *("ｶﾞ", "猫である", "を", "カタ", "。", "The quick", "İ", "ß", "ſ", "Σ", "ﷺ"),
    *("\ufeff", "\u200d", "©\u200d", "½", "…"),
    *("\u0600a\u0301", "क्षि", "\u000b", "\u0085", "\u00ad", "𠮷", "😀", "\u0344\u0301"),
    *("ab", "a猫", "aaa", " fab ", " aoooooooo "),  # equal scores, unknown, equal merges, known, long
    *(" aoooooo ", "of𠮷", "𠮷of", "</s>  Fed"),  # longest word, half a character after a word, spaces of two tokens
    "\u32ff",  # ㋿, which Unicode has since 2019: the library's NFKC does not change it
]
ENTRY = """
import { makePretokenizer } from "./tokenizers/pretokenizers.js";
import { makeTokenizer } from "./tokenizers/tokenizer.js";
import { keepWords, restoreWords } from "./text/kept_words.js";
import { sourceFrame, sourceLanguages, targetLanguages, targetPrompt } from "./text/languages.js";
import { joinSentences, splitSentences } from "./text/sentences.js";
let tokenizer = null;
window.open_ = (data) => { tokenizer = makeTokenizer(data); };
window.texts = (texts) => texts.map((text) => {
  const ids = tokenizer.encode(text);
  return [ids, tokenizer.encode(text, { special: true }), tokenizer.decode(ids)];
});
window.rows = (rows) => rows.map((ids) => {
  const stream = tokenizer.stream();
  const shown = [...ids.map((id) => stream.push(id)), stream.finish()];
  return [tokenizer.decode(ids), tokenizer.decode(ids, { special: true }), shown, tokenizer.labelTokens(ids),
    ids.map((id) => tokenizer.tokenText(id).text), Array.from(tokenizer.decodeBytes(ids))];
});
window.sentences = (texts) => texts.map((text) => {
  const found = splitSentences(text);
  const kept = keepWords(text, (one) => one.codePointAt(0) % 3 === 0);
  return [found.map((one) => [one.text, one.space]),
    joinSentences(found.map((one) => one.text), found.map((one) => one.space)),
    [kept.text, kept.after, kept.words], restoreWords("Yes B2 and K2, XB2", kept)];
});
window.languages = (into, sourceLanguage) => [sourceFrame(tokenizer, { into, sourceLanguage }),
  targetPrompt(tokenizer, into), sourceLanguages(tokenizer), targetLanguages(tokenizer), tokenizer.frame];
window.splits = (data, texts) => {
  const split = makePretokenizer(data.pre_tokenizer, data.classes);
  return texts.map((text) => (text ? split([{ text, first: true }]).map((piece) => piece.text) : []));
};
window.failure = (action) => { try { action(); return null; } catch (error) { return [error.name, error.message]; } };
window.fails = (ids) => window.failure(() => tokenizer.decode(ids));
window.lacks = (code) => window.failure(() => tokenizer.encode("", { language: code }));
"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with module_page(browser, ENTRY) as one:
        yield one


def ask(page: Any, function: str, *arguments: Any) -> Any:
    """What a function of the page returns. JSON, because playwright converts long lists slowly."""
    script = "([name, given]) => JSON.stringify(window[name](...JSON.parse(given)) ?? null)"
    return json.loads(page.evaluate(script, [function, json.dumps(arguments)]))


def to_json(value: Any) -> Any:
    """A value with lists instead of tuples."""
    return json.loads(json.dumps(value))


def odd_text(chance: random.Random) -> str:
    def piece() -> str:
        ranges = ((32, 127), (0xA0, 0x250), (0x300, 0x370), (0x1100, 0x1200), (0x3040, 0x3100))
        return chance.choice(PIECES) if chance.random() < 0.7 else chr(chance.randrange(*chance.choice(ranges)))

    return "".join(piece() for _ in range(chance.randrange(13)))


def build(model: models.Model, added: list[str | AddedToken] | None = None, **steps: Any) -> Tokenizer:
    backend = Backend(model)
    for name, step in steps.items():
        setattr(backend, name, step)
    backend.add_tokens(added or [])
    return Tokenizer(Backend.from_str(backend.to_str()))


def with_pretokenizer(name: str) -> Tokenizer:
    return from_ggml({**to_ggml(train(ENGLISH + JAPANESE, vocabulary=347)), "tokenizer.ggml.pre": name})


def with_added_tokens() -> Tokenizer:
    added: list[str | AddedToken] = [
        *("bad", AddedToken("Fed", normalized=False, lstrip=True), AddedToken("of", single_word=True, rstrip=True)),
        *(
            AddedToken("<s>", special=True),
            AddedToken("</s>", special=True, rstrip=True),
            AddedToken("ÀB", special=True),
        ),
    ]
    vocab = {token: number for number, token in enumerate((*"abcdefg<>s/ ▁", "aa", "fab"))}
    model = models.BPE(vocab=vocab, merges=[("a", "a")], ignore_merges=True)
    words = pre_tokenizers.Split(" ", "isolated")
    return build(model, added, normalizer=normalizers.Lowercase(), pre_tokenizer=words)


def with_many_steps() -> Tokenizer:
    steps: list[Any] = [normalizers.Nmt(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    splits = [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(False), pre_tokenizers.CharDelimiterSplit("x")]
    splits += [pre_tokenizers.Split("q", "merged_with_previous"), pre_tokenizers.Split(Regex("(?i:s)"), "contiguous")]
    vocab = {token: number for number, token in enumerate(("<unk>", *"abcdefgs", "##o", "##f", "猫"))}
    return build(
        models.WordPiece(vocab, unk_token="<unk>", max_input_chars_per_word=7),
        normalizer=normalizers.Sequence([*steps, normalizers.NFKC(), normalizers.Strip()]),
        pre_tokenizer=pre_tokenizers.Sequence(splits),
        decoder=decoders.WordPiece(cleanup=True),
    )


def with_space_before_the_first_piece() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁a", -1.5), ("a", -2.0), ("b", -3.0), ("ab", -5.0), ("a猫", -30.0)]
    space = {"prepend_scheme": "first"}
    decoder = decoders.Metaspace(**space)  # type: ignore[arg-type]
    return build(models.Unigram(pieces, 0, False), pre_tokenizer=pre_tokenizers.Metaspace(**space), decoder=decoder)  # type: ignore[arg-type]


def tokenizers(folder: Path) -> Iterator[tuple[str, Callable[[], Tokenizer]]]:
    for kind in KINDS:
        yield kind, functools.partial(train, ENGLISH + JAPANESE, kind=kind, vocabulary=701, segment=False)
    yield "split", lambda: train(JAPANESE, kind="unigram", vocabulary=601, split_digits=True, split_scripts=True)
    yield "llama 3", lambda: with_pretokenizer("llama-bpe")
    yield "deepseek", lambda: with_pretokenizer("deepseek-v3")
    yield "empty matches", lambda: with_pretokenizer("superbpe")
    yield "sentencepiece", lambda: load(trained_model(folder, "unigram"))
    yield "llama", lambda: load(trained_model(folder, "bpe", byte_fallback=True, vocab_size=677))
    yield (
        "bert",
        lambda: load_bert(folder, "the", "quick", "##a", "e", "i", "1", "##2", "猫", "!", ".", "do", "not", "'"),
    )
    yield "added tokens", with_added_tokens
    yield "many steps", with_many_steps
    yield "first", with_space_before_the_first_piece


def in_batches(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def compare(page: Any, name: str, tokenizer: Tokenizer, chance: random.Random) -> None:
    """Compare the page's answers with Python's."""
    ask(page, "open_", tokenizer_data(tokenizer))
    texts = [MIXED, "", *PIECES, *((random_text, odd_text)[number % 2](chance) for number in range(COUNT))]
    for batch in in_batches(texts):
        plain, special = tokenizer.encode_batch(batch), tokenizer.encode_batch(batch, special=True)
        expected = zip(batch, plain, special, tokenizer.decode_batch(plain), strict=True)
        for found, (text, *rest) in zip(ask(page, "texts", batch), expected, strict=True):
            assert found == rest, (name, text)
    rows = [tokenizer.encode("鬱😀")]
    rows += [[chance.randrange(tokenizer.size) for _ in range(chance.randrange(11))] for _ in range(min(COUNT, BATCH))]
    for some in in_batches(rows):
        for found, ids in zip(ask(page, "rows", some), some, strict=True):
            assert found == decode(tokenizer, ids), (name, ids)


def decode(tokenizer: Tokenizer, ids: list[int]) -> list[Any]:
    stream = tokenizer.stream()
    return [
        tokenizer.decode(ids),
        tokenizer.decode(ids, special=True),
        [*map(stream.push, ids), stream.finish()],
        label_tokens(ids, tokenizer),
        [token_text(tokenizer, token).text for token in ids],
        list(tokenizer.decode_bytes(ids)),
    ]


def test_random_strings_are_encoded_and_decoded_as_in_python(page: Any, tmp_path: Path) -> None:
    for name, make in tokenizers(tmp_path):
        compare(page, name, make(), random.Random(7))


def test_long_texts_sentences_and_languages(page: Any) -> None:
    """Also kept words, the tokens of languages, and errors with Python's sentence."""
    chance = random.Random(11)
    tokenizer = train(ENGLISH + JAPANESE, kind="unigram", vocabulary=701, languages=("ja", "en"))
    ask(page, "open_", tokenizer_data(tokenizer))
    words = ["fox ", "lazy\n", "猫", "  ", "😀", "x", "</s>"]
    long = ["".join(chance.choices(words, k=5003)), "𠮷" * 8191 + " ab" * 7]
    expected = [[tokenizer.encode(text), tokenizer.encode(text, special=True)] for text in long]
    assert [found[:2] for found in ask(page, "texts", long)] == expected
    vocab = {token: number for number, token in enumerate(("x", "y", " ", "x  "))}
    model = models.BPE(vocab=vocab, merges=[], ignore_merges=True)
    spaced = build(model, pre_tokenizer=pre_tokenizers.Split("x  ", "isolated"))
    ask(page, "open_", tokenizer_data(spaced))
    assert ask(page, "texts", ["x  y" * 2503])[0][0] == spaced.encode("x  y" * 2503), "not split between two spaces"
    ask(page, "open_", tokenizer_data(tokenizer))
    frame, prompt = source_frame(tokenizer, into="ja"), target_prompt(tokenizer)
    names = source_languages(tokenizer), target_languages(tokenizer)
    assert ask(page, "languages", "ja", None) == to_json([frame, prompt, *names, tokenizer.frame])
    with pytest.raises(UsageError) as no_token:
        tokenizer.decode([tokenizer.size])
    assert ask(page, "fails", [tokenizer.size]) == ["RequestError", str(no_token.value)]
    with pytest.raises(UsageError) as no_language:
        tokenizer.encode("", language="qqq")
    assert ask(page, "lacks", "qqq") == ["RequestError", str(no_language.value)]
    texts = [*SENTENCES, *("".join(chance.choices(MARKS, k=chance.randrange(31))) for _ in range(307))]
    assert ask(page, "sentences", texts) == [sentences_of(text) for text in texts]


MARKS = [
    *"ab A.!?。！？．…「」（)『』“”’]\n\t \"'1猫にゃé😀Д𠮷½²\u00ad\x1c\x85\ufeff、，",
    "Dr. ",
    "e.g. ",
    "fıg. ",
    " No. 5",
]
MARKS += [" 3. ", "https://example.com/a(b)", "x@y.com", "B2", "Ｋ3", "ſt. X"]


def sentences_of(text: str) -> list[Any]:
    found = split_sentences(text)
    kept = keep_words(text, lambda char: ord(char) % 3 == 0)
    parts = [list(one) for one in found]
    joined = join_sentences([one.text for one in found], [one.space for one in found])
    words = [list(word) for word in kept.words]
    return [parts, joined, [kept.text, kept.after, words], restore_words("Yes B2 and K2, XB2", kept)]


def test_languages_around_texts(page: Any) -> None:
    """M2M100, mBART and NLLB have a token for the language of each text."""
    for before, after, begin in ((["en_XX"], ["</s>"], "</s>"), ([], ["</s>", "ja_XX"], "ja_XX")):
        vocab = {token: number for number, token in enumerate(("<unk>", "</s>", "en_XX", "ja_XX", "a"))}
        backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
        backend.add_special_tokens(["</s>", "en_XX", "ja_XX"])
        set_prefix_and_suffix(backend, before, after, {"begin": begin, "forced_begin": "en_XX"})
        tokenizer = Tokenizer(backend)
        ask(page, "open_", tokenizer_data(tokenizer))
        for into, source in ((None, None), ("ja_XX", "en_XX")):
            frame = source_frame(tokenizer, into=into, source_language=source)
            names = source_languages(tokenizer), target_languages(tokenizer)
            expected = [frame, target_prompt(tokenizer, into), *names, tokenizer.frame]
            found = ask(page, "languages", into, source)
            assert found == to_json(expected), (before, into)


def test_what_a_page_cannot_do_exactly_is_refused() -> None:
    words = train(JAPANESE, kind="word", vocabulary=197)
    with pytest.raises(UsageError, match="SudachiPy's dictionary, which a web page cannot contain"):
        tokenizer_data(words)
    letters = models.BPE(vocab={"a": 0}, merges=[])
    for steps, message in (
        ({"pre_tokenizer": pre_tokenizers.UnicodeScripts()}, "has the pre-tokenizer UnicodeScripts, which a web page"),
        ({"pre_tokenizer": pre_tokenizers.Split(Regex(r"(a)\1"), "isolated")}, "near character 5, which a web page"),
        (
            {"normalizer": normalizers.Strip(), "pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first")},
            "a Metaspace that only the first piece gets",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            tokenizer_data(build(letters, **steps))
    with pytest.raises(UsageError, match=r"left out at random \(dropout\)"):
        tokenizer_data(build(models.BPE(vocab={"a": 0}, merges=[], dropout=0.5)))


@pytest.mark.parametrize(
    "pattern",
    [
        r"\X",
        r"(?<name>a)",
        "a**",
        "a{2}?",
        "[]a]",
        "[a",
        "(a",
        "a)",
        "*a",
        "(?i:ss)",
        "(?<=a++)",
        "(?#x)a",
        r"\K",
        r"a\R",
    ],
)
def test_patterns_without_counterpart_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="cannot reproduce exactly"):
        translate(pattern)


PATTERNS = [
    r"a++ab|(?>a|ab)c|b",
    r"^\s|x$",
    r"\A.|\z|\Z",
    r"\bfo|\Bx",
    r"[^[:alpha:]&&[^0-9]]",
    r"(?i)fox|K",
    "o{,2}x|{,}",
    "a{1,2}?",
]
PATTERNS += [r"(?<=o)x|(?<!a)b", r"(?-i:a)|\x{732B}|\u3042", r"[\]\[a-c]+", "x*", "(?=([0-9]{3})+)", r"\h\H"]


def test_patterns_match_as_in_the_library(page: Any) -> None:
    chance = random.Random(13)
    letters = ["a", "b", "ab", "c", "x", "fox", "FOX", "k", "K", "\n", " ", "0123", "猫", "あ", "[", "]", "😀", "_"]
    texts = ["".join(chance.choices(letters, k=chance.randrange(17))) for _ in range(53)]
    for pattern in PATTERNS:
        for behavior in ("isolated", "removed", "merged_with_next"):
            split = pre_tokenizers.Split(Regex(pattern), behavior)
            tokenizer = build(models.WordLevel({"<unk>": 0}, unk_token="<unk>"), pre_tokenizer=split)
            found = ask(page, "splits", tokenizer_data(tokenizer), texts)
            assert found == [[piece for piece, _ in split.pre_tokenize_str(text)] for text in texts], (
                pattern,
                behavior,
            )
