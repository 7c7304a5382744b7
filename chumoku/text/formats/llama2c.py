"""llama2.c's tokenizer.bin: the pieces of a SentencePiece model, with plain spaces instead of ▁.

    int32 longest piece    then for each token: float32 score, int32 length, bytes

    text → add a leading space → characters (or byte + 3) → repeatedly merge the neighbors with the best score

Tokens 0, 1 and 2 are <unk>, <s> and </s>; 3 to 258 are the bytes, named <0x21> or, in older files, by the character
with that code. A text begins with <s>. The number of tokens is stored in the model's file.
"""

from __future__ import annotations

import math
import struct

from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.formats.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    MAX_PIECE_LENGTH,
    MAX_PIECES,
    NORMAL,
    UNKNOWN,
    Model,
    Piece,
    build_backend,
)
from chumoku.text.formats.tokenizer_files import explain_errors
from chumoku.text.special_tokens import BEGIN, END
from chumoku.text.special_tokens import UNKNOWN as UNKNOWN_TOKEN
from chumoku.text.tokenizer import Tokenizer

HEADER = struct.Struct("<i")
ENTRY = struct.Struct("<fi")
SPECIAL_PIECES = {0: Piece(UNKNOWN_TOKEN, 0.0, UNKNOWN), 1: Piece(BEGIN, 0.0, CONTROL), 2: Piece(END, 0.0, CONTROL)}


def read_llama2c(data: bytes, vocabulary: int) -> Tokenizer:
    """The tokenizer of a llama2.c model with `vocabulary` tokens."""
    return explain_errors("llama2.c's tokenizer", lambda: _open(data, vocabulary))


def _open(data: bytes, vocabulary: int) -> Tokenizer:
    backend = build_backend(
        Model(
            _pieces(data, vocabulary),
            BPE,
            byte_fallback=True,
            character_map=b"",
            dummy_prefix=True,
            remove_extra_spaces=False,
        )
    )
    set_prefix_and_suffix(backend, [BEGIN], [])
    return Tokenizer(backend, size=vocabulary)


def _pieces(data: bytes, vocabulary: int) -> list[Piece]:
    if not len(SPECIAL_PIECES) <= vocabulary <= min(MAX_PIECES, len(data) // ENTRY.size):
        raise ValueError(f"{len(data):,} bytes cannot hold {vocabulary:,} tokens with <unk>, <s> and </s>")
    pieces: list[Piece] = []
    offset = HEADER.size
    for token_id in range(vocabulary):
        if offset + ENTRY.size > len(data):
            raise ValueError(f"it ends at token {token_id:,} of {vocabulary:,}")
        score, length = ENTRY.unpack_from(data, offset)
        offset += ENTRY.size
        if not 0 <= length <= min(MAX_PIECE_LENGTH, len(data) - offset) or not math.isfinite(score):
            raise ValueError(f"token {token_id:,} has {length:,} bytes and the score {score}")
        text = data[offset : offset + length].decode("utf-8").replace(" ", "▁")
        offset += length
        pieces.append(SPECIAL_PIECES.get(token_id) or _piece(token_id - len(SPECIAL_PIECES), text, score))
    if offset != len(data):
        raise ValueError(f"there are {len(data) - offset:,} bytes after its {vocabulary:,} tokens")
    different = len({piece.text for piece in pieces})
    if different < vocabulary:
        raise ValueError(f"of its {vocabulary:,} tokens, only {different:,} are different")
    return pieces


def _piece(byte: int, text: str, score: float) -> Piece:
    name = f"<0x{byte:02X}>"
    if byte < 256 and text in (name, chr(byte).replace(" ", "▁")):
        return Piece(name, score, BYTE)
    return Piece(text, score, NORMAL)
