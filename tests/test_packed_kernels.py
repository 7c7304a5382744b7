"""The GPU kernel of packed attention equals the formula: on a GPU as it runs, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed, so there is no kernel to test.", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from chumoku.nn import packed_kernels  # noqa: E402 - only where Triton is installed
from chumoku.nn.attention import attend  # noqa: E402
from chumoku.nn.packed_kernels import attend_tiles  # noqa: E402
from chumoku.nn.packed_tiles import cut_tiles  # noqa: E402
from chumoku.nn.packing import make_packing  # noqa: E402


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "programs"), [(16, 7), (23, 2)])  # for five tiles
def test_the_kernel_equals_the_formula_in_float32(causal, width, programs, monkeypatch):
    """On a GPU as it runs, elsewhere in Triton's interpreter; sequences shorter and longer than a tile, and empty."""
    torch.manual_seed(0)
    monkeypatch.setattr(packed_kernels, "_programs", lambda tokens: programs)
    starts = torch.tensor([0, 5, 5, 18, 151, 163, 163, 173], dtype=torch.int32, device=DEVICE)
    keys = starts if causal else torch.tensor([0, 7, 7, 19, 19, 97, 101, 167], dtype=torch.int32, device=DEVICE)
    lengths = int(starts[-1]), int(keys[-1]), int(keys[-1])
    packing = make_packing(starts, lengths[0], keys, lengths[1])
    inputs = [torch.randn(1, 3, length, width, device=DEVICE, requires_grad=True) for length in lengths]
    rows = [part[0].transpose(0, 1) for part in inputs]
    tiles = cut_tiles(starts, lengths[0], keys, lengths[1])
    ours = attend_tiles(*rows, *packing[2:4], tiles, causal)[0].transpose(0, 1)[None]
    formula = attend(*inputs, mask=packing.mask(), causal=causal)[0]
    gradient = torch.randn_like(ours)
    for left, right in zip(
        (ours, *torch.autograd.grad(ours, inputs, gradient)),
        (formula, *torch.autograd.grad(formula, inputs, gradient)),
        strict=True,
    ):
        torch.testing.assert_close(left, right, atol=5e-6 if DEVICE.type == "cpu" else 5e-3, rtol=1e-3)
