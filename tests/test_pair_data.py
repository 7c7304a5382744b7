"""Sentence pairs for training: weights of files, both directions in one model, and batches without padding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

import chumoku
from chumoku.data.batches import PairBatches, source_mask
from chumoku.data.pairs import Cleaning
from chumoku.data.prepared import Pairs, open_pairs, prepare_pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.errors import ChumokuError, UsageError
from chumoku.text import train
from chumoku.text.special_tokens import Roles
from chumoku.training.precision import fast_kernels
from chumoku.training.recipe import read_recipe

pytestmark = pytest.mark.usefixtures("quick_runs")

TOKENIZER = train(["猫", "cat"], kind="byte", languages=("ja", "en"))


def write_pairs(path: Path, name: str, count: int) -> Path:
    path.write_text("".join(f"{name}{number}\t{name} number {number}\n" for number in range(count)), encoding="utf-8")
    return path


def decoded(pairs: Pairs) -> list[tuple[str, str]]:
    sides = ([TOKENIZER.decode(side[i].tolist()) for i in range(len(side))] for side in (pairs.source, pairs.target))
    return list(zip(*sides, strict=True))


def test_weights_repeat_and_thin_out_the_pairs_of_a_file(tmp_path: Path) -> None:
    files = [write_pairs(tmp_path / f"{name}.tsv", name, 211) for name in ("a", "b", "c", "d")]
    folder = prepare_pairs(files, TOKENIZER, tmp_path / "out", validation=0.0, weights=[3, 1, 0.25, 0])
    copies = Counter(source for source, _ in decoded(open_pairs(folder)))
    by_file = {name: [count for source, count in copies.items() if source[0] == name] for name in "abcd"}
    assert (by_file["a"], by_file["b"], by_file["d"]) == ([3] * 211, [1] * 211, [])
    assert set(by_file["c"]) == {1}
    assert 35 < len(by_file["c"]) < 71


def test_weights_leave_the_validation_part_as_it_is(tmp_path: Path) -> None:
    random = Random(0)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=13)) for _ in range(307)]
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    parts = [
        decoded(
            open_pairs(prepare_pairs([file], TOKENIZER, tmp_path / str(w), validation=0.2, weights=w), "validation")
        )
        for w in (None, [2.0])
    ]
    assert len(parts[0]) > 23
    assert parts[0] == parts[1]


def test_weights_need_one_table_each(tmp_path: Path) -> None:
    write_pairs(tmp_path / "a.tsv", "a", 3)
    wrong = {"belongs to one table": [tmp_path], "Name each file once": [tmp_path / "a.tsv"] * 2}
    wrong |= {
        "weights is 2, that of files 1": [tmp_path / "a.tsv"],
        "Name each file instead of a pattern": [tmp_path / "?.tsv"],
    }
    for message, files in wrong.items():
        weights = [2.0] * (2 if "weights is 2" in message else len(files))
        with pytest.raises(UsageError, match=message):
            prepare_pairs(files, TOKENIZER, tmp_path / "out", validation=0.0, weights=weights)
    with pytest.raises(ChumokuError, match="weights is 2, that of files 1; give"):
        read_recipe({"model": {"preset": "tiny-encoder-decoder"}, "data": PAIRS | {"weights": [1, 2]}})


PAIRS = {"kind": "pairs", "files": ["a.tsv"]}


def test_both_directions_need_languages() -> None:
    for languages in (None, ["en", "en"]):
        data = PAIRS | {"both_directions": True, "languages": languages}
        with pytest.raises(ChumokuError, match="both_directions needs two languages"):
            read_recipe({"model": {"preset": "tiny-encoder-decoder"}, "data": data})
    model = {"preset": "tiny-encoder-decoder", "share_embeddings": False}
    data = PAIRS | {"both_directions": True, "languages": ["ja", "en"]}
    with pytest.raises(ChumokuError, match="both directions share one tokenizer"):
        read_recipe({"model": model, "data": data, "tokenizer": {"target_kind": "bpe"}})
    with pytest.raises(UsageError, match="two different languages"):
        prepare_pairs(["a.tsv"], TOKENIZER, "out", both_directions=True)


def test_both_directions_start_with_the_token_of_the_target_language(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("猫がいる\tThere is a cat.\n犬\tdog\n", encoding="utf-8")
    folder = prepare_pairs(
        [tmp_path / "a.tsv"],
        TOKENIZER,
        tmp_path / "out",
        validation=0.0,
        both_directions=True,
        cleaning=Cleaning(languages=("ja", "en")),
    )
    pairs = open_pairs(folder)
    into = [TOKENIZER.roles.languages[code] for code in ("en", "en", "ja", "ja")]
    assert [int(pairs.source[i][0]) for i in range(4)] == into
    texts = [("猫がいる", "There is a cat."), ("犬", "dog")]
    sources = [TOKENIZER.decode(pairs.source[i][1:].tolist()) for i in range(4)]
    targets = [TOKENIZER.decode(pairs.target[i].tolist()) for i in range(4)]
    assert list(zip(sources, targets, strict=True)) == [*texts, *((target, source) for source, target in texts)]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> PairBatches:
    folder, random, sides = tmp_path_factory.mktemp("lengths"), np.random.default_rng(0), []
    lengths = np.clip(random.lognormal(3, 0.5, 4001), 1, 89).astype(int)
    for name in ("source", "target"):
        with RaggedArrayWriter(folder / name, np.dtype(np.uint16)) as writer:
            for length in lengths:
                writer.add(random.integers(3, 97, max(1, length + random.integers(-3, 4))).tolist())
            sides.append(RaggedArray(folder, writer.close()))
    return PairBatches(Pairs(*sides), tokens=1031, source_roles=Roles(pad=0, begin=1, end=2))


def test_most_batches_have_one_source_length_and_no_mask(batches: PairBatches) -> None:
    masked = 0
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        lengths = {len(batches.pairs.source[sample]) for sample in batches.samples(0, index)}
        assert ("source_mask" in batch) == (len(lengths) > 1)
        masked += "source_mask" in batch
        if len(lengths) > 1:  # it would have been less than half full with its first length alone
            first = len(batches.pairs.source[batches.samples(0, index)[0]]) + 1
            rows = int((source_mask(batch).sum(1) == first).sum())
            assert 2 * rows * first < 1031
    assert 0 < masked < 0.35 * len(batches)


def test_every_pair_is_in_one_batch_of_an_epoch(batches: PairBatches) -> None:
    samples = np.concatenate([batches.samples(2, index) for index in range(len(batches))])
    assert sorted(samples.tolist()) == list(range(4001))
    assert batches.padding < 0.1


def test_training_does_without_the_attention_kernels_of_cudnn() -> None:
    before = torch._C._get_cudnn_sdp_enabled()
    with fast_kernels("bf16"):
        assert not torch._C._get_cudnn_sdp_enabled()
    assert torch._C._get_cudnn_sdp_enabled() == before


def test_one_model_is_trained_for_both_directions(tmp_path: Path) -> None:
    rows = [f"猫{number}匹\tcats {number}" for number in range(10, 211)]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows), encoding="utf-8")
    done = chumoku.train(
        {
            "model": {"preset": "tiny-encoder-decoder", "context": 64},
            "tokenizer": {"kind": "unigram", "vocabulary": 600, "split_digits": True, "split_scripts": True},
            "data": {
                **PAIRS,
                "files": [str(tmp_path / "pairs.tsv")],
                "validation_files": [str(tmp_path / "pairs.tsv")],
                "languages": ["ja", "en"],
                "both_directions": True,
                "weights": [2],
            },
            "train": {"out": str(tmp_path / "run"), "steps": 2, "batch_tokens": 512, "validate_every": 2, "samples": 1},
            "optimizer": {"learning_rate": 1e-3},
        }
    )
    pipeline = chumoku.load(done.last)
    assert pipeline.tokenizer.roles.languages.keys() == {"ja", "en"}
    assert isinstance(pipeline.translate("猫17匹", into="en", max_new_tokens=5), str)
    assert isinstance(pipeline.translate("cats 17", into="ja", max_new_tokens=5), str)
