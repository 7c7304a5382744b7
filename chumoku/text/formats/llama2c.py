"""llama2.c's tokenizer.bin: the pieces of a SentencePiece model, with plain spaces instead of ▁.

    int32 longest piece    then for each token: float32 score, int32 length, bytes

    text → add a leading space → characters (or byte + 3) → repeatedly merge the neighbors with the best score

Tokens 0, 1 and 2 are <unk>, <s> and </s>; 3 to 258 are the bytes, named <0x21> or, in older files, by the character
with that code. A text begins with <s>. The number of tokens is stored in the model's file.
"""

from __future__ import annotations

import math
import struct

from chumoku.text import special_tokens
from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.formats import sentencepiece as sp
from chumoku.text.formats.tokenizer_files import explain_errors
from chumoku.text.tokenizer import Tokenizer

HEADER = struct.Struct("<i")
ENTRY = struct.Struct("<fi")
SPECIAL_PIECES = {
    0: sp.Piece(special_tokens.UNKNOWN, 0.0, sp.UNKNOWN),
    1: sp.Piece(special_tokens.BEGIN, 0.0, sp.CONTROL),
    2: sp.Piece(special_tokens.END, 0.0, sp.CONTROL),
}


def read_llama2c(data: bytes, vocabulary: int) -> Tokenizer:
    """The tokenizer of a llama2.c model with `vocabulary` tokens."""
    return explain_errors("llama2.c's tokenizer", lambda: _open(data, vocabulary))


def _open(data: bytes, vocabulary: int) -> Tokenizer:
    backend = sp.build_backend(
        sp.Model(
            _pieces(data, vocabulary),
            sp.BPE,
            byte_fallback=True,
            character_map=b"",
            dummy_prefix=True,
            remove_extra_spaces=False,
        )
    )
    set_prefix_and_suffix(backend, [special_tokens.BEGIN], [])
    return Tokenizer(backend, size=vocabulary)


def _pieces(data: bytes, vocabulary: int) -> list[sp.Piece]:
    if not len(SPECIAL_PIECES) <= vocabulary <= min(sp.MAX_PIECES, len(data) // ENTRY.size):
        raise ValueError(f"{len(data):,} bytes cannot hold {vocabulary:,} tokens with <unk>, <s> and </s>")
    pieces: list[sp.Piece] = []
    offset = HEADER.size
    for token_id in range(vocabulary):
        if offset + ENTRY.size > len(data):
            raise ValueError(f"it ends at token {token_id:,} of {vocabulary:,}")
        score, length = ENTRY.unpack_from(data, offset)
        offset += ENTRY.size
        if not 0 <= length <= min(sp.MAX_PIECE_LENGTH, len(data) - offset) or not math.isfinite(score):
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


def _piece(byte: int, text: str, score: float) -> sp.Piece:
    name = f"<0x{byte:02X}>"
    if byte < 256 and text in (name, chr(byte).replace(" ", "▁")):
        return sp.Piece(name, score, sp.BYTE)
    return sp.Piece(text, score, sp.NORMAL)
