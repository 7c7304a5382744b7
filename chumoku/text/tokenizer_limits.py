"""What a tokenizer.json may ask of the `tokenizers` library: checked before the library sees the file.

    normalizer, decoder      each step may make a text longer; the product of all steps is bounded
    pre-tokenizer            the same for steps that add characters
    post-processor           how many tokens a template puts around a text
    added tokens             how many, and how many characters
    patterns                 their length, and, once the tokenizer is built, their time on short texts

A regular expression may still be slow on a text that these short texts do not resemble. The library gives up after ten
million attempts to match at one place, which becomes a sentence; it cannot be interrupted before that.
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
MAX_WORD_LENGTH = 1 << 10  # WordPiece's time grows with the square of a word
MAX_SECONDS = 0.02  # seconds of this thread for a text of up to 256 characters; usual are 0.0001
MAX_PROBE_LENGTH = 256

# One of these may match nothing at all, and then what replaces it comes between all characters.
_MAY_MATCH_EMPTY = re.compile(r"[*?|^$()]|\{[0,]|\\[bBAzZGKyYRXO]")
_INNER = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
_STRUCTURE = {"type", "pattern", "content", "ids", "id", "single", "pair", "special_tokens", "prepend", "added_tokens"}
_STRUCTURE |= {"normalizers", "pretokenizers", "decoders", "processors", "precompiled_charsmap", "model", *_INNER}


def load_checked_backend(data: bytes) -> tokenizers.Tokenizer:
    """The library's tokenizer from a tokenizer.json; ValueError where it asks for too much."""
    text = data.decode("utf-8")
    state = json.loads(text, object_pairs_hook=_check_object)
    check_definition(state)
    backend = tokenizers.Tokenizer.from_str(text)
    check_speed(backend, state)
    return backend


def _check_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that comes twice the library may read the other one."""
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next((name for name in _STRUCTURE if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"the key '{twice}' comes twice in one table")
    return table


def check_definition(state: Any) -> None:
    """Everything in the file that can be bounded by looking at it."""
    if not isinstance(state, dict):
        raise ValueError("it holds no table")
    check_depth({key: value for key, value in state.items() if key != "model"})
    check_added_tokens(token.get("content") for token in _as_list(state.get("added_tokens")) if isinstance(token, dict))
    for part in _INNER:
        _check_steps(part, list(_steps(state.get(part), _INNER[part])))
    templates = list(_steps(state.get("post_processor"), "processors"))
    if len(templates) > MAX_TEMPLATES:
        raise ValueError(f"its post_processor has {len(templates):,} steps, and {MAX_TEMPLATES} are the most")
    for step in templates:
        _check_template(step)
    model = state.get("model")
    longest = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(longest, (int, float)) and longest > MAX_WORD_LENGTH:
        raise ValueError(f"it takes words of {longest:,} characters, and {MAX_WORD_LENGTH:,} are the most")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _steps(part: Any, inner: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, those of sequences in turn. Old files do not name a step's type: its keys tell it."""
    if not isinstance(part, dict):
        return
    if isinstance(part.get(inner), list):
        for one in part[inner]:
            yield from _steps(one, inner)
    else:
        yield part


def _check_steps(name: str, steps: list[dict[str, Any]]) -> None:
    if len(steps) > MAX_STEPS:
        raise ValueError(f"its {name} has {len(steps):,} steps, and {MAX_STEPS} are the most")
    growth, prepended = 1.0, 0.0
    written = ""  # characters that steps so far may have written
    for number, step in enumerate(steps):
        times = _growth(step, written, first=number == 0)
        written += _texts(step)
        growth, prepended = growth * times, prepended * times
        prepended += len(step["prepend"]) if isinstance(step.get("prepend"), str) else 0
        if growth > MAX_GROWTH or prepended > MAX_PREPENDED:
            raise ValueError(
                f"its {name} may make a text more than {MAX_GROWTH} times as long (step {number + 1} of {len(steps)})"
            )


def _texts(step: dict[str, Any]) -> str:
    return "".join(step[key] for key in ("content", "prepend") if isinstance(step.get(key), str))


def _growth(step: dict[str, Any], written: str, *, first: bool) -> float:
    """How many characters one character may become, for a text that holds what was `written` by earlier steps."""
    kind, pattern = step.get("type"), step.get("pattern")
    if isinstance(step.get("precompiled_charsmap"), str):
        check_character_map(base64.b64decode(step["precompiled_charsmap"]))
        return MAX_MAPPED_LENGTH if written else 1.0
    if isinstance(pattern, dict):
        return _replaced_growth(pattern, step.get("content"))
    if isinstance(pattern, str) or kind == "Split":
        _check_pattern(str(pattern))
        return 1.0
    if kind in ("NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase"):
        # Of a text as people type it nothing is said here; of what a file puts in itself, something is.
        letters = {inner for letter in set(written) for inner in letter + letter.lower()}
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
        raise ValueError(f"it has a pattern of {len(pattern):,} characters, and {MAX_PATTERN_LENGTH:,} are the most")


def _check_template(step: dict[str, Any]) -> None:
    """A template names special tokens and texts; each special token is a list of numbers."""
    table = step.get("special_tokens")
    entries = [entry for entry in table.values() if isinstance(entry, dict)] if isinstance(table, dict) else []
    sizes = [len(_as_list(entry.get("ids"))) for entry in entries]
    if len(entries) > MAX_TEMPLATE_TOKENS or max(sizes, default=0) > MAX_TEMPLATE_LENGTH:
        raise ValueError(
            f"its template has {len(entries):,} special tokens of up to {max(sizes, default=0):,} numbers; up to "
            f"{MAX_TEMPLATE_TOKENS:,} of {MAX_TEMPLATE_LENGTH} can be"
        )
    for form, most in (("single", 1), ("pair", 2)):
        parts = _as_list(step.get(form))
        texts = sum(isinstance(part, dict) and "Sequence" in part for part in parts)
        if len(parts) > MAX_TEMPLATE_LENGTH or texts > most:
            raise ValueError(
                f"its template '{form}' has {len(parts):,} parts, {texts:,} of them texts; up to {MAX_TEMPLATE_LENGTH} "
                f"parts with {most} text(s) can be"
            )


def check_speed(backend: tokenizers.Tokenizer, state: dict[str, Any]) -> None:
    """Try short texts of growing length where the file brings regular expressions of its own."""
    patterns = [
        step["pattern"]["Regex"]
        for part, inner in _INNER.items()
        for step in _steps(state.get(part), inner)
        if isinstance(step.get("pattern"), dict) and isinstance(step["pattern"].get("Regex"), str)
    ]
    if not patterns:
        return
    letters = dict.fromkeys(["a", " ", "0", ".", "\n", "あ", "漢", "aB 1,", *sorted(set("".join(patterns)))[:64]])
    # What a pattern looks for comes at the end: without it the library would not even try.
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
