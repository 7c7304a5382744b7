"""A tokenizer as the fields of a GGUF file, the inverse of `gguf.from_ggml`.

    byte, bpe                      → gpt2, with the name of its pre-tokenizer
    unigram                        → t5
    bpe of SentencePiece's form    → llama
    wordpiece of BERT's form       → bert

A pre-tokenizer, normalizer, prefix or suffix that GGUF cannot express is refused with a message. llama.cpp's t5 has no
byte fallback: characters that are not in the vocabulary become <unk> there.
"""

from __future__ import annotations

import json
from typing import Any

from chumoku.errors import UsageError
from chumoku.text import pretokenizers
from chumoku.text.chat_template import DEFAULT, ChatTemplate
from chumoku.text.formats.sentencepiece import BPE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from chumoku.text.formats.sentencepiece_export import to_sentencepiece_model
from chumoku.text.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."
TEMPLATE, TEMPLATES = "tokenizer.chat_template", "tokenizer.chat_templates"
# llama.cpp needs at least one merge; this one never applies, because it uses a character that stands for no byte.
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
    """The fields `tokenizer.*` that describe a tokenizer."""
    state = json.loads(tokenizer.json)
    model = state["model"]
    if tokenizer.segments:
        raise _unsupported("it splits Japanese with a dictionary first")
    if tokenizer.byte_level and model["type"] == "BPE":
        fields = _gpt2(tokenizer, state)
    elif model["type"] == "Unigram" or (model["type"] == "BPE" and model["byte_fallback"]):
        fields = _sentencepiece(tokenizer)
    elif model["type"] == "WordPiece":
        fields = _bert(tokenizer, state)
    else:
        raise _unsupported(f"its kind is {tokenizer.kind}; byte, bpe, unigram and BERT's wordpiece are supported")
    fields |= _roles(tokenizer, BERT_ROLE_KEYS if fields["model"] == "bert" else ROLE_KEYS)
    return {**{PREFIX + key: value for key, value in fields.items()}, **_chat_templates(tokenizer.chat_template)}


def _chat_templates(template: ChatTemplate | None) -> dict[str, Any]:
    sources = {} if template is None else dict(template.sources)
    default = {TEMPLATE: sources.pop(DEFAULT)} if DEFAULT in sources else {}
    names = {TEMPLATES: list(sources)} if sources else {}
    return {**default, **names, **{f"{TEMPLATE}.{name}": source for name, source in sources.items()}}


def _unsupported(reason: str) -> UsageError:
    return UsageError(f"This tokenizer cannot be written into a GGUF file: {reason}.")


def _roles(tokenizer: Tokenizer, names: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    roles = tokenizer.roles
    fields: dict[str, Any] = {}
    for role, keys in names.items():
        token_id = getattr(roles, role)
        fields |= {key: token_id for key in keys if token_id is not None}
    before, after = tokenizer.prefix_and_suffix
    if before not in ((), (roles.begin,)) or after not in ((), (roles.end,)):
        raise _unsupported(f"it adds tokens {before} before a text and {after} after it, not only begin and end")
    return {**fields, "add_bos_token": bool(before), "add_eos_token": bool(after)}


def _gpt2(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[str, Any]:
    model = state["model"]
    pre = pretokenizers.find_name(tokenizer.pre_tokenizer, ignore_merges=bool(model.get("ignore_merges")))
    if not model["merges"]:
        pre = pre or pretokenizers.GPT2  # without merges, splits do not change the ids
    if pre is None:
        raise _unsupported(f"GGUF has no name for its pre-tokenizer, {json.dumps(state['pre_tokenizer'])[:200]}")
    # Qwen's own files have NFC, and the GGUF files of that family omit it.
    if state["normalizer"] is not None and not (pre == "qwen2" and state["normalizer"] == {"type": "NFC"}):
        raise _unsupported(f"GGUF has no field for its normalizer, {json.dumps(state['normalizer'])[:100]}")
    if any(" " in part for merge in model["merges"] for part in merge):
        raise _unsupported("one of its merges contains a space")
    tokens, types = _list_tokens(tokenizer, model["vocab"], state["added_tokens"])
    merges = [" ".join(merge) for merge in model["merges"]] or NO_MERGES
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


def _list_tokens(
    tokenizer: Tokenizer, vocabulary: dict[str, int], added: list[dict[str, Any]]
) -> tuple[list[str], list[int]]:
    """The text and type of each id; an id without a token gets a placeholder."""
    tokens = [f"<hole {token_id}>" for token_id in range(tokenizer.size)]
    types = [UNUSED] * tokenizer.size
    for token, token_id in vocabulary.items():
        tokens[token_id], types[token_id] = token, NORMAL
    for one in added:
        stripping = [key for key in ("lstrip", "rstrip", "single_word") if one[key] and not one["special"]]
        if stripping:
            raise _unsupported(f"its token {one['content']!r} has {stripping[0]}, for which GGUF has no field")
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
        raise _unsupported("GGUF has a character map only for unigram")
    return fields | ({"precompiled_charsmap": model.character_map} if model.character_map else {})


def _bert(tokenizer: Tokenizer, state: dict[str, Any]) -> dict[str, Any]:
    model, normalizer = state["model"], state["normalizer"] or {}
    pre_tokenizer = state["pre_tokenizer"] or {}
    if (normalizer.get("type"), pre_tokenizer.get("type")) != ("BertNormalizer", "BertPreTokenizer"):
        raise _unsupported("its kind is wordpiece, but not with BERT's normalizer and pre-tokenizer")
    if not normalizer["lowercase"] or model["continuing_subword_prefix"] != "##":
        raise _unsupported("llama.cpp's BERT always lower-cases texts and uses ##, and this tokenizer does not")
    tokens, types = _list_tokens(tokenizer, model["vocab"], state["added_tokens"])
    types = [UNKNOWN if token == model["unk_token"] else kind for token, kind in zip(tokens, types, strict=True)]
    wordpieces = [
        token if kind != NORMAL else token[2:] if token.startswith("##") and len(token) > 2 else f"▁{token}"
        for token, kind in zip(tokens, types, strict=True)
    ]
    return {"model": "bert", "pre": "jina-v2-en", "tokens": wordpieces, "token_type": types}
