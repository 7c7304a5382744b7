"""Training tokenizers of each kind.

    character   each character is a token             byte       each byte is a token
    word        each word is a token                  bpe        bytes, the most frequent pairs merged
    unigram     pieces chosen by a language model     wordpiece  pieces of words, longest match first

byte and bpe encode any text. unigram falls back to bytes for unseen characters; character, word and wordpiece have
<unk>. unigram, word and wordpiece write a space as ▁, so that decoding restores it (and a ▁ in a text becomes a space).
The same texts give the same tokenizer, except for wordpiece and unigram, whose trainers break ties at random.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from chumoku.errors import UsageError
from chumoku.text import japanese
from chumoku.text.progress import Progress, silent, track
from chumoku.text.sample_texts import sample_randomly, split_long_texts, subsample
from chumoku.text.special_tokens import UNKNOWN, special_tokens
from chumoku.text.tokenizer import Tokenizer
from chumoku.text.training_process import train_in_child

Kind = Literal["character", "byte", "word", "bpe", "unigram", "wordpiece"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
FEWEST_TOKENS = {"bpe": 256, "unigram": 2 * len(BYTE_TOKENS)}  # besides special tokens: all bytes, and some pieces
MAX_VOCABULARY = 1 << 22
MAX_CHARACTERS = 1 << 27  # in the training sample
# Unigram training repeatedly scores every piece of every text, so it uses a sample of passages and starts with only
# a few times as many pieces as the vocabulary needs.
MAX_UNIGRAM_CHARACTERS = 1 << 20
UNIGRAM_SEED_FACTOR = 3
PASSAGE = re.compile(r".{256,}?\n+|.+", re.DOTALL)
CHARACTER_COVERAGE = 0.9995
# Up to so many characters, training runs in this process, because it takes less than a second.
IN_PROCESS_CHARACTERS = {"unigram": 1 << 15}
IN_PROCESS_CHARACTERS_OTHERS = 1 << 20


def train(
    texts: Iterable[str],
    *,
    kind: Kind = "bpe",
    vocabulary: int = 8000,
    normalize: bool | None = None,
    segment: bool | None = None,
    split_digits: bool = False,
    split_scripts: bool = False,
    whole_words: bool = False,
    languages: Iterable[str] = (),
    sentinels: int = 0,
    multiple: int = 1,
    progress: Progress = silent,
) -> Tokenizer:
    """Train a tokenizer on texts.

    normalize   apply NFKC (full-width and half-width forms become equal); default: all kinds but byte and bpe
    segment     split Japanese into words first; default: the kind word on Japanese text
    split_digits    each digit is a token of its own, so that a model can copy any number
    split_scripts   no token reaches over the start of a kanji or katakana word, over を or over Japanese punctuation
    whole_words     unigram: the pieces are the Japanese words of the texts, found by SudachiPy now; encoding needs no
                    dictionary
    languages   codes such as "ja" that get a token (<2ja>)
    sentinels   number of tokens <extra_id_0>, <extra_id_1> … for span corruption
    multiple    pad the vocabulary with unused tokens to a multiple of this

    Ctrl-C stops the training at once.
    """
    specials = special_tokens(languages, sentinels)
    check_vocabulary(kind, vocabulary, specials, multiple=multiple)
    if whole_words and (kind != "unigram" or split_digits or split_scripts):
        raise UsageError("whole_words is for the kind unigram, without split_digits and split_scripts.")
    if normalize is None:
        normalize = kind not in ("byte", "bpe")
    texts = track(texts, progress, "reading", unit="characters", size=len)
    sample = subsample(split_long_texts(texts), MAX_CHARACTERS)
    if not any(piece.strip() for piece in sample):
        raise UsageError("There is no text to train a tokenizer on. Check the input files.")
    if segment is None:
        segment = kind == "word" and japanese.share_of_japanese("".join(sample[:1000])) > 0.1
    if segment or whole_words:
        segmented = (japanese.segment(piece) for piece in sample)
        sample = list(track(segmented, progress, "splitting into words", unit="characters", size=len))
    if kind == "unigram" and not whole_words:
        sample = sample_randomly([piece for text in sample for piece in PASSAGE.findall(text)], MAX_UNIGRAM_CHARACTERS)
    settings = {"vocabulary": vocabulary, "specials": specials, "normalize": normalize, "segment": segment}
    settings["splits"] = [*(["digits"] if split_digits else []), *(["scripts"] if split_scripts else [])]
    backend = (
        _collect_words(sample, vocabulary, specials, normalize)
        if whole_words
        else _train_backend(kind, sample, settings, progress)
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    _pad_vocabulary(backend, multiple)
    return Tokenizer(backend)


def check_vocabulary(kind: str, vocabulary: int, specials: Sequence[str], *, multiple: int = 1) -> None:
    """Raise UsageError if there is no such kind of tokenizer, or if it needs more tokens."""
    if kind not in KINDS:
        raise UsageError(f"There is no tokenizer kind '{kind}'; choose {', '.join(KINDS)}.")
    if not 1 <= vocabulary <= MAX_VOCABULARY or not 1 <= multiple <= MAX_VOCABULARY:
        raise UsageError(f"A vocabulary has 1 to {MAX_VOCABULARY:,} tokens, not {vocabulary} (multiple of {multiple}).")
    if vocabulary <= len(specials):
        raise UsageError(f"A vocabulary of {vocabulary} is too small: {len(specials)} tokens of it are special tokens.")
    minimum = FEWEST_TOKENS.get(kind, 0) + len(specials)
    if vocabulary < minimum:
        raise UsageError(f"The kind {kind} needs a vocabulary of {minimum} or more, not {vocabulary}.")


def _train_backend(kind: Kind, texts: list[str], settings: dict[str, Any], progress: Progress) -> tokenizers.Tokenizer:
    characters = sum(map(len, texts))
    if characters <= IN_PROCESS_CHARACTERS.get(kind, IN_PROCESS_CHARACTERS_OTHERS) or not sys.executable:
        return TRAINERS[kind](texts, **settings)
    return train_in_child(
        texts,
        {"kind": kind, **settings},
        lambda: progress(f"training a {kind} tokenizer on {characters:,} characters"),
    )


def _train_character(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    common = [char for char, _ in _count_characters(texts, normalize).most_common(max(0, vocabulary - len(specials)))]
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*specials, *sorted(common)]))}
    # BPE without merges gives single characters.
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN))
    return _set_steps(backend, normalize, [], decoders.Fuse(), segment, splits)


def _train_byte(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*specials, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _set_steps(backend, normalize, [pre_tokenizer], decoders.ByteLevel(), segment, splits)


def _train_bpe(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _set_steps(backend, normalize, [pre_tokenizer], decoders.ByteLevel(), segment, splits)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_word(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    _set_steps(backend, normalize, _word_pretokenizers(), _restore_spaces(), segment, splits)
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_wordpiece(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    # Each kanji is a word of its own, as in BERT: without spaces, a clause would be one word that is too long to match.
    splitters = [*_word_pretokenizers(), pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")]
    _set_steps(backend, normalize, splitters, _restore_spaces(decoders.Replace(Regex("^##"), "")), segment, splits)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        # Each letter is in the alphabet twice: at the start of a word, and with ## inside a word.
        limit_alphabet=max(1, (vocabulary - len(specials)) // 3),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_unigram(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool, splits: list[str]
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.Unigram())
    splitters = [pre_tokenizers.Metaspace(prepend_scheme="never")]
    _set_steps(backend, normalize, splitters, _restore_spaces(decoders.ByteFallback()), segment, splits)
    size = vocabulary - len(BYTE_TOKENS)
    trainer = trainers.UnigramTrainer(  # type: ignore[call-arg]  # its stub lacks seed_size
        vocab_size=size,
        special_tokens=specials,
        unk_token=UNKNOWN,
        shrinking_factor=0.5,
        seed_size=UNIGRAM_SEED_FACTOR * vocabulary,
        show_progress=False,
    )
    backend.train_from_iterator(_split_at_rare_characters(texts, normalize, size // 2), trainer)
    scores = {piece: round(score, 5) for piece, score in _read_scores(backend).items() if piece not in specials}
    return _set_pieces(backend, scores, specials)


def _collect_words(texts: list[str], vocabulary: int, specials: list[str], normalize: bool) -> tokenizers.Tokenizer:
    """A unigram tokenizer of the words of segmented texts, with their share as probability, and of single characters.

    A character that is no word is less likely than any word, so words are not split.
    """
    backend = tokenizers.Tokenizer(models.Unigram())
    splitters = [pre_tokenizers.Metaspace(prepend_scheme="never")]
    _set_steps(backend, normalize, splitters, _restore_spaces(decoders.ByteFallback()), False, [])
    room = vocabulary - len(BYTE_TOKENS) - len(specials)
    normalizer = normalizers.NFKC()
    normalized = (normalizer.normalize_str(text) if normalize else text for text in texts)
    words = Counter(word.replace(" ", "▁") for text in normalized for word in text.split(japanese.SEPARATOR) if word)
    letters = [char for char, _ in _most_common(Counter("".join(words)), room // 4)]
    chosen = _most_common(words, room - len(letters))
    scores = {word: round(math.log(count / words.total()), 5) for word, count in chosen}
    lowest = min(scores.values(), default=0.0) - 10.0
    return _set_pieces(backend, {**dict.fromkeys(letters, lowest), **scores}, specials)


def _most_common(counts: Counter[str], number: int) -> list[tuple[str, int]]:
    """The most frequent, those of one frequency in the order of their characters."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def _set_pieces(backend: tokenizers.Tokenizer, scores: dict[str, float], specials: list[str]) -> tokenizers.Tokenizer:
    """Give a unigram backend its pieces: special tokens, those with scores, and bytes for everything else."""
    lowest = min(scores.values(), default=0.0) - 10.0
    pieces = [(piece, 0.0) for piece in specials]
    pieces += sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    pieces += [(piece, lowest) for piece in BYTE_TOKENS]
    backend.model = models.Unigram(pieces, unk_id=specials.index(UNKNOWN), byte_fallback=True)
    return backend


SPLITTERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "digits": pre_tokenizers.Digits(individual_digits=True),
    # A kanji or katakana word with the hiragana after it; を, which is always a particle; a punctuation mark.
    "scripts": pre_tokenizers.Split(
        Regex(r"[\p{Han}\p{Katakana}ー々〆]+(?:(?!を)\p{Hiragana})*|[を、。・，．！？「」『』（）]"), "isolated"
    ),
}
TRAINERS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "character": _train_character,
    "byte": _train_byte,
    "word": _train_word,
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "wordpiece": _train_wordpiece,
}


def _set_steps(
    backend: tokenizers.Tokenizer,
    normalize: bool,
    splitters: Sequence[pre_tokenizers.PreTokenizer],
    decoder: decoders.Decoder,
    segment: bool,
    splits: list[str],
) -> tokenizers.Tokenizer:
    """Set the normalizer, the pre-tokenizers and the decoder of a backend."""
    if normalize:
        backend.normalizer = normalizers.NFKC()
    splitters = [*(SPLITTERS[name] for name in splits), *splitters]
    if segment:
        splitters = [pre_tokenizers.Split(japanese.SEPARATOR, "removed"), *splitters]
    if splitters:
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(splitters)) if len(splitters) > 1 else splitters[0]
    backend.decoder = decoder
    return backend


