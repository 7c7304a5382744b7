"""The tiles of the GPU's kernels for packed rows: every token is in one, and they read what they need."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed, so there are no tiles.", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from chumoku.nn.packed_tiles import TILE, cut_tiles  # noqa: E402 - only where Triton is installed

LENGTHS = st.sampled_from([0, 1, 2, 5, 31, 32, 33, 63, 64, 65, 66, 128, 129, 200])


def make_starts(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32, device=DEVICE).cumsum(0).to(torch.int32)


def cut(queries, keys):
    starts = make_starts(queries), make_starts(keys)
    number, *tiles = cut_tiles(starts[0], sum(queries), starts[1], sum(keys)).tolist()
    assert len(set(number)) == 1
    assert number[0] <= len(tiles)
    assert not any(tile[0] < tile[1] or tile[2] < tile[3] for tile in tiles[number[0] :])
    return [[range(*tile[at : at + 2]) for at in (0, 2, 4, 6)] for tile in tiles[: number[0]]], starts


def sequences_of(tokens, starts):
    return set((torch.searchsorted(starts.cpu(), torch.tensor(tokens), right=True) - 1).tolist())


@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=9))
def test_tiles_cover_every_token_once_and_read_the_others_of_their_sequences(pairs):
    queries, keys = zip(*pairs, strict=True)
    tiles, starts = cut(queries, keys)
    for side, lengths in ((0, queries), (1, keys)):
        assert [token for tile in tiles for token in tile[side]] == list(range(sum(lengths)))
        assert all(len(tile[side]) <= TILE for tile in tiles)
    for own_queries, own_keys, read_keys, read_queries in tiles:
        for own, read, mine, theirs in ((own_queries, read_keys, *starts), (own_keys, read_queries, *starts[::-1])):
            needed = {
                token
                for sequence in sequences_of(list(own), mine)
                for token in range(int(theirs[sequence]), int(theirs[sequence + 1]))
            }
            assert needed <= set(read)


def test_a_tile_has_as_many_whole_sequences_as_fit():
    tiles, _ = cut([30, 34, 1, 20], [30, 30, 40, 30])
    expected = [(range(64), range(60)), (range(64, 65), range(60, 100)), (range(65, 85), range(100, 130))]
    assert [tuple(tile) for tile in tiles] == [(queries, keys, keys, queries) for queries, keys in expected]


def test_there_are_never_more_tiles_than_rows_of_the_table():
    for pattern in ([65, 1], [1], [64, 1], [33], [129, 1, 1, 64]):
        lengths = pattern * 40
        assert len(cut(lengths, lengths)[0]) > 0
        assert len(cut(lengths, [0] * len(lengths))[0]) > 0
