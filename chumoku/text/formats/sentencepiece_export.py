"""A tokenizer as a SentencePiece model, the inverse of `sentencepiece.build_backend`.

    normalizer      character map or NFKC · spaces stripped and collapsed · ▁ prepended
    pre-tokenizer   ▁ for each space, optionally before the first word too
    model           pieces with scores (unigram), or with merges, from which scores follow (bpe with byte fallback)

Any other step is refused with a message. The serialized model is a ModelProto, which SentencePiece itself can load.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable
from typing import Any

from chumoku.errors import MissingExtraError, UsageError
from chumoku.text.formats import sentencepiece as sp
from chumoku.text.tokenizer import BYTE_TOKEN, Tokenizer


def write_sentencepiece(tokenizer: Tokenizer) -> bytes:
    """The serialized ModelProto that splits texts into the same pieces."""
    if tokenizer.kind != "unigram":
        raise UsageError(f"A tokenizer of kind {tokenizer.kind} cannot be written for SentencePiece; only unigram can.")
    return serialize_model(to_sentencepiece_model(tokenizer))


def to_sentencepiece_model(tokenizer: Tokenizer) -> sp.Model:
    """The SentencePiece model that splits texts as this tokenizer does."""
    state = json.loads(tokenizer.json)
    model = state["model"]
    if tokenizer.segments:
        raise UsageError("This tokenizer splits Japanese with a dictionary first, which SentencePiece cannot do.")
    if model["type"] == "Unigram":
        scored_pieces, kind = [(text, score) for text, score in model["vocab"]], sp.UNIGRAM
        unknown = model["vocab"][model["unk_id"]][0] if model["unk_id"] is not None else None
    elif model["type"] == "BPE" and model["byte_fallback"]:
        scored_pieces, kind = _scored(model), sp.BPE
        unknown = model["unk_token"]
    else:
        raise UsageError(f"A tokenizer of kind {tokenizer.kind} cannot be written as a SentencePiece model.")
    kinds = {token["content"]: sp.CONTROL if token["special"] else sp.USER for token in state["added_tokens"]}
    kinds[unknown] = sp.UNKNOWN
    added_pieces = {
        number: token["content"] for token in state["added_tokens"] if (number := token["id"]) >= len(scored_pieces)
    }
    pieces = [sp.Piece(text, score, _kind(text, kinds, model["byte_fallback"])) for text, score in scored_pieces]
    # SentencePiece cannot store a piece with a zero byte; byte fallback encodes it instead.
    pieces = [
        sp.Piece(f"<hole {n}>", 0.0, sp.UNUSED) if "\0" in piece.text else piece for n, piece in enumerate(pieces)
    ]
    for number in range(len(scored_pieces), tokenizer.size):
        text = added_pieces.get(number, f"<hole {number}>")
        pieces.append(sp.Piece(text, 0.0, kinds.get(text, sp.UNUSED)))
    character_map, dummy_prefix, remove_extra_spaces = _read_preprocessing(state["normalizer"], state["pre_tokenizer"])
    return sp.Model(pieces, kind, model["byte_fallback"], character_map, dummy_prefix, remove_extra_spaces)


def _kind(text: str, kinds: dict[str, int], bytewise: bool) -> int:
    return kinds.get(text) or (sp.BYTE if bytewise and BYTE_TOKEN.fullmatch(text) else sp.NORMAL)


def _scored(model: dict[str, Any]) -> list[tuple[str, float]]:
    """Pieces with scores that give the same merges: the score of a piece is minus the rank of its first merge.

    Pieces whose merges are interleaved share the rank of the first of them.
    """
    merges = [tuple(merge) for merge in model["merges"]]
    last = {left + right: rank for rank, (left, right) in enumerate(merges)}
    scores: dict[str, float] = {}
    group, until = 0, -1
    for rank, (left, right) in enumerate(merges):
        group = rank if rank > until else group
        until = max(until, last[left + right])
        scores[left + right] = -float(group)
    ordered = sorted(model["vocab"].items(), key=lambda item: item[1])
    if [number for _, number in ordered] != list(range(len(ordered))):
        raise UsageError("The ids of this tokenizer have gaps, which a SentencePiece model cannot have.")
    scored = [(text, scores.get(text, -float(len(merges)))) for text, _ in ordered]
    derived = sp.derive_merges(
        [sp.Piece(text, score, sp.NORMAL if text in scores else sp.UNUSED) for text, score in scored]
    )
    if set(derived) != set(merges):
        raise UsageError("This tokenizer's merges cannot be expressed as scores, which SentencePiece needs.")
    return scored


def _read_preprocessing(
    normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None
) -> tuple[bytes, bool, bool]:
    """Character map, dummy prefix and remove-extra-spaces of these steps."""
    character_map, prefixed, stripped, replaced = b"", False, False, False
    for step in _flat(normalizer, "normalizers"):
        match step:
            case {"type": "Precompiled", "precompiled_charsmap": str(encoded)}:
                character_map = base64.b64decode(encoded)
            case {"type": "NFKC"}:
                character_map = nfkc_map()
            case {"type": "Strip"}:
                stripped = True
            case {"type": "Replace", "pattern": {"Regex": str(spaces)}} if spaces in (sp.MANY_SPACES, sp.OUTER_SPACES):
                stripped = True
            case {"type": "Replace", "pattern": {"String": str(pair)}} if pair in sp.VOICED_KANA:
                pass  # a part of the character map
            case {"type": "Prepend", "prepend": "▁"}:
                prefixed = True
            case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
                replaced = True
            case _:
                raise _unsupported_step("normalizer", step)
    for step in _flat(pre_tokenizer, "pretokenizers"):
        match step:
            case {"type": "Metaspace", "replacement": "▁"}:
                prefixed, replaced = prefixed or step.get("prepend_scheme") != "never", True
            case {"type": "WhitespaceSplit"}:
                stripped = True
            case _:
                raise _unsupported_step("pre-tokenizer", step)
    if not replaced:
        raise UsageError("This tokenizer does not write spaces as ▁, which every SentencePiece model does.")
    return character_map, prefixed, stripped


def _flat(state: dict[str, Any] | None, inner: str) -> Iterable[dict[str, Any]]:
    if state is None:
        return []
    return [step for one in state[inner] for step in _flat(one, inner)] if state["type"] == "Sequence" else [state]


def _unsupported_step(part: str, step: dict[str, Any]) -> UsageError:
    return UsageError(f"SentencePiece does not support this tokenizer's {part}, {json.dumps(step)[:100]}.")


def nfkc_map() -> bytes:
    """SentencePiece's own character map for NFKC."""
    try:
        from sentencepiece import SentencePieceNormalizer
    except ImportError as error:
        raise MissingExtraError(
            "Exporting a tokenizer with NFKC needs SentencePiece's NFKC table. Install it with: pip install "
            "sentencepiece. Or train the tokenizer with normalize=False."
        ) from error
    normalizer = dict(sp.read_fields(SentencePieceNormalizer(rule_name="nfkc").serialized_model_proto())).get(3, b"")
    character_map = dict(sp.read_fields(normalizer)).get(2) if isinstance(normalizer, bytes) else None
    if not isinstance(character_map, bytes):
        raise UsageError("This version of SentencePiece does not provide its NFKC table. Train with normalize=False.")
    return character_map


