"""Marian's tokenizers: two SentencePiece models with one shared vocabulary, or with one each.

    source.spm, target.spm      how each side splits a text into pieces
    vocab.json                  piece → id, for both sides
    target_vocab.json           the target's own ids, if tokenizer_config.json has separate_vocabs

    text → pieces of source.spm → ids + </s>          decoding begins with <pad> unless the settings name a bos_token

The source side never encodes a piece that only the target's model has: that id gets a name that no text can contain.
The target side can decode every piece, and encodes a source-only piece only where it would otherwise give <unk>.
A piece without an id is left out; the reference gives <unk> for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from chumoku.errors import UsageError
from chumoku.text.backend import set_prefix_and_suffix
from chumoku.text.formats import sentencepiece as sp
from chumoku.text.formats.sentencepiece_export import serialize_model, to_sentencepiece_model
from chumoku.text.formats.tokenizer_config import SETTINGS, read_settings, token_names
from chumoku.text.formats.tokenizer_files import explain_errors, read_limited
from chumoku.text.special_tokens import LANGUAGE
from chumoku.text.tokenizer import Tokenizer

SOURCE, TARGET = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
NAMES = {"end": "</s>", "unknown": "<unk>", "pad": "<pad>"}
LOWEST_SCORE = -1e4
# Spaces become ▁ before a text is split, so no text can match a piece that contains a space.
UNREACHABLE = "<other side {}>"


def is_marian(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (SOURCE, TARGET, VOCABULARY))


def load_marian(folder: Path | str) -> tuple[Tokenizer, Tokenizer]:
    """The source and target tokenizers of a Marian folder."""
    folder = Path(folder)
    configured = token_names(read_settings(folder))
    names = {role: configured.get(role, name) for role, name in NAMES.items()}
    names["begin"] = configured.get("begin", names["pad"])
    table = _read_vocabulary(folder / VOCABULARY)
    target_table = _read_vocabulary(folder / TARGET_VOCABULARY) if (folder / TARGET_VOCABULARY).is_file() else table
    source = explain_errors(folder / SOURCE, lambda: _load_side(folder / SOURCE, table, names, is_target=False))
    target = explain_errors(folder / TARGET, lambda: _load_side(folder / TARGET, target_table, names, is_target=True))
    return source, target


def _read_vocabulary(path: Path) -> list[str]:
    """The pieces in the order of their ids."""
    return explain_errors(path, lambda: sp.pieces_by_id(read_limited(path)))


def _load_side(path: Path, table: list[str], names: dict[str, str], *, is_target: bool) -> Tokenizer:
    model = sp.read_model(read_limited(path))
    known = {piece.text: piece for piece in model.pieces if piece.kind in (sp.NORMAL, sp.USER, sp.BYTE)}
    missing = [name for name in names.values() if name not in table]
    if missing:
        raise ValueError(f"{VOCABULARY} lacks the special tokens {', '.join(missing)}")
    controls = {piece.text for piece in model.pieces if piece.kind == sp.CONTROL} | set(names.values())
    special = {text: sp.CONTROL for text in table if text in controls or LANGUAGE.fullmatch(text)}
    special[names["unknown"]] = sp.UNKNOWN

    def piece_for(token_id: int, text: str) -> sp.Piece:
        if text in special:
            return sp.Piece(text, 0.0, special[text])
        if text in known:
            return known[text]
        if is_target:
            return sp.Piece(text, LOWEST_SCORE, sp.NORMAL)
        return sp.Piece(UNREACHABLE.format(token_id), 0.0, sp.UNUSED)

    pieces = [piece_for(token_id, text) for token_id, text in enumerate(table)]
    backend = sp.build_backend(model._replace(pieces=pieces))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    set_prefix_and_suffix(backend, [], [], {role: name for role, name in names.items() if role != "unknown"})
    return Tokenizer(backend, size=len(table))


def write_marian(source: Tokenizer, target: Tokenizer, folder: Path | str) -> None:
    """Write the files of transformers' MarianTokenizer into an existing folder."""
    folder = Path(folder)
    models = [_check_side(side, name) for side, name in ((source, "source"), (target, "target"))]
    texts = [[piece.text for piece in model.pieces] for model in models]
    own = [text != UNREACHABLE.format(token_id) for token_id, text in enumerate(texts[0])]
    shared = len(texts[0]) == len(texts[1]) and all(
        one == other for one, other, is_own in zip(*texts, own, strict=True) if is_own
    )
    tables = [texts[1]] if shared else texts
    for name, model in zip((SOURCE, TARGET), models, strict=True):
        (folder / name).write_bytes(serialize_model(model))
    for name, table in zip((VOCABULARY, TARGET_VOCABULARY), tables, strict=False):
        vocab = {text: token_id for token_id, text in enumerate(table)}
        (folder / name).write_text(json.dumps(vocab, ensure_ascii=False, indent=0), encoding="utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared}
    for key, role in (("eos_token", "end"), ("pad_token", "pad"), ("unk_token", "unknown")):
        settings[key] = source.token(getattr(source.roles, role))
    if target.roles.begin not in (None, target.roles.pad):
        settings["bos_token"] = target.token(target.roles.begin)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _check_side(side: Tokenizer, name: str) -> sp.Model:
    if side.kind != "unigram":
        raise UsageError(f"Marian's tokenizers are unigram models, but the {name}'s is of kind {side.kind}.")
    model = to_sentencepiece_model(side)
    if model.kind != sp.UNIGRAM or any(getattr(side.roles, role) is None for role in NAMES):
        raise UsageError(f"Marian needs tokens for end, pad and unknown; the {name}'s tokenizer lacks at least one.")
    return model
