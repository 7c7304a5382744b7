from __future__ import annotations

import pytest
import torch

from chumoku.errors import ShapeError
from chumoku.nn import masks


def test_format_of_causal_mask() -> None:
    assert masks.format_mask(masks.causal(3)) == "1 0 0\n1 1 0\n1 1 1"


def test_causal_with_cached_keys() -> None:
    assert masks.format_mask(masks.causal(2, past=3)) == "1 1 1 1 0\n1 1 1 1 1"


def test_causal_and_padding() -> None:
    real = torch.tensor([[True, True, True, False], [True, False, True, True]])
    both = masks.causal(4) & masks.padding(real)
    assert both.shape == (2, 1, 4, 4)
    assert masks.format_mask(both[0]) == "1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 0"
    assert masks.format_mask(both[1, 0]) == "1 0 0 0\n1 0 0 0\n1 0 1 0\n1 0 1 1"


def test_causal_rows_at_different_positions() -> None:
    places = torch.tensor([[0, 1], [2, 3]])
    seen = masks.causal_at(places, torch.arange(5))
    assert seen.shape == (2, 1, 2, 5)
    assert masks.format_mask(seen[0]) == "1 0 0 0 0\n1 1 0 0 0"
    assert masks.format_mask(seen[1]) == "1 1 1 0 0\n1 1 1 1 0"


def test_window_of_each_kind() -> None:
    distances = torch.arange(4)[:, None] - torch.arange(4)
    assert masks.format_mask(masks.window(distances, 2)) == "1 1 0 0\n1 1 1 0\n0 1 1 1\n0 0 1 1"
    assert masks.format_mask(masks.causal(4) & masks.window(distances, 2)) == "1 0 0 0\n1 1 0 0\n0 1 1 0\n0 0 1 1"
    rows = torch.stack([distances, distances + 1])
    assert masks.window(rows, 2).shape == (2, 1, 4, 4)
    assert masks.format_mask(masks.window(rows, 2)[1]) == "1 1 1 0\n0 1 1 1\n0 0 1 1\n0 0 0 1"


def test_real_tokens_and_packed_documents() -> None:
    assert masks.real_tokens(torch.tensor([2, 0, 3]), 3).int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert masks.format_mask(masks.same_document(torch.tensor([[7, 7, 8]]))) == "1 1 0\n1 1 0\n0 0 1"


def test_format_of_several_masks_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"holds several.*format_mask\(mask\[0, 0\]\)"):
        masks.format_mask(torch.ones(2, 1, 3, 3, dtype=torch.bool))
