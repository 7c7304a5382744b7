"""Prepared folders that are damaged or incomplete are detected when opened, and can be prepared again."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
from bundles import byte_tokenizer
from rich.console import Console

from chumoku.data import ragged_array
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import read_manifest, replace_folder
from chumoku.data.pairs import read_pairs
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter, compute_digest
from chumoku.data.shards import Shards, prepare_text
from chumoku.data.text_files import MAX_RECORD_BYTES
from chumoku.data.tokenizer_cache import prepare_tokenizer
from chumoku.errors import BusyError, CorpusError, DamagedError, UsageError
from chumoku.partial_output import LOCK
from chumoku.training.run import train

TOKENIZER = byte_tokenizer()


def change_bytes(file: Path) -> None:
    """Change a byte of a file, but keep its size and time."""
    found, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("猫が好きだ\n\n犬が走る\n\n" * 20, encoding="utf-8")
    prepare_text(Corpus([tmp_path / "a.txt"]), TOKENIZER, tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.parametrize("end", ["tokens", "ends"])
def test_changed_tokens_are_detected_on_opening(shards: Path, end: str) -> None:
    Shards(shards)
    change_bytes(shards / f"shard-00000.{end}")
    message = (
        r"shard-00000.tokens or shard-00000.ends was changed .* Remove the folder .*shards and run the same command"
    )
    with pytest.raises(DamagedError, match=message):
        Shards(shards)
    with pytest.raises(DamagedError, match=message):
        prepare_text(Corpus([shards.parent / "a.txt"]), TOKENIZER, shards)
    shutil.rmtree(shards)
    assert prepare_text(Corpus([shards.parent / "a.txt"]), TOKENIZER, shards).documents == 40


def test_changed_pairs_are_detected(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"one {n}\tzwei {n * 7}\n" for n in range(60)))
    folder = prepare_pairs([tmp_path / "a.tsv"], TOKENIZER, tmp_path / "pairs", validation=0.2)
    open_pairs(folder)
    change_bytes(folder / "train-target.tokens")
    with pytest.raises(DamagedError, match=r"train-target.tokens"):
        open_pairs(folder)


def test_file_is_verified_once_per_process(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(ragged_array, "compute_digest", lambda *both: seen.append(1) or compute_digest(*both))
    monkeypatch.setattr(ragged_array, "_verified", set())
    for _ in range(3):
        Shards(shards)
    assert len(seen) == 1
    copy = shards.with_name("copy")
    shutil.copytree(shards, copy)
    Shards(copy)
    assert len(seen) == 2


@pytest.mark.parametrize("block", [2, 7, 31, 1 << 20])
def test_digest_matches_the_writer(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged_array, "BLOCK", block)
    rng = np.random.default_rng(block)
    for trial, dtype in enumerate((np.dtype("<u2"), np.dtype("<u4"))):
        writer = RaggedArrayWriter(tmp_path / f"part{trial}", dtype)
        for _ in range(41):
            for part in range(int(rng.integers(1, 4))):
                writer.add(rng.integers(0, 999, int(rng.choice([0, 1, 5, 83]))).tolist(), ends=not part)
        writer.add([5, 3], ends=False)  # a sequence that nobody ended
        assert len(RaggedArray(tmp_path, writer.close())) == writer.sequences


@pytest.mark.parametrize("ends", [[-1, 5], [5, 3], [3, 1 << 60]])
def test_invalid_ends_are_damage(tmp_path: Path, ends: list[int]) -> None:
    with RaggedArrayWriter(tmp_path / "part", np.dtype("<u2")) as writer:
        writer.add([1, 2, 3])
        writer.add([4, 5])
        entry = writer.close()
    (tmp_path / "part.ends").write_bytes(np.array(ends, "<i8").tobytes())
    with pytest.raises(DamagedError, match=r"part.ends was changed"):
        RaggedArray(tmp_path, entry)


def test_manifest_without_entries_message(shards: Path) -> None:
    manifest = json.loads((shards / "manifest.json").read_text())
    del manifest["shards"][0]["dtype"]
    (shards / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match=r"The manifest of .*shards lacks 'dtype'"):
        Shards(shards)


@pytest.mark.parametrize("damaged", ["", '{"version": 1, "made', "\0" * 300, "[" * 90_000])
def test_damaged_manifest_is_prepared_again(shards: Path, damaged: str) -> None:
    whole = (shards / "manifest.json").read_text()
    (shards / "manifest.json").write_text(damaged)
    prepare_text(Corpus([shards.parent / "a.txt"]), TOKENIZER, shards)
    assert (shards / "manifest.json").read_text() == whole


def test_foreign_folder_with_damaged_manifest_is_not_replaced(shards: Path) -> None:
    (shards / "manifest.json").write_text("{")
    (shards / "thesis.txt").write_text("mine")
    with pytest.raises(CorpusError, match=r"exists and is not a prepared corpus: it contains thesis.txt"):
        prepare_text(Corpus([shards.parent / "a.txt"]), TOKENIZER, shards)
    assert (shards / "shard-00000.tokens").exists()


def test_changed_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words and some other words")

    def prepare() -> Any:
        texts = Corpus([tmp_path / "a.txt"]).documents()
        return prepare_tokenizer(texts, [tmp_path / "a.txt"], tmp_path / "t", read_as={}, kind="bpe", vocabulary=300)

    prepare()
    file = tmp_path / "t" / "tokenizer.json"
    file.write_text(file.read_text().replace("<mask>", "<musk>"))
    with pytest.raises(DamagedError, match=r"tokenizer.json was changed .* Remove the folder"):
        prepare()
    file.write_text("{" + " " * (file.stat().st_size - 1))
    with pytest.raises(DamagedError, match=r"tokenizer.json was changed .* Remove the folder"):
        prepare()
    shutil.rmtree(tmp_path / "t")
    assert "<mask>" in prepare().specials


def test_run_resumes_after_damage(tmp_path: Path) -> None:
    faults.write_corpora(tmp_path)
    steps = {"steps": 7, "save_every": 3}
    recipe = faults.recipe_for("decoder", tmp_path, tmp_path / "run", train=steps)
    quiet = Console(file=io.StringIO())
    train(recipe, console=quiet)
    expected = faults.tensors(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    change_bytes(tmp_path / "run" / "data" / "shards" / "shard-00000.tokens")
    with pytest.raises(DamagedError, match=r"shard-00000\.tokens"):
        train(recipe, resume=True, console=quiet)
    shutil.rmtree(tmp_path / "run" / "data" / "shards")
    (tmp_path / "run" / "data" / "tokenizer" / "manifest.json").write_text('{"ver')
    train(recipe, resume=True, console=quiet)
    found = faults.tensors(tmp_path / "run")
    assert all((found[name] == value).all() for name, value in expected.items())


# Incomplete folders


def kill_while_preparing(folder: Path) -> None:
    """Kill a process while it prepares a folder."""
    code = (
        "import sys, os, signal; from pathlib import Path; from chumoku.data.manifest import replace_folder\n"
        "with replace_folder(Path(sys.argv[1])) as working:\n"
        "    (working / 'shard-00000.tokens').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert result.returncode == -signal.SIGKILL


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    kill_while_preparing(folder)
    left = tmp_path / "shards.incomplete"
    assert (left / "new" / "shard-00000.tokens").read_bytes() == b"half"
    with replace_folder(folder) as working:
        assert not list(working.iterdir())
        (working / "result").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    assert (folder / "result").read_text() == "whole"


def test_failure_leaves_no_files(tmp_path: Path) -> None:
    def interrupt() -> None:
        with replace_folder(tmp_path / "shards") as working:
            (working / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert not list(tmp_path.iterdir())


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    with replace_folder(tmp_path / "shards") as working:
        (working / "mine").write_text("mine")
        with pytest.raises(BusyError, match=rf"in use: process {os.getpid()} is preparing"):
            replace_folder(tmp_path / "shards").__enter__()
        assert (working / "mine").read_text() == "mine"
    assert (tmp_path / "shards" / "mine").exists()


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_foreign_files_are_not_removed(tmp_path: Path, what: str) -> None:
    place = tmp_path / "shards.incomplete"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    (tmp_path / "other" / LOCK).write_text("")
    if what == "file":
        place.write_text("mine")
    elif what == "folder":
        place.mkdir()
        (place / "thesis.txt").write_text("mine")
    else:
        place.symlink_to("other")
    with pytest.raises(UsageError, match=r"something else is there\. Move it away"):
        replace_folder(tmp_path / "shards").__enter__()
    assert (tmp_path / "other" / "thesis.txt").exists()
    assert what != "folder" or (place / "thesis.txt").exists()


# Very long lines


def compress(path: Path, first: bytes, repeated: bytes, times: int) -> Path:
    line = first + repeated * times
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(
            b'{"text": "good", "ja": "good", "en": "good"}\n' + line + b'\n{"text": "after", "ja": "a", "en": "a"}'
        )
    return path


@pytest.mark.parametrize("archive", ["gz", "zip"])
def test_huge_line_is_reported_and_takes_little_memory(tmp_path: Path, archive: str) -> None:
    file = compress(tmp_path / "a.jsonl.gz", b'{"text": [[]', b",[]", MAX_RECORD_BYTES)
    if archive == "zip":
        content = gzip.decompress(file.read_bytes())
        file = tmp_path / "a.zip"
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as one:
            one.writestr("b.jsonl", content)
        del content
    assert file.stat().st_size < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    corpus = Corpus([file], documents="record")
    assert list(corpus.documents()) == ["good", "after"]
    assert corpus.report.dropped == {"line too long": 1}
    [example] = corpus.report.examples["line too long"]
    assert example.line == 2
    assert str(file) in example.file
    assert any("8,388,608 bytes in JSONL" in line for line in corpus.report.lines())
    pairs, report = read_pairs([file], columns=("ja", "en"))
    assert len(pairs) == 2
    assert report.dropped == {"line too long": 1}
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_long_line_within_the_limit_takes_little_memory(tmp_path: Path) -> None:
    """The worst case within the limit: a line with as many objects as possible."""
    file = compress(tmp_path / "a.jsonl.gz", b'{"text": "x", "y": [[]', b",[]", MAX_RECORD_BYTES // 3 - 20)
    code = (
        "import sys, resource; from chumoku.data.corpus import Corpus\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(list(Corpus([sys.argv[1]], documents='record').documents()))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    output = subprocess.run([sys.executable, "-c", code, str(file)], check=True, capture_output=True, text=True).stdout
    assert int(output.splitlines()[-1]) < 400 << 10


def test_manifest_round_trip(shards: Path) -> None:
    assert read_manifest(shards)["report"]["kept"] == 40
