"""Small tokenizer files that would cause a huge amount of work. Each must be refused at once with a message.

`bombs()` yields a name and a content for each; `mutants.py` and `test_tokenizer_bombs.py` load them.
"""

from __future__ import annotations

import base64
import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chumoku import text


def definition(kind: str = "bpe") -> dict[str, Any]:
    """The content of a valid tokenizer.json."""
    state: dict[str, Any] = json.loads(
        text.train(["some words, and words again: うどん"], kind=kind, vocabulary=600).json  # type: ignore[arg-type]
    )
    return state


def replace(pattern: str, content: str, *, regex: bool = False) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": pattern}, "content": content}


def sequence(part: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}.get(part, part): steps}


def template(special: int, ids: int, texts: int = 1) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * special
    parts += [{"Sequence": {"id": "A", "type_id": 0}}] * texts
    entry = {"id": "<s>", "ids": [1] * ids, "tokens": ["<s>"] * ids}
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": {"<s>": entry}}


def added_tokens(count: int, length: int = 9) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": 600 + number, "content": f"<{number:0{length}}>", **flags} for number in range(count)]


def character_map(letter: str, mapped: str) -> str:
    """A character map for one ASCII letter: a trie whose root points to the letter's value."""
    root_offset = 256
    units = [0] * 1024
    units[0] = root_offset << 10
    node = root_offset ^ ord(letter)
    units[node] = ord(letter) | 1 << 8 | 512 << 10
    units[node ^ 512] = 1 << 31 | 0
    data = struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + mapped.encode() + b"\0"
    return base64.b64encode(data).decode()


def parts() -> Iterator[tuple[str, str, Any]]:
    """A description, the part of the file that is replaced, and its new value."""
    doubling = [replace("a", "aa")] * 60
    yield "doubling normalizer", "normalizer", sequence("normalizer", doubling)
    yield "doubling without types", "normalizer", {"normalizers": [{**step} for step in doubling]}
    yield "one long replacement", "normalizer", replace("a", "a" * 100_000)
    yield "between all characters", "normalizer", sequence("normalizer", [replace("x*", "ab", regex=True)] * 20)
    yield "empty pattern", "normalizer", sequence("normalizer", [replace("", "b")] * 30)
    yield "compatibility letters", "normalizer", sequence("normalizer", [replace("ا", "ﷺ"), {"type": "NFKC"}] * 12)
    yield "byte letters again and again", "normalizer", sequence("normalizer", [{"type": "ByteLevel"}] * 30)
    yield "long prefixes", "normalizer", sequence("normalizer", [{"type": "Prepend", "prepend": "a" * 999}] * 99)
    yield "many steps", "normalizer", sequence("normalizer", [replace("a", "b")] * 40_000)
    yield "character map", "normalizer", {"type": "Precompiled", "precompiled_charsmap": character_map("a", "a" * 4000)}
    yield (
        "short character map",
        "normalizer",
        sequence("normalizer", [{"type": "Precompiled", "precompiled_charsmap": character_map("a", "a" * 19)}] * 5),
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    yield "byte letters in pieces", "pre_tokenizer", sequence("pre_tokenizer", [byte_level] * 30)
    slow = {"type": "Split", "behavior": "Isolated", "invert": False}
    yield "slow pattern", "pre_tokenizer", {**slow, "pattern": {"Regex": "(?:.{0,50}){4}[xy]"}}
    yield "slow pattern that looks ahead", "pre_tokenizer", {**slow, "pattern": {"Regex": "(?:.{0,50}){4}(?!a|$)"}}
    yield "endless pattern", "pre_tokenizer", {**slow, "pattern": {"Regex": "(q|q)+[xy]"}}
    yield "long pattern", "pre_tokenizer", {**slow, "pattern": {"Regex": "|".join(f"w{n}" for n in range(99_999))}}
    yield "long template", "post_processor", template(60_000, 1_000)
    yield "long special token", "post_processor", template(1, 10_000_000 // 50)
    yield "text again and again", "post_processor", template(0, 1, texts=20)
    yield "templates of templates", "post_processor", {"type": "Sequence", "processors": [template(30, 30)] * 99}
    yield "doubling decoder", "decoder", {"type": "Sequence", "decoders": doubling}
    yield (
        "decoder between all characters",
        "decoder",
        {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 40},
    )
    yield "many added tokens", "added_tokens", added_tokens(200_000)
    yield "long added tokens", "added_tokens", added_tokens(100, 100_000)


def bombs() -> Iterator[tuple[str, bytes]]:
    healthy = definition()
    for name, part, value in parts():
        yield name, json.dumps({**healthy, part: value}).encode()
    wordpiece = definition("wordpiece")
    wordpiece["model"]["max_input_chars_per_word"] = 10**9
    yield "long words", json.dumps(wordpiece).encode()
    twice = json.dumps({**healthy, "normalizer": replace("a", "HERE")})
    yield "a key twice", twice.replace('"content": "HERE"', f'"content": "{"a" * 9999}", "content": "b"').encode()


def try_bombs(attempt: Callable[[Path, bytes], str | None]) -> int:
    """Load every bomb with `attempt`, which returns a problem or None, and return the number of problems."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: attempt(Path(folder) / "tokenizer.json", data) for name, data in bombs()}
    wrong = {name: what for name, what in found.items() if what is not None}
    print(f"tokenizer bombs: {len(found)}, {len(wrong)} wrong")
    for name, what in wrong.items():
        print("  ", f"{name}: {what}")
    return len(wrong)