def _word_pretokenizers() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        pre_tokenizers.Split(Regex(r"[\n\t\r]"), "isolated"),
        pre_tokenizers.Punctuation("isolated"),
    ]


def _restore_spaces(*first: decoders.Decoder) -> decoders.Decoder:
    """A decoder that joins pieces and turns ▁ back into a space."""
    return decoders.Sequence([*first, decoders.Fuse(), decoders.Replace("▁", " ")])


def _count_characters(texts: list[str], normalize: bool) -> Counter[str]:
    normalizer = normalizers.NFKC()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text) if normalize else text)
    counts.pop(japanese.SEPARATOR, None)
    return counts


def _split_at_rare_characters(texts: list[str], normalize: bool, max_characters: int) -> Iterator[str]:
    """The texts split at their rarest characters, which bytes will encode: a vocabulary cannot hold every kanji."""
    counts = _count_characters(texts, normalize)
    needed, rare = CHARACTER_COVERAGE * counts.total(), []
    for rank, (char, times) in enumerate(counts.most_common()):
        if needed <= 0 or rank >= max_characters:
            rare.append(char)
        needed -= times
    if not rare:
        yield from texts
        return
    segmented = re.compile("[" + re.escape("".join(rare)) + "]")
    normalizer = normalizers.NFKC()
    for text in texts:
        yield from segmented.split(normalizer.normalize_str(text) if normalize else text)


def _read_scores(backend: tokenizers.Tokenizer) -> dict[str, float]:
    return dict(json.loads(backend.to_str())["model"]["vocab"])


def _pad_vocabulary(backend: tokenizers.Tokenizer, multiple: int) -> None:
    missing = -backend.get_vocab_size() % multiple
    unused = (AddedToken(f"<unused{number}>", special=True, normalized=False) for number in range(missing))
    backend.add_special_tokens(list(unused))
