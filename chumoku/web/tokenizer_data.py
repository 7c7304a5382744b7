"""What a tokenizer needs in a web page: data that in_page/tokenizers/ encodes and decodes with.

    tokenizer → {"model": tokens, merges or scores, "normalizer": [steps], "pre_tokenizer": [steps], "decoder": [steps],
                 "added": tokens that are found in a text, "classes": sets of characters, roles and special tokens}

The page encodes and decodes exactly as Python does, whatever the browser's version of Unicode. What it cannot do
exactly is refused: splitting Japanese with a dictionary, and steps or patterns without a counterpart in JavaScript.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tokenizers

from chumoku.errors import UsageError
from chumoku.text.backend import check_added_tokens, copy_with_specials_as_text
from chumoku.text.tokenizer import Tokenizer
from chumoku.text.tokenizer_limits import check_speed
from chumoku.web import character_classes as classes
from chumoku.web.tokenizer_steps import (
    Classes,
    check_first_prefix,
    decoder_steps,
    normalizer_steps,
    pretokenizer_steps,
    refuse,
)

MAX_TOKENS = 1 << 20
MAX_MERGES = 1 << 21
MAX_CHARACTERS = 1 << 24  # of all tokens
SPECIAL, SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED = 1, 2, 4, 8, 16
FLAGS = {"special": SPECIAL, "single_word": SINGLE_WORD, "lstrip": LSTRIP, "rstrip": RSTRIP, "normalized": NORMALIZED}


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """The data of a tokenizer for the page. Raises UsageError if the page could not encode exactly as Python does."""
    if tokenizer.segments:
        raise UsageError(
            "This tokenizer splits Japanese into words with SudachiPy's dictionary, which a web page cannot contain. "
            "Train a tokenizer of the kind unigram or bpe, which need no dictionary, or serve the model: chumoku serve"
        )
    state = json.loads(tokenizer.json)
    backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    try:
        check_speed(backend, state)
    except ValueError as error:
        raise UsageError(f"This tokenizer cannot be used in a web page: {error}.") from error
    table = Classes()
    normalizer = normalizer_steps(state["normalizer"], table)
    pre_tokenizer = pretokenizer_steps(state["pre_tokenizer"], table)
    check_first_prefix(normalizer, pre_tokenizer)
    data = {
        "kind": tokenizer.kind,
        "size": tokenizer.size,
        "byte_level": tokenizer.byte_level,
        "split_characters": tokenizer.split_characters,
        "prefix_and_suffix": tokenizer.prefix_and_suffix,
        "stop_tokens": tokenizer.stop_tokens,
        "roles": _roles(tokenizer),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "typed_specials": _typed_specials(backend, table),
        "decoder": decoder_steps(state["decoder"], table),
        "added": _added_tokens(backend, state),
        "words": table.number(classes.word()) if _needs_words(state) else None,
        "spaces": table.number(classes.whitespace()) if _needs_words(state) else None,
        "invisible": table.number(classes.invisible()),
        "model": _model(state["model"]),
    }
    return {**data, "classes": table.table}


def _roles(tokenizer: Tokenizer) -> dict[str, Any]:
    roles = {field.name: getattr(tokenizer.roles, field.name) for field in dataclasses.fields(tokenizer.roles)}
    return {
        name: value if value is None or isinstance(value, int) else list(value.items()) for name, value in roles.items()
    }


def _typed_specials(backend: tokenizers.Tokenizer, table: Classes) -> dict[str, Any] | None:
    """The last pre-tokenizer of texts in which special tokens are not recognized, if they need one."""
    steps = [
        None if one.pre_tokenizer is None else json.loads(one.pre_tokenizer.__getstate__())
        for one in (backend, copy_with_specials_as_text(backend))
    ]
    if steps[0] == steps[1] or steps[1] is None:
        return None
    return pretokenizer_steps(steps[1]["pretokenizers"][-1], table)[0]


def _added_tokens(backend: tokenizers.Tokenizer, state: dict[str, Any]) -> list[tuple[int, str, str, int]]:
    """Each added token as id, content, the text that it is found by, and flags."""
    check_added_tokens(token["content"] for token in state["added_tokens"])
    rows = []
    for token in state["added_tokens"]:
        content, normalizer = token["content"], backend.normalizer
        found = normalizer.normalize_str(content) if token["normalized"] and normalizer is not None else content
        flags = sum(flag for name, flag in FLAGS.items() if token[name])
        rows.append((token["id"], content, found, flags))
    if any(not found for _, _, found, _ in rows):
        raise refuse("an added token without a text")
    return rows


def _needs_words(state: dict[str, Any]) -> bool:
    return any(token[name] for token in state["added_tokens"] for name in ("single_word", "lstrip", "rstrip"))


def _model(model: dict[str, Any]) -> dict[str, Any]:
    kind = model["type"]
    if kind == "Unigram":
        tokens = [piece for piece, _ in model["vocab"]]
        scores = [score for _, score in model["vocab"]]
        unknown, fallback = model["unk_id"], model["byte_fallback"]
        return {
            **_tokens(dict(enumerate(tokens))),
            "type": kind,
            "scores": scores,
            "unknown": unknown,
            "byte_fallback": fallback,
        }
    if kind not in ("BPE", "WordPiece", "WordLevel"):
        raise refuse(f"the model {kind}")
    ids = model["vocab"]
    by_id = {token_id: token for token, token_id in ids.items()}
    if len(by_id) < len(ids):
        raise refuse("two tokens with the same id")
    data = {**_tokens(by_id), "type": kind, "unknown": model["unk_token"]}
    if kind == "WordPiece":
        data |= {"prefix": model["continuing_subword_prefix"], "max_characters": model["max_input_chars_per_word"]}
    if kind == "BPE":
        data |= _bpe(model)
    return data


def _bpe(model: dict[str, Any]) -> dict[str, Any]:
    if model["dropout"]:
        raise refuse("merges that are left out at random (dropout)")
    if len(model["merges"]) > MAX_MERGES:
        raise refuse(f"{len(model['merges']):,} merges")
    ids = model["vocab"]
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return {
        "merges": [ids[half] for pair in pairs for half in pair],
        "prefix": model["continuing_subword_prefix"] or "",
        "suffix": model["end_of_word_suffix"] or "",
        **{key: model[key] for key in ("fuse_unk", "byte_fallback", "ignore_merges")},
    }


def _tokens(by_id: dict[int, str]) -> dict[str, Any]:
    """The tokens in the order of their ids, and the ids if they have gaps."""
    if len(by_id) > MAX_TOKENS or sum(map(len, by_id.values())) > MAX_CHARACTERS:
        raise refuse(f"{len(by_id):,} tokens with {sum(map(len, by_id.values())):,} characters")
    ids = sorted(by_id)
    has_gaps = ids != list(range(len(ids)))
    return {"tokens": [by_id[token_id] for token_id in ids], "ids": ids if has_gaps else None}
