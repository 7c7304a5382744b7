"""Reading corpora: all formats, messages for broken corpora, and the report of dropped lines."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from chumoku.data import split
from chumoku.data.batches import PairBatches, WindowBatches
from chumoku.data.corpus import Corpus
from chumoku.data.manifest import read_manifest
from chumoku.data.near_duplicates import group_pairs
from chumoku.data.pairs import Cleaning, Pair, read_pairs
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.data.shards import Shards, prepare_text
from chumoku.data.split import split_pairs
from chumoku.errors import ChumokuError, CorpusError, MissingExtraError
from chumoku.text import train
from chumoku.training.datasets import prepare
from chumoku.training.recipe import read_recipe

PAIRS = [Pair("猫が好きだ", "I like cats."), Pair("犬が走る", "The dog runs."), Pair("魚を食べる", "I eat fish.")]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_documents_by_blank_line_file_line_and_record(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", "one\ntwo\n\n\nthree\n")
    assert list(Corpus([text]).documents()) == ["one\ntwo", "three"]
    assert list(Corpus([text], documents="file").documents()) == ["one\ntwo\n\n\nthree"]
    assert list(Corpus([text], documents="line").documents()) == ["one", "two", "three"]
    records = write(tmp_path / "b.jsonl", '{"text": "one\\n\\nstill one"}\n\n{"text": "two"}\n')
    assert list(Corpus([records]).documents()) == ["one\n\nstill one", "two"]
    table = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["one", "two", None]}), table)
    assert list(Corpus([table], field="body").documents()) == ["one", "two"]


def test_compressed_files_folders_and_patterns(tmp_path: Path) -> None:
    write(tmp_path / "a.txt.gz", gzip.compress("猫\n".encode()))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("one.txt", "犬\n")
        archive.writestr("_about.txt", "not text")
        archive.writestr("__MACOSX/one.txt", "not text")
    write(tmp_path / "sub" / "c.txt", "魚\n")
    write(tmp_path / "ignored.bin", b"\x00")
    assert sorted(Corpus([tmp_path]).documents()) == ["犬", "猫", "魚"]
    assert list(Corpus([str(tmp_path / "*.gz"), tmp_path / "a.txt.gz"]).documents()) == ["猫"]


def test_tables_inside_archives_are_read_as_tables(tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["three"]}), table)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("./one.JSONL", '{"text": "one"}\n')
        archive.writestr("two.jsonl.gz", gzip.compress(b'{"text": "two"}\n'))
        archive.write(table, "three.parquet")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("pairs.jsonl", '{"ja": "猫", "en": "cat"}\n')
    write(tmp_path / "four.parquet.gz", gzip.compress(table.read_bytes()))
    files = [tmp_path / "b.zip", tmp_path / "four.parquet.gz"]
    assert list(Corpus(files).documents()) == ["one", "two", "three", "three"]
    assert read_pairs([tmp_path / "c.zip"], columns=("ja", "en"))[0] == [Pair("猫", "cat")]


def test_unpaired_surrogate_in_json(tmp_path: Path) -> None:
    records = write(tmp_path / "a.jsonl", '{"text": "cat \\ud83d fish"}\n{"text": " "}\n')
    found = Corpus([records])
    assert list(found.documents()) == ["cat \ufffd fish"]
    assert found.report.dropped == {"empty": 1}
    rows = write(tmp_path / "b.jsonl", '{"ja": "\\ud83d", "en": ""}\n{"ja": "猫\\ud83d", "en": "cat"}\n')
    folder = prepare_pairs([rows], TOKENIZER, tmp_path / "pairs", columns=("ja", "en"))
    assert read_manifest(folder)["report"]["dropped"] == {"empty": 1}


def test_line_of_maximum_size_does_not_end_a_document(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", b"x" * (1 << 20) + b"\nsame document\n")
    found = Corpus([text])
    assert "".join(piece.text for piece in found.pieces()).endswith("x\nsame document")
    assert found.report.kept == 1
    spaced = write(tmp_path / "b.txt", "y" * (1 << 20) + "z\n\n\nend\n")
    assert "".join(p.text for p in Corpus([spaced], documents="file").pieces()).endswith("z\n\n\nend")


def test_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree")
    assert list(Corpus([text]).documents()) == ["one\ntwo", "three"]


def test_very_long_line_comes_in_pieces(tmp_path: Path) -> None:
    letters = "あ" * 2_900_000 + "い"
    corpus = Corpus([write(tmp_path / "a.txt", letters + "\nlast\n")], documents="file")
    pieces = list(corpus.pieces())
    assert max(len(piece.text) for piece in pieces) < 1_500_000
    assert "".join(piece.text for piece in pieces) == letters + "\nlast"
    assert [piece.ends for piece in pieces].count(True) == 1
    assert corpus.report.kept == 1


def test_bad_lines_are_counted_with_examples(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", b"good\n\xff\xfe bad\n\ngood\n")
    corpus = Corpus([text])
    assert list(corpus.documents()) == ["good", "good"]
    assert corpus.report.dropped == {"invalid UTF-8": 1}
    assert corpus.report.examples["invalid UTF-8"][0][:2] == (str(text), 2)
    records = write(tmp_path / "b.jsonl", '{"text": "one"}\n{broken\n[1]\n{"other": "x"}\n')
    corpus = Corpus([records])
    assert list(corpus.documents()) == ["one"]
    assert corpus.report.dropped == {"not JSON": 2, "missing column": 1}


def pair_file(tmp_path: Path, kind: str) -> tuple[list[Path], tuple[str | int, str | int]]:
    if kind == "tsv":
        rows = "".join(f"{pair.target}\t{pair.source}\tby somebody\n" for pair in PAIRS)
        return [write(tmp_path / "a.tsv", rows)], (1, 0)
    if kind == "two files":
        sides = [[getattr(pair, side) for pair in PAIRS] for side in ("source", "target")]
        return [write(tmp_path / f"a.{n}", "\r\n".join(side)) for n, side in enumerate(sides)], (0, 1)
    if kind == "jsonl":
        rows = "\n".join(json.dumps({"ja": pair.source, "en": pair.target}) for pair in PAIRS)
        return [write(tmp_path / "a.jsonl.gz", gzip.compress(rows.encode()))], ("ja", "en")
    path = tmp_path / "a.parquet"
    columns = {"en": [pair.target for pair in PAIRS], "ja": [pair.source for pair in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return [path], ("ja", "en")


@pytest.mark.parametrize("kind", ["tsv", "two files", "jsonl", "parquet"])
def test_pairs_in_every_format(tmp_path: Path, kind: str) -> None:
    files, columns = pair_file(tmp_path, kind)
    pairs, report = read_pairs(files, columns=columns, cleaning=Cleaning(languages=("ja", "en")))
    assert pairs == PAIRS
    assert (report.read, report.kept, sum(report.dropped.values())) == (3, 3, 0)


def test_each_drop_reason_is_counted(tmp_path: Path) -> None:
    rows = [
        "猫が好きだ\tI like cats.",
        "\tnothing",
        "長" * 2000 + "\tlong",
        "短い\t" + "very long indeed " * 10,
        "猫が好きだ\tI like cats.",
        "this is English\tthis too",
        "列が足りない",
    ]
    path = write(tmp_path / "a.tsv", "\n".join(rows).encode() + b"\n\xff\xfe\tbytes\n")
    pairs, report = read_pairs([path], cleaning=Cleaning(languages=("ja", "en")))
    assert pairs == [PAIRS[0]]
    reasons = ("empty", "too long", "length ratio", "duplicate", "wrong script", "missing column", "invalid UTF-8")
    assert report.dropped == dict.fromkeys(reasons, 1)
    lines = {reason: shown[0].line for reason, shown in report.examples.items()}
    assert lines == dict(zip(reasons, range(2, 9), strict=True))
    assert report.as_dict()["dropped"]["empty"] == 1
    assert any(f"{path}:4" in line for line in report.lines())


def test_names_and_numbers_pass_the_script_check() -> None:
    from chumoku.data.pairs import is_in_script

    assert is_in_script("2023 !?", "ja")
    assert is_in_script("NHKの番組", "ja")
    assert not is_in_script("English only", "ja")
    assert not is_in_script("これは日本語", "en")
    assert is_in_script("Größe", "de")


TOKENIZER = train(["猫が好きだ I like cats."] * 20, kind="byte")
Make = Callable[[Path], object]


def corpus(path: Path, **options: object) -> list[str]:
    return list(Corpus([path], **options).documents())  # type: ignore[arg-type]


def documents(name: str, content: str | bytes, **options: object) -> Make:
    """Read a file with this content as documents."""
    return lambda d: corpus(write(d / name, content), **options)


def pairs(name: str, content: str, **options: Any) -> Make:
    """Read a file with this content as sentence pairs."""
    return lambda d: read_pairs([write(d / name, content)], **options)


def beside(name: str, content: str, result: Callable[[Path], object] = Shards) -> Make:
    """Open or prepare a folder that contains a file with this content."""

    def make(d: Path) -> object:
        write(d / "out" / name, content)
        return result(d / "out")

    return make


def table(**columns: list[object]) -> Make:
    def make(d: Path) -> object:
        pyarrow.parquet.write_table(pyarrow.table(columns), d / "d.parquet")
        return corpus(d / "d.parquet")

    return make


def prepared(folder: Path, content: str = "猫が好きだ\n") -> Shards:
    return prepare_text(Corpus([write(folder.parent / "a.txt", content)]), TOKENIZER, folder)


def damaged_shards(name: str, change: Callable[[Path], object]) -> Make:
    def make(d: Path) -> object:
        change(prepared(d / "shards", "猫が好きだ\n" * 50).folder / name)
        return Shards(d / "shards")

    return make


def changed_gzip() -> bytes:
    data = bytearray(gzip.compress(bytes(range(256)) * 50))
    data[40] ^= 255
    return bytes(data)


def empty_zip(d: Path) -> object:
    with zipfile.ZipFile(d / "b.zip", "w") as archive:
        archive.mkdir("folder")
    return corpus(d / "b.zip")


def output_is_a_file(d: Path) -> object:
    write(d / "out", "x")
    return prepared(d / "out")


def own_file_beside_shards(d: Path) -> object:
    prepared(d / "out")
    write(d / "out" / "thesis.txt", "years of work")
    return prepared(d / "out", "別の文\n")


def misaligned(d: Path) -> object:
    return read_pairs([write(d / "a.ja", "一\n二\n"), write(d / "a.en", "one\ntwo\nthree\nfour\n")])


def pair_longer_than_a_batch(d: Path) -> object:
    folder = prepare_pairs([write(d / "a.tsv", "猫が好きだ\tI like cats.\n")], TOKENIZER, d / "pairs")
    return PairBatches(open_pairs(folder), tokens=3, source_roles=TOKENIZER.roles)


PAIR, RECORD, SCRIPTS = "猫\tcat\n", '{"ja": "猫", "en": "cat"}\n', ("ja", "en")
# The message for each broken corpus, and how it is made and read.
BROKEN: dict[str, Make] = {
    r"No file matches .*absent\.txt. Check the path": lambda d: corpus(d / "absent.txt"),
    r"No file matches .*\*\.md": lambda d: corpus(d / "*.md"),
    r"The folder .* has no text files. They end in \.txt": lambda d: corpus(write(d / "a.bin", b"x").parent),
    "No files were given": lambda d: Corpus([]),
    r"No usable text in .*a\.txt: the files are empty": documents("a.txt", ""),
    r"No usable text in .*a\.txt": documents("a.txt", "\n \n\n"),
    r"No usable text in .*a\.txt: .*invalid UTF-8": documents("a.txt", "猫が好きだ".encode("shift_jis")),
    r"a\.txt\.gz is damaged or not of the type of its suffix: .*Download or pack it again": documents(
        "a.txt.gz", b"plain text"
    ),
    r"a\.txt\.gz is damaged": documents("a.txt.gz", gzip.compress(b"text " * 1000)[:-20]),
    r"a\.txt\.gz is damaged or not of the type": documents("a.txt.gz", changed_gzip()),
    r"b\.zip is damaged or not of the type of its suffix": documents("b.zip", b"plain text"),
    r"b\.zip is a zip archive without files": empty_zip,
    r"c\.jsonl:1 has no text field 'text'; its fields are body, id. Choose one of them with field": documents(
        "c.jsonl", '{"body": "x", "id": 1}\n'
    ),
    r"c\.jsonl:1 has no text field 'text'": documents("c.jsonl", '{"text": 3}\n'),
    r"No usable text in .*c\.jsonl: .*not JSON": documents("c.jsonl", "this is\nno json\n"),
    r"No usable text in .*c\.jsonl": documents("c.jsonl", "[" * 100_000),
    r"d\.parquet is not a readable Parquet file": documents("d.parquet", b"PAR1 nothing"),
    r"d\.parquet has no column 'text'; its columns are body": table(body=["x"]),
    r"The column 'text' of .*d\.parquet has the type binary, not text": table(text=[b"hello"]),
    r"out is a file, not a folder": output_is_a_file,
    r"exists and is not a prepared corpus: it contains manifest.json. Choose another folder": beside(
        "manifest.json", '{"name": "my web app"}', prepared
    ),
    r"it contains thesis.txt. Choose another folder; nothing was changed": own_file_beside_shards,
    r"The script of 'jp' cannot be checked; choose one of ja": pairs(
        "a.tsv", PAIR, cleaning=Cleaning(languages=("jp", "en"))
    ),
    "documents cannot be 'page'; choose blank, file, line or record": documents("a.txt", "x", documents="page"),
    r"a\.ja ends at line 2, but .*a\.en has 2 more lines: the two files are not aligned": misaligned,
    r"a\.tsv:1 has 1 column, but column 1 is needed .*Separate columns by tabs": pairs("a.tsv", "猫 cat\n"),
    r"a\.tsv:1 has 1 column.* It looks like JSONL: name the file \.jsonl": pairs("a.tsv", RECORD),
    r"a\.tsv:1 has 1 column.* It looks like CSV: name the file \.csv": pairs("a.tsv", "猫,cat\n"),
    r"a\.tsv is a Parquet file \(\.parquet\), not text": pairs("a.tsv", b"PAR1\x15\x04\x15"),
    r"a\.jsonl is a zip archive .* not text": documents("a.jsonl", b"PK\x03\x04\x14\x00"),
    r"a\.txt is gzipped \(\.gz\), not text": documents("a.txt", gzip.compress(b"text")),
    r"a\.txt is a binary file, not text": documents("a.txt", b"ELF\x7f\0\0\0"),
    r"a\.txt is UTF-16 text. Convert it: iconv -f UTF-16 -t UTF-8": documents("a.txt", "猫".encode("utf-16")),
    r"No usable pairs in .*c\.jsonl: .*not JSON .*If it is a table, name it \.tsv": pairs(
        "c.jsonl", PAIR, columns=SCRIPTS
    ),
    r"No usable pairs in .*a\.tsv: .*a\.tsv:1  \ufffd\[2J\ufffd .*iconv": pairs("a.tsv", b"\x1b[2J\xff\t\n"),
    r"d\.parquet is not a readable Parquet file: [^.]*\. Download": documents("d.parquet", b""),
    r"Columns of .*a\.tsv are numbers counted from 0; 'ja' is a name": pairs("a.tsv", PAIR, columns=SCRIPTS),
    r"Columns of .*a\.tsv are numbers counted from 0, not -1": pairs("a.tsv", PAIR, columns=(0, -1)),
    r"Columns of .*c\.jsonl have names. Use them": pairs("c.jsonl", RECORD),
    r"c\.jsonl:1 has no text field 'de'; its fields are ja, en": pairs("c.jsonl", RECORD, columns=("ja", "de")),
    r"No usable pairs in .*a\.tsv: 2 dropped: wrong script": pairs(
        "a.tsv", "cat\t猫\nThe dog runs\t犬が走る\n", cleaning=Cleaning(languages=SCRIPTS)
    ),
    r"No usable pairs in .*a\.tsv: the files are empty": pairs("a.tsv", ""),
    r"No usable pairs in .*a\.tsv: 1 dropped: line too long": pairs("a.tsv", "猫" * 500_000 + "\tcat"),
    r"The share of validation pairs is 1.5": lambda d: split_pairs(PAIRS, validation=1.5),
    r"is not a prepared corpus: manifest.json is missing. Prepare it first": Shards,
    r"shard-00000.tokens has [\d,]+ bytes, but the manifest says [\d,]+: it was changed or cut off": damaged_shards(
        "shard-00000.tokens", lambda path: path.write_bytes(path.read_bytes()[:-2])
    ),
    r"shard-00000.ends is missing": damaged_shards("shard-00000.ends", Path.unlink),
    r"manifest.json is not valid JSON: .*Prepare the corpus again": beside("manifest.json", '{"version": 1,'),
    r"manifest.json is not a manifest of this version": beside("manifest.json", '{"version": 99, "made_of": {}}'),
    r"exists and is not a prepared corpus: it contains thesis.txt. Choose another folder; nothing was changed": beside(
        "thesis.txt", "years of work", prepared
    ),
    r"windows of 1000, but a batch needs 7. Lower train.sequence_length or train.batch_size": lambda d: WindowBatches(
        prepared(d / "shards", "猫が好きだ\n" * 50), length=1000, rows=7
    ),
    r"The longest pair has \d+ tokens, but a batch may have 3": pair_longer_than_a_batch,
}


def test_there_are_at_least_thirty_broken_corpora() -> None:
    assert len(BROKEN) >= 30


@pytest.mark.parametrize("message", BROKEN)
def test_broken_corpus_message(message: str, tmp_path: Path) -> None:
    with pytest.raises(ChumokuError, match=message) as refused:
        BROKEN[message](tmp_path)
    assert str(refused.value).rstrip().endswith((".", "?"))
    if "thesis.txt" in message:
        assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
        assert not list(tmp_path.glob("*.part"))


def test_file_that_changes_while_reading_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "猫が好きだ\n" * 50)

    def change_file(step: str, *done: int, **unit: str) -> None:
        if step == "tokenizing":
            file.write_text("something else", encoding="utf-8")

    with pytest.raises(CorpusError, match=r"a.txt changed while it was read. Prepare again when it no longer changes"):
        prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards", progress=change_file)
    assert not (tmp_path / "shards").exists()


def test_missing_pyarrow_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "d.parquet", b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chumoku\[parquet\]', or convert it to JSONL"):
        corpus(file)


def test_failed_run_keeps_the_old_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "猫が好きだ\n")
    before = prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards").manifest
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="No usable text"):
        prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards")
    assert Shards(tmp_path / "shards").manifest == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "shards"]


def test_damaged_folder_is_prepared_again(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "猫が好きだ\n")
    prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards")
    (tmp_path / "shards" / "shard-00000.tokens").write_bytes(b"")
    assert prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards").tokens > 0
    (tmp_path / "shards" / "shard-00000.ends").unlink()
    assert prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards").documents == 1


def test_parts_on_disk_match_the_split(tmp_path: Path) -> None:
    import string

    rows = [f"{letter * 7} {other * 5}\t{other * 9}{letter}" for letter in string.ascii_lowercase for other in "abc"]
    file = write(tmp_path / "a.tsv", "\n".join(rows))
    folder = prepare_pairs([file], TOKENIZER, tmp_path / "pairs", validation=0.3)
    parts = {}
    for part in ("train", "validation"):
        opened = open_pairs(folder, part)
        parts[part] = {TOKENIZER.decode(opened.source[i].tolist()) for i in range(len(opened))}
    assert not parts["train"] & parts["validation"]
    assert len(parts["validation"]) > 3
    assert parts["train"] | parts["validation"] == {row.split("\t")[0] for row in rows}


@pytest.mark.parametrize("kind", ["pairs", "labels"])
def test_similar_texts_are_searched_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run splits its corpus for the tokenizer and again for the tokens."""
    searches: list[int] = []
    monkeypatch.setattr(split, "group_pairs", lambda pairs, _: searches.append(len(pairs)) or group_pairs(pairs))
    target = "{letter}{other}" * 7 if kind == "pairs" else "{other}"
    both = [{"letter": letter, "other": other} for letter in "defghijklmnopqrstuvwxyz" for other in "abc"]
    rows = [f"{{letter}}-{{other}}-{target}\t{target}".format(**one) for one in both]
    data = {"kind": kind, "files": [str(write(tmp_path / "a.tsv", "\n".join(rows)))], "validation_share": 0.3}
    model = {"preset": "tiny-encoder-decoder" if kind == "pairs" else "tiny-encoder", "context": 64}
    prepare(read_recipe({"model": model, "tokenizer": {"kind": "word"}, "data": data}), folder=tmp_path / "data")
    assert searches == [len(rows)]


