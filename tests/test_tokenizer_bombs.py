"""Tokenizer files that would take minutes or gigabytes are refused at once; real ones still load."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from bombs import added_tokens, bombs, character_map, definition, replace, sequence

from chumoku.errors import UsageError
from chumoku.text import load
from chumoku.text.backend import MAX_ADDED_TOKENS, check_added_tokens
from chumoku.text.formats.sentencepiece import CONTROL, NORMAL, UNIGRAM, UNKNOWN, Model, Piece, build_backend
from chumoku.text.tokenizer_limits import check_definition

BOMBS = dict(bombs())


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_with_a_message(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(BOMBS[name])
    start = time.process_time()
    with pytest.raises(UsageError, match=r"tokenizer.json is not a readable tokenizer: .*\. Is the file complete"):
        load(file)
    assert time.process_time() - start < 2


REAL: dict[str, dict[str, Any]] = {
    "llama 2": {
        "normalizer": sequence("normalizer", [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]),
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
    },
    "clip": {
        "normalizer": sequence("normalizer", [{"type": "NFC"}, replace(r"\s+", " ", regex=True), {"type": "Lowercase"}])
    },
    "albert": {
        "normalizer": sequence(
            "normalizer",
            [
                *(replace("``", '"'), replace("''", '"')),
                *({"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
                *(replace(" {2,}", " ", regex=True), replace(r"\s+$", "", regex=True)),
            ],
        )
    },
    "many replacements": {"normalizer": sequence("normalizer", [replace(f"{n}", f"{n + 1}") for n in range(10, 99)])},
    "nemo": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {
                "Regex": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}| ?[^\s"
                r"\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "speech": {"added_tokens": added_tokens(20_000)},
}


@pytest.mark.parametrize("name", REAL)
def test_parts_of_real_tokenizers_open(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**definition(), **REAL[name]}))
    start = time.process_time()
    assert load(file).encode("some words")
    assert time.process_time() - start < 2


def test_added_tokens_of_other_formats_are_limited() -> None:
    with pytest.raises(ValueError, match=r"131,073 added tokens"):
        check_added_tokens(str(number) for number in range(MAX_ADDED_TOKENS + 1))
    pieces = [Piece("<unk>", 0.0, UNKNOWN), Piece("a", -1.0, NORMAL)]
    pieces += [Piece(f"<{number}>", 0.0, CONTROL) for number in range(MAX_ADDED_TOKENS)]
    with pytest.raises(ValueError, match="added tokens"):
        build_backend(Model(pieces, UNIGRAM, False, b"", True, True))


def test_text_growth_is_limited() -> None:
    def check(*steps: dict[str, Any]) -> None:
        check_definition({"normalizer": sequence("normalizer", list(steps))})

    check(*[replace("a", "aa")] * 4)
    with pytest.raises(ValueError, match=r"normalizer may make a text more than 16 times as long \(step 5 of 6\)"):
        check(*[replace("a", "aa")] * 6)
    check(*[replace("aa", "a")] * 99)
    check({"type": "NFKC"}, {"type": "NFKC"}, {"type": "Lowercase"})
    with pytest.raises(ValueError, match="16 times as long"):
        check(replace("a", "ﷺ"), {"type": "NFKC"})
    check({"type": "Precompiled", "precompiled_charsmap": character_map("a", "b")})
    with pytest.raises(ValueError, match="turns the letter 'a' into a long text"):
        check({"type": "Precompiled", "precompiled_charsmap": character_map("a", "a" * 9)})
