"""Limits on a tokenizer.json, checked before the `tokenizers` library loads it, so that no file can use up the machine.

    normalizer, decoder      each step may make a text longer; the product of all steps is limited
    pre-tokenizer            the same for steps that add characters
    post-processor           how many tokens a template adds around a text
    added tokens             their number and their characters
    patterns                 their length, and, once the tokenizer is built, their time on short texts

A regular expression may still be slow on a text unlike these short texts. The library gives up after ten million
attempts to match at one position, which becomes an error message; it cannot be interrupted before that.
"""

from __future__ import annotations

import base64
import json
import re
import time
import unicodedata
from collections.abc import Iterator
from typing import Any

import tokenizers

from chumoku.safe_files import check_depth
from chumoku.text.backend import check_added_tokens
from chumoku.text.formats.sentencepiece import MAX_MAPPED_LENGTH, check_character_map

MAX_STEPS = 256  # of a normalizer, a pre-tokenizer, a decoder
MAX_GROWTH = 16  # times as many characters
MAX_PREPENDED = 1 << 10
MAX_TEMPLATES = 8
MAX_TEMPLATE_LENGTH = 32  # parts, and tokens of each special token
MAX_TEMPLATE_TOKENS = 1 << 12
MAX_PATTERN_LENGTH = 1 << 13
MAX_WORD_LENGTH = 1 << 10  # WordPiece's time grows with the square of a word's length
MAX_SECONDS = 0.02  # thread time for a text of up to 256 characters; usual is 0.0001
MAX_PROBE_LENGTH = 256

# A pattern with one of these may match the empty string, and then its replacement is inserted between all characters.
_MAY_MATCH_EMPTY = re.compile(r"[*?|^$()]|\{[0,]|\\[bBAzZGKyYRXO]")
_INNER = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_STRUCTURE = {"type", "pattern", "content", "ids", "id", "single", "pair", "special_tokens", "prepend", "added_tokens"}
_STRUCTURE |= {"normalizers", "pretokenizers", "decoders", "processors", "precompiled_charsmap", "model", *_INNER}


def load_checked_backend(data: bytes) -> tokenizers.Tokenizer:
    """The backend of a tokenizer.json. Raises ValueError if the file exceeds a limit."""
    text = data.decode("utf-8")
    state = json.loads(text, object_pairs_hook=_check_object)
    check_definition(state)
    backend = tokenizers.Tokenizer.from_str(text)
    check_speed(backend, state)
    return backend


def _check_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated keys: the library might read the other value than the one checked here."""
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in _STRUCTURE if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the key '{twice}' appears twice in one object")
    return table


def check_definition(state: Any) -> None:
    """Check all limits that do not need a built tokenizer."""
    if not isinstance(state, dict):
        raise ValueError("it is not a JSON object")
    check_depth({key: value for key, value in state.items() if key != "model"})
    check_added_tokens(token.get("content") for token in _as_list(state.get("added_tokens")) if isinstance(token, dict))
    for part in _INNER:
        _check_steps(part, list(_steps(state.get(part), _INNER[part])))
    templates = list(_steps(state.get("post_processor"), "processors"))
    if len(templates) > MAX_TEMPLATES:
        raise ValueError(f"its post_processor has {len(templates):,} steps; the limit is {MAX_TEMPLATES}")
    for step in templates:
        _check_template(step)
    model = state.get("model")
    longest = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(longest, (int, float)) and longest > MAX_WORD_LENGTH:
        raise ValueError(f"it accepts words of {longest:,} characters; the limit is {MAX_WORD_LENGTH:,}")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _steps(part: Any, inner: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, with sequences flattened. Old files name no type, so a sequence is found by its key."""
    if not isinstance(part, dict):
        return
    if isinstance(part.get(inner), list):
        for one in part[inner]:
            yield from _steps(one, inner)
    else:
        yield part


def _check_steps(name: str, steps: list[dict[str, Any]]) -> None:
    if len(steps) > MAX_STEPS:
        raise ValueError(f"its {name} has {len(steps):,} steps; the limit is {MAX_STEPS}")
    growth, prepended = 1.0, 0.0
    inserted = ""  # characters that earlier steps may have inserted
    for number, step in enumerate(steps):
        times = _growth(step, inserted, first=number == 0)
        inserted += _texts(step)
        growth, prepended = growth * times, prepended * times
        prepended += len(step["prepend"]) if isinstance(step.get("prepend"), str) else 0
        if growth > MAX_GROWTH or prepended > MAX_PREPENDED:
            raise ValueError(
                f"its {name} may make a text more than {MAX_GROWTH} times as long (step {number + 1} of {len(steps)})"
            )


