"""A tokenizer as a GGUF file's fields: the way back from `ggml.from_ggml`.

    byte, bpe                      → gpt2, under the name of its cutting rule
    unigram                        → t5
    bpe of SentencePiece's form    → llama
    wordpiece of BERT's form       → bert

A rule, normalizer or frame that GGUF has no field for is refused by name. llama.cpp's t5 has no bytes: characters that
are none of the tokens become <unk> there.
"""

from __future__ import annotations

import json
from typing import Any

from chumoku.errors import UsageError
from chumoku.text import pretokenizers
from chumoku.text.formats.sentencepiece import BPE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from chumoku.text.formats.sentencepiece_export import to_sentencepiece_model
from chumoku.text.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."
# llama.cpp wants one merge or more; this one, of what is no byte's letter, never happens.
NO_MERGES = ["␀ ␀"]
ROLE_KEYS: dict[str, tuple[str, ...]] = {
    "begin": ("bos_token_id",),
    "end": ("eos_token_id",),
    "pad": ("padding_token_id",),
    "unknown": ("unknown_token_id",),
    "mask": ("mask_token_id",),
}
BERT_ROLE_KEYS = {**ROLE_KEYS, "begin": ("bos_token_id", "cls_token_id"), "end": ("eos_token_id", "seperator_token_id")}


def to_ggml(tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields `tokenizer.ggml.*` that say what this tokenizer does."""
    state = json.loads(tokenizer.json)
    model = state["model"]
    if tokenizer.segments:
        raise _unsupported("it cuts Japanese by a dictionary first")
    if tokenizer.byte_level and model["type"] == "BPE":
        fields = _gpt2(tokenizer, state)
    elif model["type"] == "Unigram" or (model["type"] == "BPE" and model["byte_fallback"]):
        fields = _sentencepiece(tokenizer)
    elif model["type"] == "WordPiece":
        fields = _bert(tokenizer, state)
    else:
        raise _unsupported(
            f"it is of kind {tokenizer.kind}, and byte, bpe, unigram and BERT's wordpiece can be written"
        )
    fields |= _roles(tokenizer, BERT_ROLE_KEYS if fields["model"] == "bert" else ROLE_KEYS)
    return {PREFIX + key: value for key, value in fields.items()}


def _unsupported(reason: str) -> UsageError:
    return UsageError(f"This tokenizer cannot be written into a GGUF file: {reason}.")


def _roles(tokenizer: Tokenizer, names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    roles = tokenizer.roles
    fields: dict[str, Any] = {}
    for role, keys in names.items():
        number = getattr(roles, role)
        fields |= {key: number for key in keys if number is not None}
    before, after = tokenizer.prefix_and_suffix
    if before not in ((), (roles.begin,)) or after not in ((), (roles.end,)):
        raise _unsupported(
            f"it puts tokens {before} before a text and {after} behind it, and only begin and end can be"
        )
    return {**fields, "add_bos_token": bool(before), "add_eos_token": bool(after)}


def _gpt2(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[str, Any]:
    model = state["model"]
    pre = pretokenizers.find_name(tokenizer.pre_tokenizer, ignore_merges=bool(model.get("ignore_merges")))
    if not model["merges"]:
        pre = pre or pretokenizers.GPT2  # where nothing is merged, it does not matter where texts are cut
    if pre is None:
        raise _unsupported(f"its cutting rule, {json.dumps(state['pre_tokenizer'])[:200]}, has no name there")
    # Qwen's own files have NFC, and every GGUF of that family goes without.
    if state["normalizer"] is not None and not (pre == "qwen2" and state["normalizer"] == {"type": "NFC"}):
        raise _unsupported(f"its normalizer, {json.dumps(state['normalizer'])[:100]}, cannot be said there")
    if any(" " in part for merge in model["merges"] for part in merge):
        raise _unsupported("a token with a space in it is merged")
    tokens, types = _list_tokens(tokenizer, model["vocab"], state["added_tokens"])
    merges = [" ".join(merge) for merge in model["merges"]] or NO_MERGES
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


def _list_tokens(
    tokenizer: Tokenizer, vocabulary: dict[str, int], added: list[dict[str, Any]]
) -> tuple[list[str], list[int]]:
    """Text and type by number; a number without a token gets one that no text has."""
    tokens = [f"<hole {number}>" for number in range(tokenizer.size)]
    types = [UNUSED] * tokenizer.size
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, NORMAL
    for one in added:
        stripping = [key for key in ("lstrip", "rstrip", "single_word") if one[key] and not one["special"]]
        if stripping:
            raise _unsupported(f"its token {one['content']!r} has {stripping[0]}, which cannot be said there")
        tokens[one["id"]], types[one["id"]] = one["content"], CONTROL if one["special"] else USER
    return tokens, types


def _sentencepiece(tokenizer: Tokenizer) -> dict[str, Any]:
    model = to_sentencepiece_model(tokenizer)
    fields: dict[str, Any] = {
        "model": "llama" if model.kind == BPE else "t5",
        "pre": "default",
        "tokens": [piece.text for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.kind for piece in model.pieces],
        "add_space_prefix": model.dummy_prefix,
        "remove_extra_whitespaces": model.remove_extra_spaces,
    }
    if model.character_map and model.kind == BPE:
        raise _unsupported("its character map can be said there for unigram alone")
    return fields | ({"precompiled_charsmap": model.character_map} if model.character_map else {})


def _bert(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[str, Any]:
    model, normalizer = state["model"], state["normalizer"] or {}
    cutter = state["pre_tokenizer"] or {}
    if (normalizer.get("type"), cutter.get("type")) != ("BertNormalizer", "BertPreTokenizer"):
        raise _unsupported("of wordpiece tokenizers only those of BERT's own form can be")
    if not normalizer["lowercase"] or model["continuing_subword_prefix"] != "##":
        raise _unsupported("llama.cpp's BERT writes every text in small letters, and this tokenizer does not")
    tokens, types = _list_tokens(tokenizer, model["vocab"], state["added_tokens"])
    types = [UNKNOWN if token == model["unk_token"] else kind for token, kind in zip(tokens, types, strict=True)]
    written = [
        token if kind != NORMAL else token[2:] if token.startswith("##") and len(token) > 2 else f"▁{token}"
        for token, kind in zip(tokens, types, strict=True)
    ]
    return {"model": "bert", "pre": "jina-v2-en", "tokens": written, "token_type": types}
