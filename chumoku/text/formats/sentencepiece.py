"""SentencePiece models: the fields of their protobuf that decide how text is split.

ModelProto        1 pieces {1 text, 2 score, 3 type}   2 trainer   3 normalizer
trainer           3 kind (1 unigram, 2 bpe)            35 byte fallback
normalizer        2 character map    3 dummy prefix    4 remove extra spaces
"""

from __future__ import annotations

import json
import math
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from chumoku.text.backend import check_added_tokens

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
MAX_PIECES = 1 << 22
MAX_PIECE_LENGTH = 1 << 12
MAX_MERGE_WORK = 1 << 27
MAX_MAPPED_LENGTH = 20  # characters that a character map writes for one character; NFKC needs 18
MAX_MAP_GROWTH = 4  # times as many characters as NFKC writes, for a letter of a common script
MANY_SPACES, OUTER_SPACES = " {2,}", r"\A | \z"
_PAIRS = [*(kana + "ﾞ" for kana in "ｳｶｷｸｹｺｻｼｽｾｿﾀﾁﾂﾃﾄﾊﾋﾌﾍﾎﾜｦ"), *(kana + "ﾟ" for kana in "ﾊﾋﾌﾍﾎ")]
VOICED_KANA = {pair: unicodedata.normalize("NFKC", pair) for pair in _PAIRS}


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


class Model(NamedTuple):
    pieces: list[Piece]
    kind: int
    byte_fallback: bool
    character_map: bytes
    dummy_prefix: bool
    remove_extra_spaces: bool


def backend_from_model(data: bytes) -> tokenizers.Tokenizer:
    """The backend of a serialized SentencePiece model."""
    return build_backend(read_model(data))


def build_backend(model: Model) -> tokenizers.Tokenizer:
    """A backend that splits texts as the SentencePiece model does."""
    backend = tokenizers.Tokenizer(_bpe(model) if model.kind == BPE else _unigram(model))
    backend.normalizer, backend.pre_tokenizer = build_preprocessing(model)
    after = [decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after])
    check_added_tokens(piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN, USER))
    special = [piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN)]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    user = [piece.text for piece in model.pieces if piece.kind == USER]
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in user])
    return backend


def build_preprocessing(model: Model) -> tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]:
    """The normalizer and the pre-tokenizer of a SentencePiece model."""
    steps: list[normalizers.Normalizer] = []
    if model.character_map:
        check_character_map(model.character_map)
        # The library's lookup handles sequences of up to five bytes only, and ｶﾞ has six.
        steps += [
            normalizers.Replace(pair, one) for pair, one in VOICED_KANA.items() if one.encode() in model.character_map
        ]
        steps.append(normalizers.Precompiled(model.character_map))
    if model.remove_extra_spaces:
        steps += [normalizers.Replace(Regex(MANY_SPACES), " "), normalizers.Replace(Regex(OUTER_SPACES), "")]
    scheme = "always" if model.dummy_prefix else "never"
    if model.dummy_prefix and not model.remove_extra_spaces:
        # SentencePiece adds a space even before a leading space, which Metaspace does not.
        steps.append(normalizers.Prepend("▁"))
        scheme = "never"
    return normalizers.Sequence(steps), pre_tokenizers.Metaspace(prepend_scheme=scheme, split=model.kind != BPE)