def test_a_cached_split_is_used_for_the_same_pairs_only() -> None:
    pairs = [Pair(letter * 7, letter.upper() * 5) for letter in "abcdefghijklmnopqrstuvw"]
    cached = split.CachedSplit()
    for some, seed, validation in [(pairs, 0, 0.5), (pairs[2:], 0, 0.5), (pairs[2:], 3, 0.5), (pairs[2:], 3, 0.2)]:
        options = {"seed": seed, "validation": validation}
        expected = split_pairs(some, **options)  # type: ignore[arg-type]
        assert cached(some, **options) == expected  # type: ignore[arg-type]
        assert cached(list(some), **options) is cached(some, **options)  # type: ignore[arg-type]


def test_preparing_again_does_nothing_until_an_input_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "猫が好きだ\n\n犬が走る\n")
    prepare_text(Corpus([file]), TOKENIZER, tmp_path / "shards")
    written_at = (tmp_path / "shards" / "shard-00000.tokens").stat().st_mtime_ns
    seen: list[bool] = []

    def prepare_again() -> Shards:
        return prepare_text(
            Corpus([file]),
            TOKENIZER,
            tmp_path / "shards",
            progress=lambda step, *_, **__: seen.append(step == "tokenizing"),
        )

    prepare_again()
    assert not any(seen)
    assert (tmp_path / "shards" / "shard-00000.tokens").stat().st_mtime_ns == written_at
    file.write_text("猫が好きだ\n\n犬が走る\n\n魚\n", encoding="utf-8")
    assert prepare_again().documents == 3
    assert any(seen)
    manifest = read_manifest(tmp_path / "shards")
    assert manifest["made_of"]["tokenizer"] == TOKENIZER.fingerprint
    assert manifest["report"]["kept"] == 3