def _texts(step: dict[str, Any]) -> str:
    return "".join(step[key] for key in ("content", "prepend") if isinstance(step.get(key), str))


def _growth(step: dict[str, Any], inserted: str, *, first: bool) -> float:
    """How many characters one character may become, in a text with the characters `inserted` by earlier steps."""
    kind, pattern = step.get("type"), step.get("pattern")
    if isinstance(step.get("precompiled_charsmap"), str):
        check_character_map(base64.b64decode(step["precompiled_charsmap"]))
        return MAX_MAPPED_LENGTH if inserted else 1.0
    if isinstance(pattern, dict):
        return _replaced_growth(pattern, step.get("content"))
    if isinstance(pattern, str) or kind == "Split":
        _check_pattern(str(pattern))
        return 1.0
    if kind in ("NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase"):
        # Growth of the user's own text is acceptable; growth of characters inserted by the file is limited.
        letters = {inner for letter in set(inserted) for inner in letter + letter.lower()}
        longest = max((len(unicodedata.normalize("NFKD", letter.lower())) for letter in letters), default=1)
        return max(longest, 3 if kind == "BertNormalizer" and not first else 1)
    if kind == "ByteLevel":
        return 1.0 if first else 2.0
    return 2.0 if kind in ("Metaspace", "BPEDecoder", "CTC", "WordPiece") and not first else 1.0


def _replaced_growth(pattern: dict[str, Any], content: Any) -> float:
    text, expression = pattern.get("String"), pattern.get("Regex")
    size = len(content) if isinstance(content, str) else 0
    if isinstance(text, str):
        _check_pattern(text)
        return max(1.0, size / len(text)) if text else 1.0 + size
    if isinstance(expression, str):
        _check_pattern(expression)
        return 1.0 + size if not expression or _MAY_MATCH_EMPTY.search(expression) else max(1.0, size)
    return 1.0


def _check_pattern(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"it has a pattern of {len(pattern):,} characters; the limit is {MAX_PATTERN_LENGTH:,}")


def _check_template(step: dict[str, Any]) -> None:
    """Check a template, which lists special tokens and texts; each special token is a list of ids."""
    table = step.get("special_tokens")
    entries = [entry for entry in table.values() if isinstance(entry, dict)] if isinstance(table, dict) else []
    sizes = [len(_as_list(entry.get("ids"))) for entry in entries]
    if len(entries) > MAX_TEMPLATE_TOKENS or max(sizes, default=0) > MAX_TEMPLATE_LENGTH:
        raise ValueError(
            f"its template has {len(entries):,} special tokens of up to {max(sizes, default=0):,} ids; the limits are "
            f"{MAX_TEMPLATE_TOKENS:,} tokens of {MAX_TEMPLATE_LENGTH} ids"
        )
    for form, most in (("single", 1), ("pair", 2)):
        parts = _as_list(step.get(form))
        texts = sum(isinstance(part, dict) and "Sequence" in part for part in parts)
        if len(parts) > MAX_TEMPLATE_LENGTH or texts > most:
            raise ValueError(
                f"its template '{form}' has {len(parts):,} parts, {texts:,} of them texts; the limits are "
                f"{MAX_TEMPLATE_LENGTH} parts and {most} text(s)"
            )


def check_speed(backend: tokenizers.Tokenizer, state: dict[str, Any]) -> None:
    """Time short texts of growing length if the file contains its own regular expressions."""
    patterns = [
        step["pattern"]["Regex"]
        for part, inner in _INNER.items()
        for step in _steps(state.get(part), inner)
        if isinstance(step.get("pattern"), dict) and isinstance(step["pattern"].get("Regex"), str)
    ]
    if not patterns:
        return
    letters = dict.fromkeys(["a", " ", "0", ".", "\n", "あ", "漢", "aB 1,", *sorted(set("".join(patterns)))[:64]])
    # The characters of all patterns follow at the end: without them the library might skip matching.
    tail = "\n" + "".join(letters)
    for letter in letters:
        size = 8
        while size <= MAX_PROBE_LENGTH:
            text = letter * (size // len(letter)) + tail
            start = time.thread_time()
            ids = backend.encode(text, add_special_tokens=False).ids
            backend.decode(ids)
            seconds = time.thread_time() - start
            if seconds > MAX_SECONDS:
                raise ValueError(
                    f"it takes {seconds:.2f} s for a text of {len(text)} characters; a pattern is too slow"
                )
            size *= 2
