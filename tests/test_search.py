"""Search by meaning: exact neighbors, an index on disk, retrieval and similarity scores, and their commands."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from commands import Ask, Ended

import chumoku
from chumoku.decoding import vector_index
from chumoku.decoding.vector_index import VectorIndex, nearest, write_index
from chumoku.errors import CorpusError, DamagedError, UsageError
from chumoku.evaluation.retrieval import mean_ranks, ndcg, recall, score_retrieval, score_similarity, spearman
from chumoku.hard_negatives import mine_negatives

TEXTS = ["a cat sleeps", "the dog runs", "stocks rise", "猫が寝る", "rain falls"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder with random weights."""
    folder = tmp_path_factory.mktemp("models") / "encoder"
    sizes = {"vocabulary": 263, "width": 14, "layers": 1, "heads": 7, "context": 61, "feedforward_width": 19}
    config = chumoku.ModelConfig(kind="encoder", head="vector", **sizes)  # type: ignore[arg-type]
    chumoku.save(folder, chumoku.build(config, seed=3), chumoku.text.train(["cat"], kind="byte"))
    return folder


@pytest.fixture(scope="module")
def built(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "index"
    chumoku.build_index(encoder, TEXTS, folder)
    return folder


def test_the_nearest_are_those_of_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "BLOCK", 11)
    monkeypatch.setattr(vector_index, "QUERIES", 2)
    random = torch.Generator().manual_seed(1)
    queries, documents = torch.randn(3, 7, generator=random), torch.randn(37, 7, generator=random)
    cosines = F.normalize(queries, dim=-1) @ F.normalize(documents, dim=-1).T
    scores, places = nearest(queries, F.normalize(documents, dim=-1), 5)
    torch.testing.assert_close(scores, cosines.sort(descending=True).values[:, :5])
    assert places.tolist() == cosines.argsort(descending=True)[:, :5].tolist()
    assert nearest(queries, F.normalize(documents[:2], dim=-1), 5)[0].shape == (3, 2)


def test_an_index_finds_its_texts(built: Path, encoder: Path) -> None:
    index = chumoku.open_index(built)
    assert len(index) == 5
    for place, text in enumerate(TEXTS):
        best = index.search(text, top=2)[0]
        assert (best.place, best.text) == (place, text)
        assert best.score == pytest.approx(1.0, abs=1e-5)
    assert chumoku.open_index(built, encoder).search("cat", top=99)[-1].score <= 1
    with pytest.raises(UsageError, match="must be 1 or more"):
        index.search("cat", top=0)


def test_an_index_of_the_first_elements(encoder: Path, tmp_path: Path) -> None:
    index = chumoku.build_index(encoder, TEXTS, tmp_path / "index", width=5)
    assert index.index.vectors.shape == (5, 5)
    assert chumoku.open_index(tmp_path / "index").search(TEXTS[2])[0].place == 2
    pipeline = chumoku.load(encoder)
    short, full = pipeline.embed(TEXTS, width=5), pipeline.embed(TEXTS)
    torch.testing.assert_close(short, F.normalize(full[:, :5], dim=-1))
    with pytest.raises(UsageError, match="have 1 to 14 elements"):
        pipeline.embed(TEXTS, width=15)


def test_another_model_is_refused(built: Path, encoder: Path) -> None:
    first = chumoku.load(encoder)
    other = chumoku.Pipeline(chumoku.build(first.config, seed=4), first.tokenizer)
    with pytest.raises(UsageError, match="made with another model"):
        chumoku.open_index(built, other).search("cat")
    unnamed = chumoku.build_index(other, TEXTS, built.parent / "unnamed")
    with pytest.raises(UsageError, match="does not say which model"):
        chumoku.open_index(built.parent / "unnamed").search("cat")
    assert unnamed.search("stocks rise")[0].place == 2


def test_damaged_indexes_are_refused(built: Path, tmp_path: Path) -> None:
    def damaged(name: str, change: bytes) -> VectorIndex:
        copy = tmp_path / name.replace(".", "-")
        shutil.copytree(built, copy)
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[:-1] if not change else change + data[len(change) :])
        return VectorIndex(copy)

    with pytest.raises(CorpusError, match="instead of 280"):
        damaged("vectors.f32", b"")
    with pytest.raises(DamagedError):
        damaged("texts.tokens", b"x")
    with pytest.raises(CorpusError):
        damaged("manifest.json", b"[]")
    with pytest.raises(CorpusError, match="is not an index"):
        VectorIndex(tmp_path)
    with pytest.raises(UsageError, match="no texts to index"):
        write_index(tmp_path / "empty", [], model="")
    manifest = json.loads((built / "manifest.json").read_text())
    manifest["vectors"]["count"] = 10**15
    huge = shutil.copytree(built, tmp_path / "huge")
    (huge / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match="has 280 bytes"):
        VectorIndex(huge)


def test_retrieval_scores_equal_their_formulas() -> None:
    assert recall([5, 3, 2], {3, 7}, 2) == 0.5
    assert ndcg([5, 3, 2], {3}) == pytest.approx(1 / math.log2(3))
    assert ndcg([5, 3, 2], {2, 5}) == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0], "A": [0.9, 0.1], "B": [0.8, 0.2]}

    def embed(texts: list[str], prompt: str) -> torch.Tensor:
        assert prompt == ("query" if texts[0].islower() else "document")
        return torch.tensor([vectors[text] for text in texts])

    found = score_retrieval([("a", "A"), ("b", "A"), ("b", "B")], embed)
    assert (found.recall_at_1, found.recall_at_5, found.queries, found.documents) == (0.75, 1.0, 2, 2)
    assert found.ndcg_at_10 == 1.0
    with pytest.raises(UsageError, match="two different documents"):
        score_retrieval([("a", "A")], embed)


