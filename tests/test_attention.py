"""Attention: the formula, the fused version, and nn.MultiheadAttention."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from chumoku.errors import ShapeError
from chumoku.nn import Attention, AttentionContext, attend, attend_fused, cudnn_attention, masks
from chumoku.nn import attention as attention_module

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def draw_case(
    seed: int, dtype: torch.dtype, *, batch: int, kv_heads: int, group: int, length: int, keys: int, width: int
):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, kv_heads * group, length, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, width)]
    return [torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes]


sizes = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([1, 2, 3]),
        "kv_heads": st.sampled_from([1, 2, 3]),
        "group": st.sampled_from([1, 2, 5]),
        "length": st.sampled_from([1, 2, 7, 13]),
        "keys": st.sampled_from([1, 7, 13, 17]),
        "width": st.sampled_from([3, 5, 8, 11]),
    }
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    size=sizes,
    seed=st.integers(0, 2**16),
    mask_kind=st.sampled_from(["none", "padding", "random"]),
    with_bias=st.booleans(),
    causal=st.booleans(),
)
def test_plain_equals_fused_with_gradients(dtype, size, seed, mask_kind, with_bias, causal) -> None:
    inputs = draw_case(seed, dtype, **size)
    query = inputs[0]
    full = (query.shape[0], query.shape[1], query.shape[2], inputs[1].shape[2])
    generator = torch.Generator().manual_seed(seed + 1)
    mask = None
    if mask_kind == "padding":
        mask = masks.padding(torch.rand(full[0], full[3], generator=generator) > 0.4)
    elif mask_kind == "random":
        mask = torch.rand(full[0], 1, *full[2:], generator=generator) > 0.6
    bias = torch.randn(full, dtype=dtype, generator=generator).requires_grad_() if with_bias else None
    chosen = [*inputs, *([bias] if bias is not None else [])]

    plain, weights = attend(*inputs, mask=mask, bias=bias, causal=causal)
    fused = attend_fused(*inputs, mask=mask, bias=bias, causal=causal)
    upstream = torch.randn(plain.shape, dtype=dtype, generator=generator)
    torch.testing.assert_close(plain, fused, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for one, other in zip(
        torch.autograd.grad(plain, chosen, upstream), torch.autograd.grad(fused, chosen, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    allowed = attention_module.combine_masks(query, inputs[1], mask=mask, causal=causal)
    if allowed is not None:
        assert (weights.masked_select(~allowed.expand_as(weights)) == 0).all()
        some = allowed.expand_as(weights).any(-1)
        torch.testing.assert_close(weights.sum(-1), some.to(dtype), atol=1e-5, rtol=0)


def test_missing_scale_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        attention_module.F, "scaled_dot_product_attention", lambda *given, **named: fused(*given, **named, scale=1.0)
    )
    inputs = draw_case(1, torch.float64, batch=2, kv_heads=1, group=3, length=5, keys=7, width=11)
    assert (attend(*inputs)[0] - attend_fused(*inputs)).abs().max() > 1e-3


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("twin", ["plain", "fused"])
def test_query_without_allowed_keys_gets_zeros(twin: str, with_bias: bool) -> None:
    inputs = draw_case(2, torch.float32, batch=2, kv_heads=3, group=1, length=5, keys=7, width=11)
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[0, 0, 3] = False
    mask[1] = False
    bias = torch.randn(2, 3, 5, 7).requires_grad_() if with_bias else None
    output = (
        attend(*inputs, mask=mask, bias=bias)[0] if twin == "plain" else attend_fused(*inputs, mask=mask, bias=bias)
    )
    assert (output[0, :, 3] == 0).all()
    assert (output[1] == 0).all()
    assert (output[0, :, :3] != 0).all()
    output.sum().backward()
    for tensor in (*inputs, *([bias] if bias is not None else [])):
        assert tensor.grad.isfinite().all()
    assert (inputs[0].grad[0, :, 3] == 0).all()


def test_numbers_of_note_002() -> None:
    """猫 が 魚 を 食べる: the vectors of the note; its weights sum to 1.34, the correct ones to 1."""
    words = torch.tensor([[1.0, 0.1], [0.1, 0.2], [0.9, 0.2], [0.2, 0.1], [0.5, 0.8]])[None, None]
    scores, weights = attention_module.compute_attention_weights(words[:, :, :1], words)
    expected = torch.tensor([0.714, 0.085, 0.651, 0.149, 0.410])
    torch.testing.assert_close(scores.flatten(), expected, atol=6e-4, rtol=0)
    torch.testing.assert_close(weights.flatten(), torch.tensor([0.265, 0.141, 0.248, 0.150, 0.195]), atol=6e-4, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_equals_torch_multihead_attention(bias: bool, cross: bool, masked: bool) -> None:
    torch.manual_seed(3)
    width, heads = 35, 5
    theirs = torch.nn.MultiheadAttention(width, heads, bias=bias, batch_first=True, dtype=torch.float64)
    ours = Attention(width, heads, bias=bias).double()
    copy_attention(theirs, ours)
    x = torch.randn(2, 7, width, dtype=torch.float64, requires_grad=True)
    source = torch.randn(2, 11, width, dtype=torch.float64, requires_grad=True) if cross else x
    real = torch.rand(2, source.shape[1]) > 0.3
    real[:, 0] = True
    expected, expected_weights = theirs(
        x, source, source, key_padding_mask=~real if masked else None, average_attn_weights=False
    )
    context = AttentionContext(mask=masks.padding(real)) if masked else AttentionContext()
    output = ours(x, source if cross else None, context=context)
    torch.testing.assert_close(output, expected, atol=1e-10, rtol=0)
    query = ours._split(ours.query(x))
    _, weights = attention_module.compute_attention_weights(query, ours.project(source).key, mask=context.mask)
    torch.testing.assert_close(weights, expected_weights, atol=1e-10, rtol=0)

    upstream = torch.randn_like(output)
    parameters = [ours.query.weight, ours.key.weight, ours.value.weight]
    mine = torch.autograd.grad(output, [x, source, ours.output.weight, *parameters], upstream, retain_graph=True)
    yours = torch.autograd.grad(expected, [x, source, theirs.out_proj.weight, theirs.in_proj_weight], upstream)
    for one, other in zip([*mine[:3], torch.cat(mine[3:])], yours, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def copy_attention(theirs: torch.nn.MultiheadAttention, ours: Attention) -> None:
    """PyTorch stacks query, key and value into one matrix."""
    with torch.no_grad():
        for part, weight in zip((ours.query, ours.key, ours.value), theirs.in_proj_weight.chunk(3), strict=True):
            part.weight.copy_(weight)
        ours.output.weight.copy_(theirs.out_proj.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.normal_()
            theirs.out_proj.bias.normal_()
            for part, bias in zip((ours.query, ours.key, ours.value), theirs.in_proj_bias.chunk(3), strict=True):
                part.bias.copy_(bias)
            ours.output.bias.copy_(theirs.out_proj.bias)


def test_grouped_heads_equal_repeated_heads() -> None:
    """One key head shared by three query heads = three heads with the same key matrix."""
    torch.manual_seed(4)
    grouped = Attention(33, 3, kv_heads=1).double()
    repeated = Attention(33, 3).double()
    with torch.no_grad():
        for name in ("query", "output"):
            getattr(repeated, name).load_state_dict(getattr(grouped, name).state_dict())
        for name in ("key", "value"):
            getattr(repeated, name).weight.copy_(getattr(grouped, name).weight.repeat(3, 1))
            getattr(repeated, name).bias.copy_(getattr(grouped, name).bias.repeat(3))
    x = torch.randn(2, 7, 33, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), repeated(x), atol=1e-12, rtol=0)


def test_dropout_applies_to_weights_only_in_training() -> None:
    torch.manual_seed(5)
    attention = Attention(30, 3, dropout=0.5)
    x = torch.randn(2, 7, 30)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))
    query, key, value = draw_case(5, torch.float64, batch=1, kv_heads=1, group=1, length=1, keys=2000, width=3)
    outputs = torch.stack([attend(query, key, torch.ones_like(value), dropout=0.5)[0] for _ in range(50)])
    assert abs(outputs.mean() - 1) < 0.02
    assert outputs.std() > 0.001


def test_a_bias_is_added_to_the_scores() -> None:
    query, key, value = draw_case(6, torch.float64, batch=2, kv_heads=1, group=1, length=5, keys=7, width=11)
    away = torch.zeros(5, 7, dtype=torch.float64)
    away[:, 1:] = -1e9
    torch.testing.assert_close(attend_fused(query, key, value, bias=away), value[:, :, :1].expand(-1, -1, 5, -1))


def test_invalid_heads_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"The width \(30\) must be a multiple of the heads \(4\)"):
        Attention(30, 4)
    with pytest.raises(ShapeError, match=r"key/value heads \(2\)"):
        Attention(30, 3, kv_heads=2)


def test_large_scores_stay_finite() -> None:
    query = torch.full((1, 1, 2, 3), 1e4)
    for output in (attend(query, query, query)[0], attend_fused(query, query, query)):
        assert output.isfinite().all()
    assert math.isclose(float(attend(query, query, query)[1].sum()), 2.0, rel_tol=1e-6)


@pytest.mark.parametrize("key_heads", [3, 1])
def test_cudnn_is_chosen_only_for_fixed_shapes(key_heads: int) -> None:
    def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return cudnn_attention.attend_fixed_shape(query, key, value, True, key_heads == 1)

    inputs = [torch.randn(2, heads, 7, 8) for heads in (3, key_heads, key_heads)]
    for mode, chosen in (("fake", True), ("symbolic", False)):
        graph = make_fx(causal, tracing_mode=mode)(*inputs)
        assert ("cudnn" in graph.code) == chosen, graph.code
