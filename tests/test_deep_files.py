"""Deeply nested files, pipes and devices are refused quickly, with a message."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from chumoku.config import load_toml, override, parse_value
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import read_manifest
from chumoku.data.pairs import read_pairs
from chumoku.data.text_files import compute_fingerprint
from chumoku.errors import ChumokuError, ConfigError, CorpusError, UsageError
from chumoku.safe_files import check_depth, check_file, check_safetensors_header, read_json
from chumoku.text import load

DEEP = 50_000
NESTED = "[" * DEEP + "]" * DEEP
PARSED_BUT_DEEP = "[" * 300 + "]" * 300  # the parser accepts it, but recursive code may not


@pytest.mark.parametrize(
    "content",
    [
        "a." * DEEP + "a = 1",
        "[" + "a." * DEEP + "a]\nb = 1",
        "a = " + NESTED,
        'b = 1\n"a" . ' * 1 + "'b' . " * DEEP + "c = 1",
        "a = " + "{a = " * 60 + "1" + "}" * 60,
        "a = " + "[" * 60 + "]" * 60,
    ],
    ids=["key", "table", "list", "quoted key", "inline tables", "shallow list"],
)
def test_deeply_nested_recipe_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(content)
    start = time.process_time()
    with pytest.raises(UsageError, match=r"recipe.toml is not valid TOML"):
        load_toml(file)
    assert time.process_time() - start < 1


def test_ordinary_keys_and_long_words_are_read(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(f'a.b."c.d" = 1\n# {"." * 500}\nword = "{"a" * 100_000}"\ndots = "{"1." * 20}"\n')
    assert load_toml(file)["a"] == {"b": {"c.d": 1}}


def test_deep_key_on_the_command_line_is_refused() -> None:
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"this key has 50,001 parts; at most 32 are allowed") as refused:
        override({}, ["a." * DEEP + "a=1"])
    assert len(str(refused.value)) < 300
    deep = "{" + "a." * DEEP + "a = 1}"
    assert parse_value(deep) == deep
    assert parse_value(NESTED) == NESTED
    assert time.process_time() - start < 1


@pytest.mark.parametrize("content", [NESTED, PARSED_BUT_DEEP, '{"a":' * DEEP + "1" + "}" * DEEP])
def test_deeply_nested_json_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(content)
    with pytest.raises(ChumokuError, match=r"is not valid JSON: it is nested more than 64 levels deep"):
        read_json(file)
    with pytest.raises(CorpusError, match=r"manifest.json .*Prepare"):
        read_manifest(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer.json is not a readable tokenizer"):
        load(tmp_path / "tokenizer.json")


def test_depth_is_checked_without_recursion() -> None:
    inner: object = {}
    for _ in range(100_000):
        inner = [inner]
    with pytest.raises(ValueError, match="more than 64 levels"):
        check_depth(inner)
    check_depth({"a": [1, {"b": [[2]]}]}, max_depth=5)


@pytest.mark.parametrize("nested", [NESTED, PARSED_BUT_DEEP])
def test_deep_rows_are_skipped_and_counted(nested: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = ['{"text": "good", "ja": "犬", "en": "dog"}', f'{{"other": {nested}}}', f'{{"text": {nested}, "ja": 1}}']
    file.write_text("\n".join(rows), encoding="utf-8")
    corpus = Corpus([file], documents="record")
    assert list(corpus.documents()) == ["good"]
    assert sum(corpus.report.dropped.values()) == 2
    assert len(json.dumps(corpus.report.as_dict())) < 3000
    pairs, report = read_pairs([file], columns=("ja", "en"))
    assert len(pairs) == 1
    assert sum(report.dropped.values()) == 2


def test_row_with_a_million_fields_gives_a_short_message(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({f"field{number}": 1 for number in range(10_000)}))
    for read in (lambda: list(Corpus([file]).documents()), lambda: read_pairs([file], columns=("ja", "en"))):
        with pytest.raises(CorpusError, match=r"its fields are field0, field1, .* and 9,980 more") as refused:
            read()
        assert len(str(refused.value)) < 1000


@pytest.fixture(params=["pipe", "link to a pipe", "device", "link to a device", "socket"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A pipe, device or socket, with a file name that every reader accepts."""
    place = tmp_path / "endless.txt"
    if "pipe" in request.param:
        os.mkfifo(tmp_path / "pipe")
        place.symlink_to("pipe") if "link" in request.param else (tmp_path / "pipe").rename(place)
    elif "device" in request.param:
        place.symlink_to("/dev/zero")
        if "link to" in request.param:
            (tmp_path / "again").symlink_to(place)
            place = tmp_path / "again"
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as one:
            here = Path.cwd()
            os.chdir(tmp_path)
            one.bind("endless.txt")
            os.chdir(here)
    return place


def test_only_regular_files_are_opened(endless: Path) -> None:
    message = r"is a (pipe|device|socket), but a regular file is needed. Write its content to a file first"
    for read in (
        check_file,
        check_safetensors_header,
        read_json,
        load_toml,
        load,
        compute_fingerprint,
        lambda path: list(Corpus([path]).documents()),
        lambda path: read_pairs([path, path]),
        lambda path: Corpus([str(path)]),
    ):
        with pytest.raises(UsageError, match=message):
            read(endless)


def test_a_tokenizer_folder_with_a_pipe_in_it_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match="has no tokenizer"):
        load(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    os.mkfifo(tmp_path / "merges.txt")
    with pytest.raises(UsageError, match="is a pipe"):
        load(tmp_path / "vocab.json")
