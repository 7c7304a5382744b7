"""Order and batches depend only on (seed, epoch, index), in every process, with any workers, and after resuming."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chumoku.data.batches import IGNORE, Batches, MaskedBatches, PairBatches, Share, WindowBatches, source_mask
from chumoku.data.corpus import Corpus
from chumoku.data.loader import Cursor, load
from chumoku.data.near_duplicates import group_pairs
from chumoku.data.order import Permutation
from chumoku.data.pairs import Cleaning, Pair
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.data.shards import prepare_text
from chumoku.data.split import split_pairs
from chumoku.errors import UsageError
from chumoku.text import train

WORDS = ["cat", "dog", "fish", "bird", "horse", "mouse", "cow", "sheep", "ant", "bee"]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 13)))


@pytest.fixture(scope="module")
def all_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Batches]:
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(1)
    (folder / "text.txt").write_text("\n\n".join(sentence(rng) for _ in range(300)), encoding="utf-8")
    rows = "".join(f"{sentence(rng)}\t{sentence(rng)} {number}\n" for number in range(700))
    (folder / "pairs.tsv").write_text(rows, encoding="utf-8")
    tokenizer = train(WORDS, kind="byte")
    shards = prepare_text(Corpus([folder / "text.txt"]), tokenizer, folder / "shards", shard_tokens=997)
    pairs = prepare_pairs(
        [folder / "pairs.tsv"], tokenizer, folder / "pairs", validation=0.1, cleaning=Cleaning(ratio=99)
    )
    windows = WindowBatches(shards, length=19, rows=7, seed=3)
    return {
        "windows": windows,
        "documents": WindowBatches(shards, length=19, rows=7, seed=3, documents=True),
        "masked": MaskedBatches(windows, roles=tokenizer.roles, vocabulary=tokenizer.size),
        "pairs": PairBatches(open_pairs(pairs), tokens=512, source_roles=tokenizer.roles, seed=3),
    }


KINDS = ("windows", "documents", "masked", "pairs")


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_permutation_contains_every_number_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order(np.arange(size))), np.arange(size))
    index = size // 2
    assert order(np.array([index]))[0] == order(np.arange(size))[index]


def test_order_differs_by_seed_and_epoch() -> None:
    orders = [Permutation(1009, seed=s, epoch=e)(np.arange(1009)) for s, e in ((0, 0), (0, 1), (1, 0))]
    for one in orders:
        for other in orders:
            assert one is other or (one == other).mean() < 0.02
        assert abs(np.corrcoef(one, np.arange(1009))[0, 1]) < 0.1
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.1


def test_order_is_the_same_on_every_machine() -> None:
    """If this line changes, the data order of every run changes."""
    assert Permutation(11, seed=7, epoch=3)(np.arange(11)).tolist() == [10, 7, 5, 3, 2, 9, 4, 1, 6, 8, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_epoch_has_nearly_all_samples_once(all_batches: dict[str, Batches], kind: str) -> None:
    batches = all_batches[kind]
    for epoch in (0, 5):
        samples = np.concatenate([batches.samples(epoch, index) for index in range(len(batches))])
        assert len(np.unique(samples)) == len(samples)
        if kind == "pairs":
            assert len(samples) == len(batches.pairs)


def digest(batches: Batches, start: Cursor, stop: Cursor, workers: int) -> list[tuple[Cursor, float]]:
    found = []
    for cursor, batch in load(batches, start, workers=workers, stop=stop):
        found.append((Cursor(*cursor), sum(float(tensor.double().mul(1.37).sum()) for tensor in batch.values())))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_workers_do_not_change_the_order(all_batches: dict[str, Batches], kind: str) -> None:
    stop = Cursor(1, 3)
    single = digest(all_batches[kind], Cursor(), stop, workers=0)
    assert [cursor for cursor, _ in single] == [Cursor.at(step, len(all_batches[kind])) for step in range(len(single))]
    for workers in (1, 4):
        assert digest(all_batches[kind], Cursor(), stop, workers=workers) == single


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_resuming_at_any_step_continues_the_order(all_batches: dict[str, Batches], kind: str) -> None:
    length, rng = len(all_batches[kind]), random.Random(5)
    stop = Cursor.at(2 * length, length)
    expected = digest(all_batches[kind], Cursor(), stop, workers=0)
    for step in (0, length - 1, length, *(rng.randrange(2 * length) for _ in range(20))):
        assert digest(all_batches[kind], Cursor.at(step, length), stop, workers=0) == expected[step:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_together_see_the_same_batches(all_batches: dict[str, Batches], kind: str, world: int) -> None:
    for index in range(3):
        expected = all_batches[kind].batch(1, index)
        parts = [all_batches[kind].batch(1, index, Share(rank, world)) for rank in range(world)]
        for name, table in expected.items():
            for rank, part in enumerate(parts):
                rows_of_rank = table[rank::world]
                width = part[name].shape[1]
                assert torch.equal(rows_of_rank[:, :width], part[name])
                assert width == table.shape[1] or kind == "pairs"


def order_in_another_process(folder: str, queue: multiprocessing.Queue) -> None:
    from chumoku.data.shards import Shards

    batches = WindowBatches(Shards(folder), length=19, rows=7, seed=3)
    queue.put([batches.samples(4, index).tolist() for index in range(3)])


def test_order_is_the_same_in_another_process(all_batches: dict[str, Batches]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=order_in_another_process, args=(str(all_batches["windows"].shards.folder), queue))
    process.start()
    assert queue.get(timeout=60) == [all_batches["windows"].samples(4, index).tolist() for index in range(3)]
    process.join()


def test_window_labels_are_the_next_tokens(all_batches: dict[str, Batches]) -> None:
    windows = all_batches["windows"]
    batch = windows.batch(0, 0)
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    everything = windows.shards.read(0, windows.shards.tokens)
    for row, sample in zip(batch["tokens"], windows.samples(0, 0), strict=True):
        assert np.array_equal(row, everything[sample * 19 : sample * 19 + 19])
    assert len(windows.shards.manifest["shards"]) > 3, "windows run across shards"


def test_positions_restart_in_each_document(all_batches: dict[str, Batches]) -> None:
    batches = all_batches["documents"]
    end = train(WORDS, kind="byte").roles.end
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        for tokens, documents, positions in zip(
            batch["tokens"].tolist(), batch["documents"].tolist(), batch["positions"].tolist(), strict=True
        ):
            number, offset = 0, 0
            for token, document, position in zip(tokens, documents, positions, strict=True):
                assert (document, position) == (number, offset)
                number, offset = (number + 1, 0) if token == end else (number, offset + 1)


def test_no_labels_across_documents(all_batches: dict[str, Batches]) -> None:
    end = train(WORDS, kind="byte").roles.end
    plain, separate = all_batches["windows"].batch(0, 0), all_batches["documents"].batch(0, 0)
    ends = plain["tokens"] == end
    assert ends.any()
    assert (separate["labels"][ends] == IGNORE).all()
    assert torch.equal(separate["labels"][~ends], plain["labels"][~ends])


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_batch_index_is_refused(all_batches: dict[str, Batches], kind: str) -> None:
    for index in (-1, len(all_batches[kind]), 10**9):
        with pytest.raises(UsageError, match=r"There is no batch .*: an epoch has"):
            all_batches[kind].samples(0, index)
    with pytest.raises(UsageError, match="cannot be divided among 10000 processes"):
        all_batches[kind].batch(0, 0, Share(0, 10000))
    for index in (-1, 100, 10**9):
        with pytest.raises(UsageError, match="are not within the 100 samples"):
            Permutation(100, seed=0, epoch=0)(np.array([index]))


def test_epochs_and_seeds_change_batches_and_masks(all_batches: dict[str, Batches]) -> None:
    for kind in KINDS:
        batches = all_batches[kind]
        epochs = [[batches.samples(epoch, index).tolist() for index in range(len(batches))] for epoch in (0, 1)]
        assert epochs[0] != epochs[1], kind
    masked = all_batches["masked"]
    same_sample = int(masked.samples(0, 0)[0])
    row = masked.windows._window(same_sample)[:-1]
    one, two = masked._mask_row(row, 0, same_sample)[1], masked._mask_row(row, 1, same_sample)[1]
    assert one.tolist() != two.tolist()
    others = {
        int(token) for s in range(40) for token in masked._mask_row(row, 0, s)[0] if token not in (*row, masked.mask)
    }
    assert len(others) > 5, "a random token is any token"


def test_parts_of_a_text_do_not_overlap(all_batches: dict[str, Batches]) -> None:
    shards = all_batches["windows"].shards
    first, last = (WindowBatches(shards, length=19, rows=1, part=part) for part in ((0.0, 0.9), (0.9, 1.0)))
    edge = round(0.9 * shards.tokens)
    ends = [int(first.samples(0, i)[0]) * 19 + 19 for i in range(len(first))]
    assert max(ends) < edge
    row = last.batch(0, 0)["tokens"][0]
    start = edge + int(last.samples(0, 0)[0]) * 19
    assert np.array_equal(row, shards.read(start, start + 19))


def test_masking_is_80_10_10(all_batches: dict[str, Batches]) -> None:
    masked = all_batches["masked"]
    counts = {"hidden": 0, "mask": 0, "kept": 0, "other": 0, "all": 0}
    for epoch in range(6):
        for index in range(len(masked)):
            batch, original = masked.batch(epoch, index), masked.windows.batch(epoch, index)
            masked_tokens = batch["labels"] != IGNORE
            assert torch.equal(batch["labels"][masked_tokens], original["tokens"][masked_tokens])
            assert torch.equal(batch["tokens"][~masked_tokens], original["tokens"][~masked_tokens])
            visible = batch["tokens"][masked_tokens]
            counts["hidden"] += int(masked_tokens.sum())
            counts["mask"] += int((visible == masked.mask).sum())
            counts["kept"] += int((visible == original["tokens"][masked_tokens]).sum())
            counts["all"] += masked_tokens.numel()
            assert not (masked_tokens & (original["tokens"] < 5)).any(), "special tokens are not masked"
    assert abs(counts["hidden"] / counts["all"] - 0.15) < 0.01
    assert abs(counts["mask"] / counts["hidden"] - 0.8) < 0.02
    assert abs(counts["kept"] / counts["hidden"] - 0.1) < 0.02


def test_pairs_have_begin_end_and_padding(all_batches: dict[str, Batches]) -> None:
    batches = all_batches["pairs"]
    for index in range(5):
        batch = batches.batch(0, index)
        for row, sample in enumerate(batches.samples(0, index)):
            source, target = batches.pairs.source[sample].tolist(), batches.pairs.target[sample].tolist()
            assert batch["source"][row][source_mask(batch)[row]].tolist() == [*source, 2]
            assert batch["target"][row][: len(target) + 1].tolist() == [1, *target]
            labels = batch["labels"][row]
            assert labels[labels != IGNORE].tolist() == [*target, 2]
            assert (batch["target"][row][len(target) + 1 :] == 0).all()
        rows, longest = len(batch["source"]), max(batch["source"].shape[1], batch["target"].shape[1])
        assert rows * longest <= 512


def test_padding_share_matches_the_batches(all_batches: dict[str, Batches]) -> None:
    batches = all_batches["pairs"]
    total = empty = 0
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        total += batch["source"].numel() + batch["labels"].numel()
        empty += int((~source_mask(batch)).sum() + (batch["labels"] == IGNORE).sum())
    assert abs(batches.padding - empty / total) < 1e-9
    assert batches.padding < 0.25


def test_pairs_in_a_batch_change_with_the_epoch(all_batches: dict[str, Batches]) -> None:
    batches = all_batches["pairs"]
    one, two = ({frozenset(batches.samples(epoch, i).tolist()) for i in range(len(batches))} for epoch in (0, 1))
    assert one != two


def change_letter(text: str, rng: random.Random) -> str:
    index = rng.randrange(len(text))
    return text[:index] + rng.choice("xyz") + text[index + 1 :]


def test_near_duplicates_are_never_split() -> None:
    rng = random.Random(9)
    pairs, duplicates = [], []
    for _ in range(400):
        letters = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(60)) for _ in range(2)]
        pairs.append(Pair(*letters))
    for number in range(0, 400, 4):
        source, target = pairs[number]
        kinds = (
            Pair(source.upper() + "!", "something else entirely " + target[::-1]),
            Pair("a quite different source " + source[::-1], target),
            Pair(change_letter(source, rng), "again another target " + target[::-1]),
            Pair("one more source here " + source[::-1] + "q", change_letter(target, rng)),
        )
        duplicates.append((number, len(pairs)))
        pairs.append(kinds[number // 4 % 4])
    training, validation = split_pairs(pairs, validation=0.3, seed=1)
    sides = dict.fromkeys(training, "train") | dict.fromkeys(validation, "validation")
    assert len(sides) == len(pairs)
    assert 0.2 < len(validation) / len(pairs) < 0.4
    assert all(sides[one] == sides[other] for one, other in duplicates)
    assert len(set(group_pairs(pairs))) == 400, "dissimilar pairs are in separate groups"


def test_split_by_index_separates_near_duplicates() -> None:
    """The check can fail: taking every tenth pair for validation puts near-duplicates in both parts."""
    rng = random.Random(9)
    originals = ["".join(rng.choice("abcdefghijklm ") for _ in range(60)) for _ in range(101)]
    pairs = [Pair(text, text) for text in originals]
    pairs += [Pair(change_letter(text, rng), f"{number} {text[::-1]}") for number, text in enumerate(originals)]
    groups = group_pairs(pairs)

    def count_separated(validation: set[int]) -> int:
        sides: dict[int, set[bool]] = {}
        for number, group in enumerate(groups):
            sides.setdefault(group, set()).add(number in validation)
        return sum(len(both) == 2 for both in sides.values())

    assert count_separated(set(range(0, len(pairs), 10))) > 10
    assert count_separated(set(split_pairs(pairs, validation=0.2)[1])) == 0


def test_pair_keeps_its_part_when_text_is_added(tmp_path: Path) -> None:
    rng = random.Random(2)
    pairs = [Pair(sentence(rng) + str(n), "".join(rng.choice("abcdefghij") for _ in range(40))) for n in range(300)]
    more = [Pair("".join(rng.choice("klmnopqrst") for _ in range(40)), "z" * 5 + str(n) * 9) for n in range(50)]
    _, before = split_pairs(pairs, validation=0.2)
    _, after = split_pairs([*pairs, *more], validation=0.2)
    assert set(before) == {index for index in after if index < 300}