def check_character_map(data: bytes) -> None:
    """Raise ValueError if a character map points outside itself or makes a text much longer.

    Layout: u32 size of the trie, the trie as u32 units, texts ending in \\0. A unit is label (8 bits) | has a value (1)
    | shift by 8 (1) | offset (21) | is a value (1). The library follows offsets without checking them.
    """
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 4 <= size <= len(data) - 4:
        raise ValueError(f"a character map of {len(data):,} bytes cannot hold a trie of {size:,}")
    units = np.frombuffer(data, "<u4", size // 4, 4)
    texts = data[4 + size :]
    texts.decode("utf-8")
    starts = np.frombuffer(texts, np.uint8) & 0xC0 != 0x80
    inner = np.flatnonzero(units >> 31 == 0)
    base = inner ^ ((units[inner] >> 10) << ((units[inner] & 512) >> 6))
    if (base | 255).max(initial=0) >= len(units):
        raise ValueError("the character map's trie points outside itself")
    values = units[base[units[inner] & 256 != 0]] & 0x7FFFFFFF
    if values.max(initial=0) >= max(len(texts), 1) or not starts[values].all():
        raise ValueError("the character map's trie points outside its texts")
    longest = max(map(len, texts.decode("utf-8").split("\0")))
    if longest > MAX_MAPPED_LENGTH:
        raise ValueError(f"the character map writes {longest:,} characters for one; the limit is {MAX_MAPPED_LENGTH}")
    mapping = normalizers.Precompiled(data)
    for letter in map(chr, (*range(0x20, 0x250), *range(0x370, 0x530), *range(0x3000, 0x3100), 0x65E5, 0xAC00)):
        if len(mapping.normalize_str(letter)) > MAX_MAP_GROWTH * len(unicodedata.normalize("NFKD", letter.lower())):
            raise ValueError(f"the character map turns the letter {letter!r} into a long text")


def read_model(data: bytes) -> Model:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in read_fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(read_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(read_fields(value))
        if len(pieces) > MAX_PIECES:
            raise ValueError(f"more than {MAX_PIECES:,} pieces")
    if not pieces:
        raise ValueError("it has no pieces")
    kind = trainer.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise ValueError(f"its kind is {kind!r}; only unigram (1) and bpe (2) are supported")
    character_map = normalizer.get(2, b"")
    return Model(
        pieces,
        kind if isinstance(kind, int) else UNIGRAM,
        bool(trainer.get(35, 0)),
        character_map if isinstance(character_map, bytes) else b"",
        bool(normalizer.get(3, 1)),
        bool(normalizer.get(4, 1)),
    )


def pieces_by_id(data: bytes) -> list[str]:
    """The pieces of a JSON table (piece → id) in the order of their ids."""
    table = json.loads(data)
    if not isinstance(table, dict) or not 0 < len(table) <= MAX_PIECES:
        raise ValueError("it is not a table of pieces and ids")
    if set(map(type, table.values())) != {int} or sorted(table.values()) != list(range(len(table))):
        raise ValueError(f"its {len(table):,} pieces are not numbered from 0 without gaps")
    return sorted(table, key=table.__getitem__)


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbered fields of a protobuf message. Lengths are checked before any slice is taken."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        wire = key & 7
        value: int | bytes
        if wire == 0:
            value, offset = _varint(data, offset)
        else:
            if wire == 2:
                length, offset = _varint(data, offset)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise ValueError(f"wire type {wire} at byte {offset}")
            if length > len(data) - offset:
                raise ValueError(f"a field of {length} bytes at byte {offset} runs past the end")
            value = data[offset : offset + length]
            offset += length
        yield key >> 3, value


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            raise ValueError("the file ends in the middle of a number")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError(f"a number before byte {offset} does not end")


def _piece(data: bytes) -> Piece:
    values = dict(read_fields(data))
    text, score, kind = values.get(1, b""), values.get(2, b"\0\0\0\0"), values.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4 or not isinstance(kind, int):
        raise ValueError("a piece has fields of the wrong type")
    if len(text) > MAX_PIECE_LENGTH:
        raise ValueError(f"a piece of {len(text):,} bytes")
    number = struct.unpack("<f", score)[0]
    if not math.isfinite(number):
        raise ValueError(f"a piece has the score {number}")
    return Piece(text.decode("utf-8"), number, kind)


def _unigram(model: Model) -> models.Model:
    unknown = next((number for number, piece in enumerate(model.pieces) if piece.kind == UNKNOWN), None)
    if unknown is None:
        raise ValueError("it has no unknown piece")
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    return models.Unigram(pieces, unk_id=unknown, byte_fallback=model.byte_fallback)


def _bpe(model: Model) -> models.Model:
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    merges = derive_merges(model.pieces)
    unknown = next((piece.text for piece in model.pieces if piece.kind == UNKNOWN), None)
    return models.BPE(
        vocab=vocab,
        merges=merges,
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def derive_merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """The merges that scored pieces imply: each piece can be merged from any two pieces, best score first.

    With equal scores SentencePiece merges the leftmost pair, and the library the lowest ids. For Llama's pieces, whose
    runs of spaces share one score, both give the same result.
    """
    if sum(len(piece.text) ** 2 for piece in pieces) > MAX_MERGE_WORK:
        raise ValueError("its pieces are too long")
    vocab = {piece.text: number for number, piece in enumerate(pieces)}
    merges = []
    for piece in pieces:
        if piece.kind != NORMAL:
            continue
        text = piece.text
        for split in range(1, len(text)):
            left = text[:split]
            if left in vocab and (right := text[split:]) in vocab:
                merges.append((-piece.score, vocab[left], vocab[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
