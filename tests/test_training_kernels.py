"""The GPU kernels of training equal their formulas: on a GPU as they run, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed, so there is no kernel to test.", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from chumoku.data.batches import IGNORE  # noqa: E402 - only where Triton is installed
from chumoku.nn.dropout_kernel import STEPS, draw_mask  # noqa: E402
from chumoku.nn.norm_kernel import rms_norm_rows  # noqa: E402
from chumoku.nn.norms import rms_norm  # noqa: E402
from chumoku.nn.packed_kernels import attend_joined_tiles, attend_tiles  # noqa: E402
from chumoku.nn.packing import make_packing  # noqa: E402
from chumoku.nn.positions import Rotation, rotate  # noqa: E402
from chumoku.nn.rotary_kernel import rotate_joined  # noqa: E402
from chumoku.training.loss_kernel import linear_losses, pad, token_losses  # noqa: E402
from chumoku.training.loss_kernel_fp8 import (  # noqa: E402
    GRADIENT_SCALE,
    linear_losses_fp8,
    losses_and_gradients,
    to_fp8,
)


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("vocabulary", [2, 97, 16411])  # the last needs two blocks
def test_loss_and_gradient_equal_pytorchs(vocabulary, smoothing):
    torch.manual_seed(0)
    logits = 5 * torch.randn(7, vocabulary, device=DEVICE)
    labels = torch.randint(vocabulary, (7,), device=DEVICE)
    labels[3] = IGNORE
    factors = torch.randn(7, device=DEVICE)
    found = []
    for losses in (
        lambda z: token_losses(z, labels, smoothing)[0],
        lambda z: F.cross_entropy(z, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing),
    ):
        leaf = logits.clone().requires_grad_()
        values = losses(leaf)
        found.append((values, torch.autograd.grad(values, leaf, factors)[0]))
    for ours, formula in zip(*found, strict=True):
        torch.testing.assert_close(ours, formula, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("vocabulary", "smoothing"), [(97, 0.0), (2111, 0.13)])  # the second needs two blocks
def test_a_loss_with_its_product_equals_pytorchs(vocabulary, smoothing, biased):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((7, 5), (vocabulary, 5), (vocabulary,)))
    labels = torch.randint(vocabulary, (7,), device=DEVICE)
    labels[3] = IGNORE

    def formula(x, weight, *bias):
        logits = F.linear(x, weight, *bias)
        return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)

    def ours(x, weight, bias=None):
        return linear_losses(x, weight, bias, labels, smoothing)[0]

    assert_equal_with_gradients(ours, formula, x, weight, *[bias][: int(biased)])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("vocabulary", "smoothing"), [(97, 0.0), (2111, 0.13)])
def test_a_loss_in_8_bits_is_close_to_pytorchs(vocabulary, smoothing, biased):
    """23 rows are padded to 32, and the vocabulary to a multiple of 64."""
    torch.manual_seed(0)
    bf16 = {"device": DEVICE, "dtype": torch.bfloat16}
    inputs = [torch.randn(23, 48, **bf16), 0.3 * torch.randn(vocabulary, 48, **bf16), torch.randn(vocabulary, **bf16)]
    inputs = inputs if biased else inputs[:2]
    labels = torch.randint(vocabulary, (23,), device=DEVICE)
    labels[3] = IGNORE
    factors, found = torch.rand(23, device=DEVICE), []
    for formula in (False, True):
        x, weight, *bias = leaves = [each.clone().requires_grad_() for each in inputs]
        if formula:
            logits = F.linear(x.float(), weight.float(), *(each.float() for each in bias))
            losses = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
        else:
            losses = linear_losses_fp8(x, weight, *(bias or [None]), labels, smoothing)[:23]
        found.append((losses, *torch.autograd.grad(losses, leaves, factors)))
    for ours, formula in zip(*found, strict=True):
        assert ours.shape == formula.shape
        difference = (ours.float() - formula.float()).norm() / formula.float().norm()
        assert 1e-4 < difference < 0.08, "8 bits are less than 16"


def test_the_gradient_in_8_bits_is_rounded_and_stored_twice():
    torch.manual_seed(0)
    x, weight = torch.randn(144, 48, device=DEVICE), 0.1 * torch.randn(197, 48, device=DEVICE)  # small logits: in bf16
    labels = torch.randint(197, (144,), device=DEVICE)  # their last digit must not matter
    quantized = (*to_fp8(x), *to_fp8(pad(weight)))
    bf16 = [each.bfloat16() for each in (x, weight)]
    _, gradient, transposed = losses_and_gradients(*bf16, None, labels, 0.0, *quantized)
    assert torch.equal(gradient.view(torch.uint8).T, transposed.view(torch.uint8))
    logits = (quantized[0].float() @ quantized[2].float().T) * quantized[1] * quantized[3]
    expected = logits.bfloat16().float()[:, :197].softmax(-1) - F.one_hot(labels, 197)
    found = gradient.float() / GRADIENT_SCALE
    assert not found[:, 197:].any()
    assert ((found[:, :197] - expected).abs() <= 0.14 * expected.abs() + 1e-8).all()  # 2 bits of mantissa: an eighth


def test_the_loss_of_nan_is_nan():
    logits = torch.zeros(2, 97, device=DEVICE)
    logits[1, 43] = torch.nan
    losses = token_losses(logits, torch.tensor([5, 5], device=DEVICE), 0.0)[0]
    assert losses.isfinite().tolist() == [True, False]


def test_a_mask_drops_the_given_share_without_a_pattern():
    count, dropped = 40_009, 6554
    first, again, other = (draw_mask(torch.tensor([seed], device=DEVICE), count, dropped) for seed in (3, 3, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.tolist()) == {0, 1}
    p, deviation = dropped / STEPS, (0.1 * 0.9 / count) ** 0.5
    for mask in (first, other):
        kept = mask.double()
        assert abs(1 - kept.mean() - p) < 5 * deviation
        for shift in (1, 2, 23, 5002, 10_003):  # neighbors, and numbers from the same random word
            both = ((kept[shift:] == 0) & (kept[:-shift] == 0)).double().mean()
            assert abs(both - p * p) < 5 * (p * p / count) ** 0.5


def assert_equal_with_gradients(ours, formula, *inputs):
    """Both functions give the same result for the inputs, and the same gradients of them."""
    found = []
    for function in (ours, formula):
        leaves = [each.clone().requires_grad_() for each in inputs]
        result = function(*leaves)
        factors = torch.linspace(-1, 1, result.numel(), device=DEVICE).view(result.shape)
        found.append((result, *torch.autograd.grad(result, leaves, factors)))
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, atol=2e-5 if DEVICE.type == "cpu" else 5e-3, rtol=1e-3)


@pytest.mark.parametrize(("rows", "width"), [(4231, 7), (2, 43)])  # more rows than programs, and fewer
def test_rms_norm(rows, width):
    torch.manual_seed(0)
    x, gamma = torch.randn(rows, width, device=DEVICE), torch.randn(width, device=DEVICE)
    assert_equal_with_gradients(
        lambda x, gamma: rms_norm_rows(x, gamma, 1e-5)[0], lambda x, gamma: rms_norm(x, gamma, 1e-5), x, gamma
    )


def test_rotation_of_joined_queries_and_keys():
    torch.manual_seed(0)
    x, angles = torch.randn(5, 3, 7, 16, device=DEVICE), torch.randn(5, 8, device=DEVICE)
    rotation = Rotation(angles.cos(), angles.sin(), "half")

    def formula(x):
        rotated = [rotate(part.transpose(0, 1), rotation).transpose(0, 1) for part in x.unbind(1)[:2]]
        return torch.stack([*rotated, x[:, 2]], dim=1)

    assert_equal_with_gradients(lambda x: rotate_joined(x, rotation.cos, rotation.sin, False), formula, x)


@pytest.mark.parametrize("causal", [False, True])
def test_joined_attention_equals_separate_tensors(causal):
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 5, 18, 89, 101], dtype=torch.int32, device=DEVICE)
    packing = make_packing(starts, 101, starts, 101)
    joined = torch.randn(101, 3, 2, 16, device=DEVICE)
    assert_equal_with_gradients(
        lambda joined: attend_joined_tiles(joined, packing.query_numbers, packing.key_ranges, causal)[0],
        lambda joined: attend_tiles(*joined.unbind(1), *packing[2:], causal)[0],
        joined,
    )
