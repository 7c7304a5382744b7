"""Constrained decoding: only tokens that keep a text within a grammar may be sampled; llguidance computes which.

    {"name":        next token ∈ { "  "a  "Kan … }          after a complete value:  next token ∈ { end tokens }

A grammar is JSON, or the JSON that a schema allows. If max_new_tokens is reached first, the JSON is incomplete.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chumoku.errors import UsageError
from chumoku.safe_files import check_depth
from chumoku.text.token_bytes import token_bytes
from chumoku.text.tokenizer import Tokenizer

MAX_DEPTH = 64  # levels of a schema
MAX_SCHEMA = 1 << 16  # characters
MAX_MULTIPLES, LARGEST_MULTIPLE = 8, 1000  # of "multipleOf": a large one takes seconds to compile
_tables: weakref.WeakKeyDictionary[Tokenizer, dict[int, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()  # of the tables


class Constraint:
    """The grammar of one text, and where in it the text is."""

    def __init__(self, matcher: Any, end: Sequence[int]) -> None:
        self._matcher, self._end = matcher, [*end]

    def start(self) -> Constraint:
        """The same grammar for a new text."""
        return Constraint(self._matcher.deep_copy(), self._end)

    def allowed(self, vocabulary: int) -> Tensor:
        """Which tokens may come next [V]: only the end tokens after a complete text, none if llguidance gave up."""
        allowed = np.zeros(vocabulary, dtype=bool)
        complete = self._matcher.is_accepting()
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[:vocabulary].astype(bool)
            allowed[: len(mask)] = mask
        allowed[self._end] = complete
        return torch.from_numpy(allowed & (not self._matcher.is_error()))

    def advance(self, token: int) -> None:
        """The text goes on with this token."""
        self._matcher.consume_token(token)


def constrain_to_json(tokenizer: Tokenizer, end: Sequence[int], schema: dict[str, Any] | None = None) -> Constraint:
    """A constraint to a JSON object, or to the values that a JSON schema allows."""
    if importlib.util.find_spec("llguidance") is None:
        raise UsageError("JSON output needs the package llguidance: pip install 'chumoku[serve]'.")
    if not end:
        raise UsageError("JSON output needs an end token, and this model's tokenizer has none.")
    from llguidance import LLMatcher

    if schema is not None:
        check_schema(schema)
    # One space after a comma or colon, as models write JSON; free white space lets small models write nothing else.
    grammar = LLMatcher.grammar_from_json_schema(
        {"type": "object"} if schema is None else schema,
        overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    )
    matcher = LLMatcher(_table(tokenizer, end[0]), grammar, log_level=0)
    if matcher.is_error():
        raise UsageError(f"The JSON schema cannot be used: {matcher.get_error().splitlines()[0][:300].rstrip('.')}.")
    matcher.compute_bitmask()
    if matcher.is_stopped():
        raise UsageError("The JSON schema cannot be used: no value is possible.")
    return Constraint(matcher, end)


def check_schema(schema: dict[str, Any]) -> None:
    """Refuse a JSON schema that is too large or nested too deeply."""
    try:
        check_depth(schema, MAX_DEPTH)
    except ValueError as error:
        raise UsageError(f"The JSON schema is not valid: {error}.") from error
    if (size := len(json.dumps(schema))) > MAX_SCHEMA:
        raise UsageError(f"The JSON schema has {size:,} characters; at most {MAX_SCHEMA:,} are allowed.")
    multiples = list(_values_of("multipleOf", schema))
    small = all(type(value) is int and 0 < value <= LARGEST_MULTIPLE for value in multiples)
    if not small or len(multiples) > MAX_MULTIPLES:
        raise UsageError(
            f"A JSON schema may have 'multipleOf' {MAX_MULTIPLES} times, with whole numbers up to {LARGEST_MULTIPLE}."
        )


def _values_of(key: str, schema: dict[str, Any]) -> Iterator[Any]:
    """The values of a key at any depth."""
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if key in value:
                yield value[key]
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


class _Tokens:
    """A tokenizer as llguidance reads it: the bytes of each token."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.tokens = [token_bytes(tokenizer, number) for number in range(tokenizer.size)]
        self.eos_token_id, self.bos_token_id = end, None
        self.special_token_ids = [*tokenizer.specials.values()]
        self._tokenizer = weakref.ref(tokenizer)  # which is the key of the table that this is in

    def __call__(self, text: str | bytes) -> list[int]:
        tokenizer = self._tokenizer()
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return [] if tokenizer is None else tokenizer.encode(text)


def _table(tokenizer: Tokenizer, end: int) -> Any:
    """The tokenizer's vocabulary, prepared once."""
    from llguidance import LLTokenizer, TokenizerWrapper

    with _lock:
        prepared = _tables.setdefault(tokenizer, {})
        if end not in prepared:
            prepared[end] = LLTokenizer(TokenizerWrapper(_Tokens(tokenizer, end)), n_vocab=tokenizer.size)
        return prepared[end]