def test_spearman_correlates_ranks() -> None:
    assert mean_ranks(np.array([0.3, 0.1, 0.3, 0.7])).tolist() == [2.5, 1.0, 2.5, 4.0]
    one, other = np.array([1.0, 2.0, 3.0, 5.0, 7.0]), np.array([2.0, 1.0, 11.0, 13.0, 12.0])
    # 1 − 6 Σ d² / (n (n² − 1)) with rank differences 1, 1, 0, 1, 1
    assert spearman(one, other) == pytest.approx(1 - 6 * 4 / (5 * 24))
    vectors = {"x": [1.0, 0.0], "near": [0.9, 0.1], "far": [0.0, 1.0]}
    pairs = [("x", "near"), ("x", "far"), ("x", "x")]
    found = score_similarity(pairs, [3, 1, 5], lambda texts, _: torch.tensor([vectors[text] for text in texts]))
    assert (found.spearman, found.pairs) == (pytest.approx(1.0), 3)
    with pytest.raises(UsageError, match="All scores are equal"):
        score_similarity(pairs, [1, 1, 1], lambda texts, _: torch.zeros(0))


def test_mined_negatives_are_near_but_not_right(encoder: Path) -> None:
    """The nearest positives of other groups, below the margin."""
    pipeline = chumoku.load(encoder)
    pairs = [(f"{text}?", text) for text in TEXTS] + [("Stocks, rise!", "stock prices go up")]
    found = mine_negatives(pipeline, pairs, count=3, margin=0.01)
    cosines = pipeline.embed([anchor for anchor, _ in pairs]) @ pipeline.embed([text for _, text in pairs]).T
    expected = []
    for row, (anchor, positive) in enumerate(pairs):
        others = [place for place in cosines[row].argsort(descending=True).tolist() if {row, place} != {2, 5}]
        right = [place for place in others if place != row and cosines[row, place] <= 0.99 * cosines[row, row]]
        expected += [(anchor, positive, pairs[place][1]) for place in right[:3]]
    assert found == expected
    assert 0 < len(found) <= 3 * len(pairs)
    with pytest.raises(UsageError, match="count must be 1 or more"):
        mine_negatives(pipeline, pairs, count=0)


def test_the_commands(encoder: Path, tmp_path: Path, ask: Ask) -> None:
    def run(*words: object) -> Ended:
        return ask(*map(str, words))

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    (tmp_path / "notes" / "old").mkdir(parents=True)
    for name, content in (
        ("a.md", "# Cats\n\na cat sleeps"),
        ("old/b.txt", "rain falls"),
        ("c.pdf", "%PDF"),
        ("d.txt", " "),
    ):
        (tmp_path / "notes" / name).write_text(content, encoding="utf-8")
    assert run("embed", encoder, "--file", tmp_path / "notes", "--index", tmp_path / "files").out.startswith("2 texts")
    found = run("search", tmp_path / "files", "old/b.txt rain falls", "--top", "1")
    assert found.out.split(maxsplit=1)[1] == "old/b.txt rain falls\n"
    done = run("embed", encoder, "--file", tmp_path / "texts.txt", "--index", tmp_path / "index")
    assert (done.code, "5 texts" in done.out) == (0, True)
    hits = json.loads(run("search", tmp_path / "index", "stocks rise", "--top", "2", "--json").out)["hits"]
    assert [hits[0]["text"], len(hits)] == ["stocks rise", 2]
    assert "rain falls" in run("search", tmp_path / "index", "rain falls").out.splitlines()[0]
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text}\t{n}\n" for n, text in enumerate(TEXTS)), "utf-8")
    found = json.loads(run("evaluate", encoder, tmp_path / "pairs.tsv", "--width", "11", "--json").out)
    assert (found["recall_at_1"], found["queries"]) == (1.0, 5)
    similar = json.loads(run("evaluate", encoder, tmp_path / "pairs.tsv", "--columns", "0,1,2", "--json").out)
    assert similar["pairs"] == 5
    table = tmp_path / "triplets.tsv"
    assert "Train with data.columns=0,1,2" in run("mine", encoder, tmp_path / "pairs.tsv", "--out", table).out
    assert all(line.count("\t") == 2 for line in table.read_text(encoding="utf-8").splitlines())
    for words, sentence in [
        (("mine", encoder, tmp_path / "pairs.tsv", "--out", table), "exists. Choose another file"),
        (("search", encoder, "cat"), "is not an index"),
        (("search", tmp_path / "index", " "), "The query is empty"),
        (("embed", encoder, "--index", tmp_path / "index", "--json", "a"), "--index stores documents"),
        (("embed", encoder, "--index", tmp_path / "none"), "no texts to index"),
        (("embed", encoder, "--index", encoder, "a"), "Choose another folder"),
        (("evaluate", encoder, tmp_path / "pairs.tsv", "--columns", "0,1,0"), "is not a score"),
        (("evaluate", encoder, tmp_path / "pairs.tsv", "--columns", "0"), "--columns takes two columns"),
    ]:
        done = run(*words)
        assert done.code == 2, (words, done.out, done.err)
        assert sentence in done.err