def serialize_model(model: sp.Model) -> bytes:
    """The model as a serialized ModelProto."""
    pieces = b"".join(_field(1, _piece(piece)) for piece in model.pieces)
    names = {piece.kind: number for number, piece in reversed(list(enumerate(model.pieces)))}
    texts = {piece.text: number for number, piece in enumerate(model.pieces)}
    # −1 means that there is no such piece; SentencePiece's defaults would point to another one.
    ids = (names.get(sp.UNKNOWN, -1), texts.get("<s>", -1), texts.get("</s>", -1), texts.get("<pad>", -1))
    trainer = _field(3, model.kind) + _field(4, len(model.pieces)) + _field(35, int(model.byte_fallback))
    trainer += b"".join(_field(number, value) for number, value in zip((40, 41, 42, 43), ids, strict=True))
    if sp.UNKNOWN in names:
        trainer += _field(45, model.pieces[names[sp.UNKNOWN]].text.encode())
    spaces = (model.dummy_prefix, model.remove_extra_spaces, True)
    normalizer = _field(2, model.character_map) if model.character_map else b""
    normalizer += b"".join(_field(number, int(value)) for number, value in zip((3, 4, 5), spaces, strict=True))
    return pieces + _field(2, trainer) + _field(3, normalizer)


def _piece(piece: sp.Piece) -> bytes:
    score = bytes([2 << 3 | 5]) + struct.pack("<f", piece.score)
    return _field(1, piece.text.encode()) + score + _field(3, piece.kind)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value & (1 << 64) - 1)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
