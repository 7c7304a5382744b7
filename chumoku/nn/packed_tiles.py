"""Tiles of a packed row: the queries and keys that one program of a GPU kernel computes together.

    sequences     a a a b b c c d d d d d d d d d d e f f        with TILE = 8
    tiles         a a a b b c c|d d d d d d d d|d d|e f f

A tile has as many whole sequences as fit, so that most tiles need no queries and keys but their own. A sequence that is
longer than a tile has several, which read each other's queries and keys.
"""

# mypy: ignore-errors
# Triton's language has Python's syntax but its own types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # queries, and keys


@triton.jit
def mark_reached(following, jumps, reached, sequences, STEPS: tl.constexpr, SIZE: tl.constexpr):
    """Mark the sequences on the way from the first, by jumps over 1, 2, 4 … of them."""
    place = tl.arange(0, SIZE)
    inside = place < sequences
    jump = tl.load(following + place, mask=inside, other=sequences)
    tl.store(reached + place, (place == 0).to(tl.int32), mask=inside)
    for _ in range(STEPS):
        tl.store(jumps + place, jump, mask=inside)
        tl.debug_barrier()  # other threads read what this one has written
        here = tl.load(reached + place, mask=inside, other=0) != 0
        tl.store(reached + jump, 1, mask=here & (jump < sequences))
        jump = tl.load(jumps + jump, mask=jump < sequences, other=sequences)
        tl.debug_barrier()


@torch.library.custom_op("chumoku::mark_tiles", mutates_args=())
def mark_tiles(following: Tensor) -> Tensor:
    """Whether a tile starts with each sequence, [P]: 0 or 1; a tile before `following[p]` starts with sequence p."""
    sequences = len(following)
    jumps, reached = torch.empty_like(following), torch.empty_like(following)
    sizes = {"STEPS": sequences.bit_length(), "SIZE": triton.next_power_of_2(sequences), "num_warps": 8}
    mark_reached[(1,)](following, jumps, reached, sequences, **sizes)
    return reached


@mark_tiles.register_fake
def _(following):
    return torch.empty_like(following)


def cut_tiles(query_starts: Tensor, queries: int, key_starts: Tensor, keys: int) -> Tensor:
    """The tiles of these sequences, [1 + N, 8] in int32. The first row is their number; after the last, rows have no
    tokens.

    A tile has the first and the end of four ranges: its queries, its keys, all keys of its sequences, and all queries
    of its sequences.
    """
    sequences = len(query_starts) - 1
    starts = torch.stack([query_starts, key_starts])
    after = torch.arange(1, sequences + 1, device=starts.device)
    # One by one: PyTorch 2.11 cannot compile a search in a matrix that it has stacked.
    fitting = [torch.searchsorted(one, one[:-1] + TILE, right=True) - 1 for one in (query_starts, key_starts)]
    following = torch.minimum(*fitting).maximum(after).to(torch.int32)
    parts = ((starts.diff().amax(0) + TILE - 1) // TILE).clamp(min=1)
    ends = (parts * mark_tiles(following)).cumsum(0)  # the number of tiles up to each sequence
    tile = torch.arange(_most_tiles(sequences, queries + keys), device=starts.device)
    first = torch.searchsorted(ends, tile, right=True)
    place = first.clamp(max=sequences - 1)
    start = starts[:, place]
    end = torch.where(first < sequences, starts[:, following[place]], start)
    part_start = torch.minimum(start + (tile - ends[place] + parts[place]) * TILE, end)
    part_end = torch.where(parts[place] > 1, torch.minimum(part_start + TILE, end), end)
    ranges = [part_start[0], part_end[0], part_start[1], part_end[1], start[1], end[1], start[0], end[0]]
    return torch.cat([ends[-1:].expand(8)[None], torch.stack(ranges, 1)]).to(torch.int32)


def _most_tiles(sequences: int, tokens: int) -> int:
    """A bound on the number of tiles. Two neighbors have together more tokens than fit into one, or the second is the
    end of a long sequence."""
    return min(sequences + tokens // TILE, 3 * (tokens // TILE) + 3)
