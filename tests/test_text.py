"""Tokenizers: round trips for every kind, special tokens as text, public files, streaming, long texts."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel

from chumoku import text as chumoku_text
from chumoku.errors import MissingExtraError, UsageError
from chumoku.text import KINDS, Tokenizer, japanese, load, train
from chumoku.text.sample_texts import sample_randomly, subsample
from chumoku.text.training import Kind

ENGLISH = ["The quick brown fox jumps over the lazy dog.", "Hello, world! 1234", "def f(x): return x + 1\n"] * 30
JAPANESE = ["サンディーが元気に走る。", "こたつでみかんを食べる。", "吾輩は猫である。名前はまだ無い。"] * 30
MIXED = "Hello  世界、 ＡＢＣ ｶﾞ １２３ 😀👨‍👩‍👧 é e\u0301 \t\n \u200b\x00 end"


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train(ENGLISH + JAPANESE, kind=kind, vocabulary=700, languages=("ja", "en")) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_training_texts_round_trip(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    assert tokenizer.kind == kind
    for text in (*ENGLISH[:3], *JAPANESE[:3]):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode_batch([text, "a"])[0] == tokenizer.encode(text)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_byte_level_kinds_round_trip_any_text(trained: dict[str, Tokenizer], kind: str) -> None:
    assert trained[kind].decode(trained[kind].encode(MIXED)) == MIXED


def normalize(text: str) -> str:
    """The documented result of a round trip in the other kinds, without unknown characters: NFKC, and ▁ as a space.

    The library's NFKC is of an older Unicode version than Python's: it does not change ㋿ (2019), for example.
    """
    return normalizers.NFKC().normalize_str(text).replace("▁", " ")


def test_library_normalizes_with_nfkc() -> None:
    for text in (MIXED, "ｶﾞｷﾞ ㍿ ①② ﬁ Ⅷ ㌔ ｢｣", "e\u0301 \u1e9b\u0323"):
        assert normalize(text) == unicodedata.normalize("NFKC", text)


def test_unigram_falls_back_to_bytes(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["unigram"]
    assert tokenizer.decode(tokenizer.encode(MIXED)) == normalize(MIXED)
    assert tokenizer.roles.unknown not in tokenizer.encode(MIXED)


@settings(max_examples=100)
@given(text=st.text(max_size=40))
@pytest.mark.parametrize("kind", KINDS)
def test_any_text_encodes_and_streams(trained: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = trained[kind]
    assert round_trips(tokenizer, text)
    ids = tokenizer.encode(text)
    assert all(0 <= number < tokenizer.size for number in ids)
    decoded = tokenizer.decode(ids)
    pieces = tokenizer.stream()
    assert "".join([*(pieces.push(number) for number in ids), pieces.finish()]) == decoded


def test_unpaired_surrogate_becomes_replacement_character(trained: dict[str, Tokenizer]) -> None:
    for tokenizer in trained.values():
        assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
        assert tokenizer.encode("\ud83d\ude00") == tokenizer.encode("😀")


COUNT = int(os.environ.get("CHUMOKU_STRINGS", "3000"))


def random_text(chance: random.Random) -> str:
    def character() -> str:
        while True:
            code = chance.choice([chance.randrange(128), chance.randrange(0x3000, 0x9FFF), chance.randrange(0x110000)])
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    return "".join(character() for _ in range(chance.randrange(20)))


def round_trips(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is restored: exactly in byte-level kinds, normalized in others unless it has unknown tokens."""
    ids = tokenizer.encode(text)
    if tokenizer.byte_level:
        return tokenizer.decode(ids) == text
    sample = "" if tokenizer.segments else japanese.SEPARATOR
    return tokenizer.roles.unknown in ids or tokenizer.decode(ids) == normalize(text).replace(
        japanese.SEPARATOR, sample
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_random_strings_and_bytes_round_trip(trained: dict[str, Tokenizer], kind: str) -> None:
    """Tests 3,000 of each; `make strings` tests 100,000."""
    tokenizer, chance = trained[kind], random.Random(7)
    for _ in range(COUNT):
        text, data = random_text(chance), chance.randbytes(chance.randrange(20))
        assert round_trips(tokenizer, text), repr(text)
        ids = tokenizer.encode_bytes(data)
        if tokenizer.byte_level:
            assert tokenizer.decode_bytes(ids) == data
        else:
            assert ids == tokenizer.encode(data.decode("utf-8", "replace"))
            assert round_trips(tokenizer, data.decode("utf-8", "replace"))


def test_typed_byte_tokens_stay_text(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["unigram"]
    assert tokenizer.decode(tokenizer.encode("a<0x41>b")) == "a<0x41>b"


@pytest.mark.parametrize("kind", KINDS)
def test_special_token_in_a_long_text_is_not_split(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    for length in range(8187, 8194):
        ids = tokenizer.encode("a" * length + "</s>" + "b" * 20, special=True)
        assert ids.count(tokenizer.roles.end) == 1, length


def test_ids_may_have_gaps(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    backend = Backend(models.WordLevel({"<unk>": 0, "a": 1, "far": 100000}, unk_token="<unk>"))
    tokenizer = Tokenizer(backend)
    assert tokenizer.size == 100001
    assert tokenizer.decode(tokenizer.encode("far")) == "far"


def test_language_codes_are_checked() -> None:
    tokenizer = train(ENGLISH, kind="byte", languages=["zh-Hans", "pt_BR"])
    assert set(tokenizer.roles.languages) == {"zh-Hans", "pt_BR"}
    with pytest.raises(UsageError, match="'japanese language' is not a language code"):
        train(ENGLISH, kind="byte", languages=["japanese language"])


@pytest.mark.parametrize("kind", KINDS)
def test_typed_special_token_stays_text(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    special = set(tokenizer.specials.values()) - {tokenizer.roles.unknown}
    for name in tokenizer.specials:
        assert not special & set(tokenizer.encode(f"a {name} b{name}{name}")), name
        assert tokenizer.encode(name, special=True) == [tokenizer.specials[name]]
    with_special = tokenizer.encode("dog</s>dog", special=True)
    assert with_special.count(tokenizer.roles.end) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_roles_and_languages(trained: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = trained[kind]
    roles = tokenizer.roles
    assert (roles.pad, roles.begin, roles.end, roles.unknown, roles.mask) == (0, 1, 2, 3, 4)
    assert dict(roles.languages) == {"ja": 5, "en": 6}
    around = tokenizer.encode("dog", begin=True, end=True, language="ja")
    assert (around[:2], around[-1]) == ([5, 1], 2)
    assert tokenizer.decode(around) == "dog"
    assert tokenizer.decode(around, special=True) == "<2ja><s>dog</s>"
    with pytest.raises(UsageError, match=r"has no language 'fr'. Its languages: ja, en"):
        tokenizer.encode("chien", language="fr")
    with pytest.raises(UsageError, match="There is no token 99999"):
        tokenizer.decode([99999])


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    tokenizer = trained[kind]
    again = load(tokenizer.save(tmp_path / "new" / "tokenizer.json"))
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode(MIXED) == tokenizer.encode(MIXED)
    assert (again.kind, again.roles, again.segments) == (tokenizer.kind, tokenizer.roles, tokenizer.segments)
    assert load(tmp_path / "new").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wordpiece"])
def test_training_is_deterministic(kind: str) -> None:
    one, two = (train(ENGLISH + JAPANESE, kind=kind, vocabulary=600) for _ in range(2))
    assert one.fingerprint == two.fingerprint


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "wordpiece"])
def test_digits_can_be_tokens_of_their_own(kind: Kind) -> None:
    texts = [f"In 2024 {one} paid 2024 yen for {other}." for one in ("we", "they", "Tom") for other in ("it", "tea")]
    joined, split = (train(texts, kind=kind, vocabulary=600, split_digits=digits) for digits in (False, True))
    assert kind == "unigram" or len(joined.encode("2024")) < 4
    ids = split.encode("In 2042 yen")
    assert split.decode(ids) == "In 2042 yen"
    assert not any(sum(char.isdigit() for char in split.decode([token])) > 1 for token in ids)


def test_vocabulary_is_padded_to_a_multiple() -> None:
    tokenizer = train(ENGLISH, kind="bpe", vocabulary=300, multiple=64)
    assert tokenizer.size == 320
    assert tokenizer.decode([tokenizer.size - 1]) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "morpheme"}, "There is no tokenizer kind 'morpheme'; choose character, byte, word"),
        ({"vocabulary": 0}, "A vocabulary has 1 to"),
        ({"vocabulary": 100}, "The kind bpe needs a vocabulary of 261 or more, not 100"),
        ({"kind": "unigram", "vocabulary": 516}, "The kind unigram needs a vocabulary of 517 or more, not 516"),
    ],
)
def test_impossible_training_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(ENGLISH, **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no text to train a tokenizer on"):
        train(["", "  "])


def test_japanese_is_split_into_dictionary_words() -> None:
    tokenizer = train(JAPANESE, kind="word", vocabulary=200)
    assert tokenizer.segments
    assert tokenizer.pieces("こたつでみかんを食べる。") == ["こたつ", "で", "みかん", "を", "食べる", "。"]
    assert train(ENGLISH, kind="word", vocabulary=200).segments is False
    pieces = train(JAPANESE, kind="bpe", vocabulary=400, segment=True)
    assert pieces.decode(pieces.encode("吾輩は猫である。")) == "吾輩は猫である。"


def test_missing_sudachi_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sudachipy", None)
    monkeypatch.setattr(japanese, "_thread", threading.local())
    japanese._dictionary.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[ja\]'. Or choose the kind unigram or bpe"):
        train(JAPANESE, kind="word", vocabulary=200)
    for kind in ("unigram", "bpe"):
        assert train(JAPANESE, kind=kind, vocabulary=600).encode("猫")
    monkeypatch.undo()
    japanese._dictionary.cache_clear()


def test_full_and_half_width_are_normalized() -> None:
    tokenizer = train([*JAPANESE, "ＡＢＣ ガギグ 123"] * 5, kind="character", vocabulary=200)
    assert tokenizer.encode("ＡＢＣ　ｶﾞ１２３") == tokenizer.encode("ABC ガ123")
    exact = train([*JAPANESE, "ＡＢＣ"] * 5, kind="character", vocabulary=200, normalize=False)
    assert exact.decode(exact.encode("ＡＢＣ")) == "ＡＢＣ"


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_time_is_linear_in_length(trained: dict[str, Tokenizer], kind: str) -> None:
    """Ten times the text must not take a hundred times as long; `benchmarks/text.py` measures the exact time."""
    tokenizer = trained[kind]
    for unit in ("a", " ", "\u200b", "あ"):

        def seconds(size: int, unit: str = unit) -> float:
            text, best = unit * size, float("inf")
            for _ in range(3):
                start = time.perf_counter()
                tokenizer.encode(text)
                best = min(best, time.perf_counter() - start)
            return best

        assert seconds(200_000) < 40 * max(seconds(20_000), 2e-3), repr(unit)


@pytest.mark.parametrize("kind", KINDS)
def test_splitting_a_long_text_changes_nothing(
    trained: dict[str, Tokenizer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chumoku.text import tokenizer as module

    text = " ".join([*ENGLISH[:3], *JAPANESE[:3], "  two  spaces "] * 20)
    expected = trained[kind].encode(text)
    monkeypatch.setattr(module, "MAX_PIECE_LENGTH", 97)
    assert trained[kind].encode(text) == expected
    assert trained[kind].decode(trained[kind].encode("x" * 1000)) == trained[kind].decode(expected[:0]) + (
        "" if trained[kind].roles.unknown in trained[kind].encode("xx") else "x" * 1000
    )


def test_streaming_returns_complete_characters(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["byte"]
    stream = tokenizer.stream()
    shown = [stream.push(number) for number in tokenizer.encode("猫😀a")]
    assert shown == ["", "", "猫", "", "", "", "😀", "a"]
    assert stream.finish() == ""
    broken = tokenizer.stream()
    ids = tokenizer.encode_bytes(b"\xe7\x8c")
    assert [broken.push(number) for number in ids] == ["", ""]
    assert broken.finish() == tokenizer.decode(ids)


@settings(max_examples=200)
@given(numbers=st.lists(st.integers(0, 255), max_size=60))
def test_any_ids_stream_as_they_decode(trained: dict[str, Tokenizer], numbers: list[int]) -> None:
    for tokenizer in trained.values():
        ids = [number % tokenizer.size for number in numbers]
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)


def test_gpt2_files_give_the_ids_of_tiktoken(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    """A small vocabulary, written as GPT-2's files and read by two implementations."""
    model = json.loads(trained["bpe"]._special.to_str())["model"]
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in trained["bpe"].specials}
    vocabulary = {token: number for number, token in enumerate(sorted(vocabulary, key=vocabulary.__getitem__))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (tmp_path / "encoder.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    ours = load(tmp_path)
    letters = ours._unicode_to_bytes
    ranks = {bytes(letters[c] for c in token): n for token, n in vocabulary.items() if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    reference = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in (*ENGLISH[:3], *JAPANESE[:3], MIXED, "for i in range(10):\n    print(i)  # 猫 🐈", "  \n\n  x"):
        assert ours.encode(text) == reference.encode(text, disallowed_special=())
    assert ours.roles.end == ours.roles.begin == vocabulary["<|endoftext|>"]
    assert ours.encode("<|endoftext|>") != [vocabulary["<|endoftext|>"]]
    assert set(ByteLevel.alphabet()) == set(letters)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_sentencepiece_models_give_the_ids_of_sentencepiece(kind: str, byte_fallback: bool, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(ENGLISH + JAPANESE), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "small"),
        vocab_size=400 if byte_fallback else 150,
        model_type=kind,
        byte_fallback=byte_fallback,
        character_coverage=0.98,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "small.model"))
    ours = load(tmp_path / "small.model")
    assert ours.size == reference.get_piece_size()
    for text in (*ENGLISH[:2], *JAPANESE[:3], "Hello  ＡＢＣ  fox ", "zebra 犬 😀"):
        assert ours.encode(text) == reference.encode(text), text
        halves = [*ours.encode(text), 1, *ours.encode("Hello"), 2, *ours.encode("dog")]
        stream = ours.stream()
        assert "".join([*map(stream.push, halves), stream.finish()]) == ours.decode(halves)
        if byte_fallback:
            assert ours.decode(ours.encode(text)) == reference.decode(reference.encode(text))
    typed = [number for number, _ in itertools.groupby(ours.encode("</s>"))]
    assert typed == [number for number, _ in itertools.groupby(reference.encode("</s>"))]
    assert (ours.roles.unknown, ours.roles.begin, ours.roles.end) == (0, 1, 2)


def test_bert_vocabulary(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "jump", "##s", "##ed", "猫", ",", "[", "]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    ours, reference = load(tmp_path), BertTokenizerFast(str(tmp_path / "vocab.txt"))
    for text in ("The fox jumps, JUMPED 猫猫 over", "fox  the"):
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False)
    assert (ours.roles.pad, ours.roles.begin, ours.roles.end, ours.roles.mask) == (0, 2, 3, 4)
    assert 2 not in ours.encode("[CLS]")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "is not a readable tokenizer"),
        ("tokenizer.json", b"[]", "is not a readable tokenizer"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "is not a readable tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "is not a readable tokenizer"),
        ("small.model", b"", "has no pieces"),
        ("small.model", b"\x0a\xff\xff\xff\xff\x0f", "runs past the end"),
        ("small.model", b"\xff" * 11, "does not end"),
        ("small.model", b"\x0f", "wire type 7"),
        ("vocab.txt", b"the\nfox", r"a BERT vocabulary needs \[PAD\]"),
    ],
)
def test_broken_tokenizer_file_message(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as refused:
        load(tmp_path / name)
    assert name in str(refused.value)


def test_missing_file_and_empty_folder_messages(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent.json could not be read: No such file"):
        load(tmp_path / "absent.json")
    with pytest.raises(UsageError, match=r"has no tokenizer. Expected tokenizer.json"):
        load(tmp_path)


@pytest.mark.parametrize("sample", [subsample, sample_randomly])
def test_samples_of_pairs_have_both_languages(sample: Callable[[list[str], int], list[str]]) -> None:
    texts = [f"{'en' if number % 2 else 'ja'}{number:05}" for number in range(20011)]
    for most in (70_000, 35_000, 17_500, 5_003):
        chosen = sample(texts, most)
        assert most / 2.2 < sum(map(len, chosen)) < 1.1 * most
        assert 0.4 < sum(text.startswith("ja") for text in chosen) / len(chosen) < 0.6
        assert [int(text[2:]) for text in chosen] == sorted(int(text[2:]) for text in chosen)
    assert sample(texts, 10**6) == texts
    assert len(sample(["a" * 701, "b" * 809], 500)) == 1, "never nothing"


def test_text_package_does_not_import_torch() -> None:
    code = "import sys; import chumoku.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert chumoku_text.KINDS == KINDS


def test_threads_split_words_concurrently() -> None:
    words = train(["猫が走る", "犬が寝る"], kind="word", vocabulary=31)
    with ThreadPoolExecutor(7) as pool:
        found = list(pool.map(words.pieces, ["猫が走る。犬が寝る。" * 29] * 199))
    assert all(one == found[0] for one in found)


def test_a_unigram_of_whole_words_splits_like_the_dictionary_and_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["こたつでみかんを食べる", "庭で猫がみかんを見る", "猫がこたつで眠る"] * 3
    trained = train(texts, kind="unigram", vocabulary=601, whole_words=True)
    monkeypatch.setattr(japanese, "segment", None)
    assert trained.pieces("猫がこたつでみかんを食べる") == ["猫", "が", "こたつ", "で", "みかん", "を", "食べる"]
    assert trained.pieces("猫で食う")[:3] == ["猫", "で", "食"], "words, a character, and bytes for unseen characters"
    for text in ("犬と a cat ▁", "日本語\nの文"):
        assert trained.decode(trained.encode(text)) == text.replace("▁", " ")
    with pytest.raises(UsageError, match="whole_words is for the kind unigram"):
        train(texts, kind="bpe", whole_words=True)
