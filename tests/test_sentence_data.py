"""Tables of sentences: pairs and triplets, groups of near-duplicates, and what is dropped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from chumoku.data.sentences import NO_GROUP, Sentences, prepare_sentences, read_corpus, read_sentences
from chumoku.errors import CorpusError

ROWS = [
    ("The cat sleeps on the warm bed.", "猫は暖かいベッドで寝る。", "犬が走る。"),
    ("the CAT sleeps on the warm bed", "猫が寝ている。", "株価が上がる。"),
    ("Stocks rise quickly this year.", "株価が上がる。", "猫は暖かいベッドで寝る。"),
    ("A dog runs through the park.", "犬が走る。", "木が倒れる。"),
]


def write(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_similar_rows_share_a_group_and_negatives_have_that_of_their_text(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", ROWS)
    corpus = read_corpus([file], columns=(0, 1, 2), validation=0.0)
    assert corpus.groups == [0, 0, 2, 3]
    folder = prepare_sentences(
        [file],
        tmp_path / "out",
        corpus=lambda: corpus,
        encode=lambda texts, side: [[len(text)] for text in texts],
        dtype=np.dtype("<u2"),
        inputs={"columns": [0, 1, 2]},
    )
    sentences = Sentences(folder)
    assert sentences.groups.tolist() == [[0, 3], [0, 2], [2, 0], [3, NO_GROUP]]
    assert [int(sentences.sides["negative"][row][0]) for row in range(4)] == [len(row[2]) for row in ROWS]
    assert len(Sentences(folder, "validation")) == 0


def test_empty_repeated_and_equal_texts_are_dropped(tmp_path: Path) -> None:
    rows = [
        *ROWS[:1],
        *ROWS[:1],
        ("question", "answer", "Answer!"),
        ("question", "answer", " "),
        ("", "answer", "other"),
        ("question", "answer", "other"),
    ]
    kept, report = read_sentences([write(tmp_path / "a.tsv", rows)], columns=(0, 1, 2))
    assert kept == [ROWS[0], ("question", "answer", "other")]
    assert report.dropped == {"duplicate": 1, "equal negative": 1, "empty": 2}
    with pytest.raises(CorpusError, match="No usable rows"):
        read_sentences([write(tmp_path / "b.tsv", [("a", "")])])
    with pytest.raises(CorpusError, match="column 2 is needed"):
        read_sentences([write(tmp_path / "c.tsv", [("a", "b")])], columns=(0, 1, 2))


def test_columns_of_jsonl_have_names(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    names = ("query", "text", "negative")
    file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS), encoding="utf-8")
    assert read_sentences([file], columns=names)[0] == ROWS
    with pytest.raises(CorpusError, match="no text field 'answer'"):
        read_sentences([file], columns=("query", "answer"))


def test_near_duplicates_are_never_divided(tmp_path: Path) -> None:
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=13)) for _ in range(307)]
    rows = [(f"{words[number // 2]}{'!' * (number % 2)}", words[-1 - number]) for number in range(151)]
    corpus = read_corpus([write(tmp_path / "a.tsv", rows)], validation=0.3)
    groups = {name: {corpus.groups[index] for index in indices} for name, indices in corpus.parts.items()}
    assert groups["validation"]
    assert not groups["train"] & groups["validation"]
