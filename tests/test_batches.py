"""Order and batches: a pure function of (seed, epoch, index), whoever makes them and wherever a run resumes."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chumoku.data.batches import IGNORE, Batches, MaskedBatches, PairBatches, Share, WindowBatches
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


def sentence(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 13)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Batches]:
    folder = tmp_path_factory.mktemp("data")
    chance = random.Random(1)
    (folder / "text.txt").write_text("\n\n".join(sentence(chance) for _ in range(300)), encoding="utf-8")
    rows = "".join(f"{sentence(chance)}\t{sentence(chance)} {number}\n" for number in range(700))
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
def test_a_permutation_holds_every_number_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(order(np.arange(size))), np.arange(size))
    place = size // 2
    assert order(np.array([place]))[0] == order(np.arange(size))[place]


def test_orders_differ_by_seed_and_epoch_and_look_random() -> None:
    orders = [Permutation(1009, seed=s, epoch=e)(np.arange(1009)) for s, e in ((0, 0), (0, 1), (1, 0))]
    for one in orders:
        for other in orders:
            assert one is other or (one == other).mean() < 0.02
        assert abs(np.corrcoef(one, np.arange(1009))[0, 1]) < 0.1
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.1


def test_the_order_is_the_same_on_every_machine() -> None:
    """Written down once: a change of this line is a change of every run's data order."""
    assert Permutation(11, seed=7, epoch=3)(np.arange(11)).tolist() == [10, 7, 5, 3, 2, 9, 4, 1, 6, 8, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_sees_every_sample_at_most_once_and_nearly_all(made: dict[str, Batches], kind: str) -> None:
    batches = made[kind]
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


@pytest.mark.parametrize("kind", KINDS)
def test_workers_do_not_change_the_order(made: dict[str, Batches], kind: str) -> None:
    stop = Cursor(1, 3)
    alone = digest(made[kind], Cursor(), stop, workers=0)
    assert [cursor for cursor, _ in alone] == [Cursor.at(step, len(made[kind])) for step in range(len(alone))]
    for workers in (1, 4):
        assert digest(made[kind], Cursor(), stop, workers=workers) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_at_any_step_goes_on_as_before(made: dict[str, Batches], kind: str) -> None:
    length, chance = len(made[kind]), random.Random(5)
    stop = Cursor.at(2 * length, length)
    whole = digest(made[kind], Cursor(), stop, workers=0)
    for step in (0, length - 1, length, *(chance.randrange(2 * length) for _ in range(20))):
        assert digest(made[kind], Cursor.at(step, length), stop, workers=0) == whole[step:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_together_see_what_one_sees(made: dict[str, Batches], kind: str, world: int) -> None:
    for index in range(3):
        whole = made[kind].batch(1, index)
        parts = [made[kind].batch(1, index, Share(rank, world)) for rank in range(world)]
        for name, table in whole.items():
            for rank, part in enumerate(parts):
                mine = table[rank::world]
                width = part[name].shape[1]
                assert torch.equal(mine[:, :width], part[name])
                assert width == table.shape[1] or kind == "pairs"


def order_in_another_process(folder: str, queue: multiprocessing.Queue) -> None:
    from chumoku.data.shards import Shards

    batches = WindowBatches(Shards(folder), length=19, rows=7, seed=3)
    queue.put([batches.samples(4, index).tolist() for index in range(3)])


def test_another_process_finds_the_same_order(made: dict[str, Batches]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=order_in_another_process, args=(str(made["windows"].shards.folder), queue))
    process.start()
    assert queue.get(timeout=60) == [made["windows"].samples(4, index).tolist() for index in range(3)]
    process.join()


def test_windows_are_the_text_and_labels_the_next_token(made: dict[str, Batches]) -> None:
    windows = made["windows"]
    batch = windows.batch(0, 0)
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    everything = windows.shards.read(0, windows.shards.tokens)
    for row, sample in zip(batch["tokens"], windows.samples(0, 0), strict=True):
        assert np.array_equal(row, everything[sample * 19 : sample * 19 + 19])
    assert len(windows.shards.manifest["shards"]) > 3, "windows run across shards"


def test_documents_are_numbered_and_positions_begin_anew(made: dict[str, Batches]) -> None:
    batches = made["documents"]
    end = train(WORDS, kind="byte").roles.end
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        for tokens, documents, positions in zip(
            batch["tokens"].tolist(), batch["documents"].tolist(), batch["positions"].tolist(), strict=True
        ):
            number, place = 0, 0
            for token, document, position in zip(tokens, documents, positions, strict=True):
                assert (document, position) == (number, place)
                number, place = (number + 1, 0) if token == end else (number, place + 1)


def test_nothing_is_learned_across_documents(made: dict[str, Batches]) -> None:
    end = train(WORDS, kind="byte").roles.end
    plain, kept = made["windows"].batch(0, 0), made["documents"].batch(0, 0)
    ends = plain["tokens"] == end
    assert ends.any()
    assert (kept["labels"][ends] == IGNORE).all()
    assert torch.equal(kept["labels"][~ends], plain["labels"][~ends])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_are_not_there_are_refused(made: dict[str, Batches], kind: str) -> None:
    for index in (-1, len(made[kind]), 10**9):
        with pytest.raises(UsageError, match="There is no batch .*: an epoch has"):
            made[kind].samples(0, index)
    with pytest.raises(UsageError, match="cannot be divided among 10000 processes"):
        made[kind].batch(0, 0, Share(0, 10000))
    for place in (-1, 100, 10**9):
        with pytest.raises(UsageError, match="are not within the 100 samples"):
            Permutation(100, seed=0, epoch=0)(np.array([place]))


def test_epochs_and_seeds_change_batches_and_masks(made: dict[str, Batches]) -> None:
    for kind in KINDS:
        assert made[kind].samples(0, 0).tolist() != made[kind].samples(1, 0).tolist(), kind
    masked = made["masked"]
    same_sample = int(masked.samples(0, 0)[0])
    row = masked.windows._window(same_sample)[:-1]
    one, two = masked._mask_row(row, 0, same_sample)[1], masked._mask_row(row, 1, same_sample)[1]
    assert one.tolist() != two.tolist()
    others = {
        int(token) for s in range(40) for token in masked._mask_row(row, 0, s)[0] if token not in (*row, masked.mask)
    }
    assert len(others) > 5, "another token is any token"


def test_parts_of_a_text_do_not_overlap(made: dict[str, Batches]) -> None:
    shards = made["windows"].shards
    first, last = (WindowBatches(shards, length=19, rows=1, part=part) for part in ((0.0, 0.9), (0.9, 1.0)))
    edge = round(0.9 * shards.tokens)
    ends = [int(first.samples(0, i)[0]) * 19 + 19 for i in range(len(first))]
    assert max(ends) < edge
    row = last.batch(0, 0)["tokens"][0]
    start = edge + int(last.samples(0, 0)[0]) * 19
    assert np.array_equal(row, shards.read(start, start + 19))


def test_eighty_ten_ten(made: dict[str, Batches]) -> None:
    masked = made["masked"]
    counts = {"hidden": 0, "mask": 0, "kept": 0, "other": 0, "all": 0}
    for epoch in range(6):
        for index in range(len(masked)):
            batch, original = masked.batch(epoch, index), masked.windows.batch(epoch, index)
            hidden = batch["labels"] != IGNORE
            assert torch.equal(batch["labels"][hidden], original["tokens"][hidden])
            assert torch.equal(batch["tokens"][~hidden], original["tokens"][~hidden])
            shown = batch["tokens"][hidden]
            counts["hidden"] += int(hidden.sum())
            counts["mask"] += int((shown == masked.mask).sum())
            counts["kept"] += int((shown == original["tokens"][hidden]).sum())
            counts["all"] += hidden.numel()
            assert not (hidden & (original["tokens"] < 5)).any(), "special tokens are not hidden"
    assert abs(counts["hidden"] / counts["all"] - 0.15) < 0.01
    assert abs(counts["mask"] / counts["hidden"] - 0.8) < 0.02
    assert abs(counts["kept"] / counts["hidden"] - 0.1) < 0.02


def test_pairs_are_framed_and_padded(made: dict[str, Batches]) -> None:
    batches = made["pairs"]
    for index in range(5):
        batch = batches.batch(0, index)
        for row, sample in enumerate(batches.samples(0, index)):
            source, target = batches.pairs.source[sample].tolist(), batches.pairs.target[sample].tolist()
            assert batch["source"][row][batch["source_mask"][row]].tolist() == [*source, 2]
            assert batch["target"][row][: len(target) + 1].tolist() == [1, *target]
            labels = batch["labels"][row]
            assert labels[labels != IGNORE].tolist() == [*target, 2]
            assert (batch["target"][row][len(target) + 1 :] == 0).all()
        rows, longest = len(batch["source"]), max(batch["source"].shape[1], batch["target"].shape[1])
        assert rows * longest <= 512


def test_the_padding_share_is_what_batches_hold(made: dict[str, Batches]) -> None:
    batches = made["pairs"]
    cells = empty = 0
    for index in range(len(batches)):
        batch = batches.batch(0, index)
        cells += batch["source"].numel() + batch["labels"].numel()
        empty += int((~batch["source_mask"]).sum() + (batch["labels"] == IGNORE).sum())
    assert abs(batches.padding - empty / cells) < 1e-9
    assert batches.padding < 0.25


def test_company_changes_with_the_epoch(made: dict[str, Batches]) -> None:
    batches = made["pairs"]
    one, two = ({frozenset(batches.samples(epoch, i).tolist()) for i in range(len(batches))} for epoch in (0, 1))
    assert one != two


def altered(text: str, chance: random.Random) -> str:
    place = chance.randrange(len(text))
    return text[:place] + chance.choice("xyz") + text[place + 1 :]


def test_duplicates_and_near_duplicates_never_straddle() -> None:
    chance = random.Random(9)
    pairs, twins = [], []
    for _ in range(400):
        letters = ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(60)) for _ in range(2)]
        pairs.append(Pair(*letters))
    for number in range(0, 400, 4):
        source, target = pairs[number]
        kinds = (
            Pair(source.upper() + "!", "something else entirely " + target[::-1]),
            Pair("a quite different source " + source[::-1], target),
            Pair(altered(source, chance), "again another target " + target[::-1]),
            Pair("one more source here " + source[::-1] + "q", altered(target, chance)),
        )
        twins.append((number, len(pairs)))
        pairs.append(kinds[number // 4 % 4])
    training, held = split_pairs(pairs, validation=0.3, seed=1)
    sides = dict.fromkeys(training, "train") | dict.fromkeys(held, "validation")
    assert len(sides) == len(pairs)
    assert 0.2 < len(held) / len(pairs) < 0.4
    assert all(sides[one] == sides[other] for one, other in twins)
    assert len(set(group_pairs(pairs))) == 400, "and pairs that do not resemble each other stay apart"


def test_a_split_by_place_would_straddle() -> None:
    """The broken twin: taking every tenth pair for validation puts near-duplicates on both sides."""
    chance = random.Random(9)
    originals = ["".join(chance.choice("abcdefghijklm ") for _ in range(60)) for _ in range(101)]
    pairs = [Pair(text, text) for text in originals]
    pairs += [Pair(altered(text, chance), f"{number} {text[::-1]}") for number, text in enumerate(originals)]
    groups = group_pairs(pairs)

    def straddling(held: set[int]) -> int:
        sides: dict[int, set[bool]] = {}
        for number, group in enumerate(groups):
            sides.setdefault(group, set()).add(number in held)
        return sum(len(both) == 2 for both in sides.values())

    assert straddling(set(range(0, len(pairs), 10))) > 10
    assert straddling(set(split_pairs(pairs, validation=0.2)[1])) == 0


def test_a_pair_stays_on_its_side_when_text_is_added(tmp_path: Path) -> None:
    chance = random.Random(2)
    pairs = [
        Pair(sentence(chance) + str(n), "".join(chance.choice("abcdefghij") for _ in range(40))) for n in range(300)
    ]
    more = [Pair("".join(chance.choice("klmnopqrst") for _ in range(40)), "z" * 5 + str(n) * 9) for n in range(50)]
    _, before = split_pairs(pairs, validation=0.2)
    _, after = split_pairs([*pairs, *more], validation=0.2)
    assert set(before) == {index for index in after if index < 300}
