"""The kinds of tokenizer, and training them.

    character   every character a token               byte       every byte a token
    word        every word a token                    bpe        bytes, merged by how often they meet
    unigram     pieces chosen by a language model     wordpiece  pieces of words, greedily the longest

byte and bpe write any text. unigram falls back to bytes for what it has not seen; character, word and wordpiece have
<unk> for that. unigram, word and wordpiece write a space as ▁, so that decoding puts it back where it was (and a ▁ in
a text comes back as a space). Training the same texts again gives the same tokenizer, but for wordpiece and unigram,
whose trainers break ties by chance.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from chumoku.errors import UsageError
from chumoku.text import japanese
from chumoku.text.progress import Progress, counted, silent
from chumoku.text.sample_texts import sampled, short_pieces, thinned
from chumoku.text.special_tokens import UNKNOWN, special_tokens
from chumoku.text.tokenizer import Tokenizer
from chumoku.text.training_process import train_in_child

Kind = Literal["character", "byte", "word", "bpe", "unigram", "wordpiece"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LARGEST = 1 << 22
MOST_CHARACTERS = 1 << 27  # that a trainer sees
# Unigram training weighs every piece of every text, again and again: it learns from a sample of passages, and begins
# with a few times the pieces that it keeps.
MOST_FOR_UNIGRAM = 1 << 20
SEED = 3
PASSAGE = re.compile(r".{256,}?\n+|.+", re.DOTALL)
COVERED = 0.9995
# Fewer characters are trained on in this process, because that takes less than a second.
QUICK = {"unigram": 1 << 15}
QUICK_OTHERS = 1 << 20


def train(
    texts: Iterable[str],
    *,
    kind: Kind = "bpe",
    vocabulary: int = 8000,
    normalize: bool | None = None,
    segment: bool | None = None,
    languages: Iterable[str] = (),
    multiple: int = 1,
    progress: Progress = silent,
) -> Tokenizer:
    """Train a tokenizer on texts.

    `normalize` (NFKC: full-width and half-width forms become one) is on for all kinds but byte and bpe; `segment` cuts
    Japanese into words first and is on for the kind word on Japanese text; `multiple` fills the vocabulary up with
    unused tokens. Ctrl-C stops the training at once; `progress` is told how far it is.
    """
    if kind not in KINDS:
        raise UsageError(f"There is no tokenizer kind '{kind}'; choose {', '.join(KINDS)}.")
    if not 1 <= vocabulary <= LARGEST or not 1 <= multiple <= LARGEST:
        raise UsageError(f"A vocabulary has 1 to {LARGEST:,} tokens; {vocabulary} (in steps of {multiple}) cannot be.")
    specials = special_tokens(languages)
    if vocabulary <= len(specials):
        raise UsageError(f"A vocabulary of {vocabulary} has no room beside its {len(specials)} special tokens.")
    if normalize is None:
        normalize = kind not in ("byte", "bpe")
    texts = counted(texts, progress, "reading", unit="characters", size=len)
    sample = thinned(short_pieces(texts), MOST_CHARACTERS)
    if not any(piece.strip() for piece in sample):
        raise UsageError("There is no text to train a tokenizer on. Check the files that were given.")
    if segment is None:
        segment = kind == "word" and japanese.share_of_japanese("".join(sample[:1000])) > 0.1
    if segment:
        cut = (japanese.segment(piece) for piece in sample)
        sample = list(counted(cut, progress, "cutting into words", unit="characters", size=len))
    if kind == "unigram":
        sample = sampled([piece for text in sample for piece in PASSAGE.findall(text)], MOST_FOR_UNIGRAM)
    settings = {"vocabulary": vocabulary, "specials": specials, "normalize": normalize, "segment": segment}
    backend = _trained(kind, sample, settings, progress)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    _fill_up(backend, multiple)
    return Tokenizer(backend)


def _trained(kind: Kind, texts: list[str], settings: dict[str, Any], progress: Progress) -> tokenizers.Tokenizer:
    characters = sum(map(len, texts))
    if characters <= QUICK.get(kind, QUICK_OTHERS) or not sys.executable:
        return TRAINERS[kind](texts, **settings)
    step = f"training a {kind} tokenizer on {characters:,} characters"
    return train_in_child(texts, {"kind": kind, **settings}, lambda: progress(step))


def _character(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    kept = [char for char, _ in _characters(texts, normalize).most_common(max(0, vocabulary - len(specials)))]
    numbers = {token: number for number, token in enumerate(dict.fromkeys([*specials, *sorted(kept)]))}
    # Byte pairs without a single merge are characters.
    backend = tokenizers.Tokenizer(models.BPE(vocab=numbers, merges=[], unk_token=UNKNOWN))
    return _dressed(backend, normalize, [], decoders.Fuse(), segment)


def _byte(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {token: number for number, token in enumerate([*specials, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=numbers, merges=[]))
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _dressed(backend, normalize, [cutter], decoders.ByteLevel(), segment)


def _bpe(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    _dressed(backend, normalize, [cutter], decoders.ByteLevel(), segment)
    trainer = trainers.BpeTrainer(
        vocab_size=_at_least(vocabulary, 256 + len(specials), "bpe"),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _word(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    _dressed(backend, normalize, _word_cutters(), _spaces_back(), segment)
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def _wordpiece(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    # A kanji is its own word, as in BERT: without spaces, a whole clause would be one word too long to look up.
    cutters = [*_word_cutters(), pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")]
    _dressed(backend, normalize, cutters, _spaces_back(decoders.Replace(Regex("^##"), "")), segment)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=specials,
        # Each letter counts twice: as the beginning of a word, and with ## inside one.
        limit_alphabet=max(1, (vocabulary - len(specials)) // 3),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _unigram(
    texts: list[str], vocabulary: int, specials: list[str], normalize: bool, segment: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.Unigram())
    cutters = [pre_tokenizers.Metaspace(prepend_scheme="never")]
    _dressed(backend, normalize, cutters, _spaces_back(decoders.ByteFallback()), segment)
    size = _at_least(vocabulary, 2 * len(BYTES) + len(specials), "unigram") - len(BYTES)
    trainer = trainers.UnigramTrainer(  # type: ignore[call-arg]  # its stub does not know seed_size
        vocab_size=size,
        special_tokens=specials,
        unk_token=UNKNOWN,
        shrinking_factor=0.5,
        seed_size=SEED * vocabulary,
        show_progress=False,
    )
    backend.train_from_iterator(_covered(texts, normalize, size // 2), trainer)
    scores = {piece: round(score, 5) for piece, score in _scores(backend).items() if piece not in specials}
    lowest = min(scores.values(), default=0.0) - 10.0
    pieces = [(piece, 0.0) for piece in specials]
    pieces += sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    pieces += [(piece, lowest) for piece in BYTES]
    backend.model = models.Unigram(pieces, unk_id=specials.index(UNKNOWN), byte_fallback=True)
    return backend


TRAINERS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "character": _character,
    "byte": _byte,
    "word": _word,
    "bpe": _bpe,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
}


def _dressed(
    backend: tokenizers.Tokenizer,
    normalize: bool,
    cutters: Sequence[pre_tokenizers.PreTokenizer],
    decoder: decoders.Decoder,
    segment: bool,
) -> tokenizers.Tokenizer:
    """What stands around a model: normalizer, cutters, decoder."""
    if normalize:
        backend.normalizer = normalizers.NFKC()
    if segment:
        cutters = [pre_tokenizers.Split(japanese.SEPARATOR, "removed"), *cutters]
    if cutters:
        backend.pre_tokenizer = pre_tokenizers.Sequence(list(cutters)) if len(cutters) > 1 else cutters[0]
    backend.decoder = decoder
    return backend


def _word_cutters() -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        pre_tokenizers.Split(Regex(r"[\n\t\r]"), "isolated"),
        pre_tokenizers.Punctuation("isolated"),
    ]


def _spaces_back(*first: decoders.Decoder) -> decoders.Decoder:
    """Pieces joined without gaps, ▁ turned back into a space."""
    return decoders.Sequence([*first, decoders.Fuse(), decoders.Replace("▁", " ")])


def _characters(texts: list[str], normalize: bool) -> Counter[str]:
    normalizer = normalizers.NFKC()
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(normalizer.normalize_str(text) if normalize else text)
    seen.pop(japanese.SEPARATOR, None)
    return seen


def _covered(texts: list[str], normalize: bool, most: int) -> Iterator[str]:
    """The texts cut at their rarest characters, which bytes will write: a vocabulary cannot hold every kanji."""
    seen = _characters(texts, normalize)
    needed, rare = COVERED * seen.total(), []
    for rank, (char, times) in enumerate(seen.most_common()):
        if needed <= 0 or rank >= most:
            rare.append(char)
        needed -= times
    if not rare:
        yield from texts
        return
    cut = re.compile("[" + re.escape("".join(rare)) + "]")
    normalizer = normalizers.NFKC()
    for text in texts:
        yield from cut.split(normalizer.normalize_str(text) if normalize else text)


def _scores(backend: tokenizers.Tokenizer) -> dict[str, float]:
    return dict(json.loads(backend.to_str())["model"]["vocab"])


def _fill_up(backend: tokenizers.Tokenizer, multiple: int) -> None:
    missing = -backend.get_vocab_size() % multiple
    unused = (AddedToken(f"<unused{number}>", special=True, normalized=False) for number in range(missing))
    backend.add_special_tokens(list(unused))


def _at_least(vocabulary: int, least: int, kind: str) -> int:
    if vocabulary < least:
        raise UsageError(f"The kind {kind} needs a vocabulary of {least} or more; {vocabulary} was asked for.")
    return vocabulary
