"""Position encodings equal their formulas and those of transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from chumoku.errors import LengthError, ShapeError
from chumoku.nn import (
    AlibiPositions,
    LearnedPositions,
    RelativeBias,
    RelativePositions,
    RotaryPositions,
    RotaryScaling,
    SinusoidalPositions,
    sinusoidal,
)
from chumoku.nn.positions import alibi_slopes, rotate


@given(position=st.integers(0, 5000), width=st.integers(1, 13))
def test_sinusoidal_equals_formula(position: int, width: int) -> None:
    expected = [
        math.sin(position / 10000 ** (d / width)) if d % 2 == 0 else math.cos(position / 10000 ** ((d - 1) / width))
        for d in range(width)
    ]
    exact = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        sinusoidal(torch.tensor(position), width, dtype=torch.float64), exact, atol=1e-11, rtol=0
    )
    # In float32 the angle is rounded before the sine, so the error grows with the position.
    near = sinusoidal(torch.tensor(position), width).double()
    torch.testing.assert_close(near, exact, atol=1e-6 + position * 2e-7, rtol=0)


def test_sinusoidal_of_note_002() -> None:
    """The d = 4 table for positions 0 … 3, to the two digits in the note."""
    table = [[0, 1, 0, 1], [0.84, 0.54, 0.01, 1.0], [0.91, -0.42, 0.02, 1.0], [0.14, -0.99, 0.03, 1.0]]
    torch.testing.assert_close(sinusoidal(torch.arange(4), 4), torch.tensor(table), atol=0.005, rtol=0)


def test_sinusoidal_half_pairing_is_a_permutation() -> None:
    together, apart = (sinusoidal(torch.arange(7), 6, pairing=pairing) for pairing in ("interleaved", "half"))
    assert torch.equal(together[:, [0, 2, 4, 1, 3, 5]], apart)


@pytest.mark.parametrize("width", [2, 7, 22])
def test_sinusoidal_with_endpoint_equals_formula(width: int) -> None:
    frequency = 10000.0 ** -np.linspace(0, 1, (width + 1) // 2)
    angles = (np.arange(3) + 5)[:, None] * frequency
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width]
    layer = SinusoidalPositions(width, pairing="half", endpoint=True, start=5)
    found = layer(torch.arange(3), 3, torch.float64)
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-12, rtol=0)


def test_inner_products_depend_on_the_distance() -> None:
    encoded = sinusoidal(torch.arange(50), 128).double()
    products = encoded @ encoded.T
    theory = [sum(math.cos(k / 10000 ** (2 * d / 128)) for d in range(64)) for k in range(50)]
    torch.testing.assert_close(products[0], torch.tensor(theory, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(products[7, 7:], products[0, :-7], atol=1e-4, rtol=0)


def test_sinusoidal_has_no_maximum_length() -> None:
    assert SinusoidalPositions(6)(torch.tensor([10**6]), 10**6 + 1).isfinite().all()


def test_learned_positions_beyond_table_are_refused() -> None:
    learned = LearnedPositions(5, 3)
    torch.nn.init.normal_(learned.table)
    assert torch.equal(learned(torch.tensor([4, 0]), 5), learned.table[[4, 0]])
    with pytest.raises(LengthError, match="Position 5 is beyond the table of learned positions, which ends at 4"):
        learned(torch.arange(6), 6)
    with pytest.raises(LengthError, match="There is no position 7"):
        learned(torch.tensor([7]), 1)


def test_relative_equals_formula() -> None:
    """qᵢ·r_{i−j} / √d_k, with i−j clipped, is added to each score(i, j)."""
    relative = RelativePositions(2, 7)
    torch.nn.init.normal_(relative.table)
    query = torch.randn(2, 3, 5, 7)
    distances = torch.arange(5)[:, None] - torch.arange(11)[None]
    bias = relative(query, distances)
    for i in range(5):
        for j in range(11):
            row = relative.table[max(-2, min(2, i - j)) + 2]
            torch.testing.assert_close(bias[:, :, i, j], query[:, :, i] @ row / math.sqrt(7), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (7, 11), (5, 3)])
def test_relative_bias_equals_t5s(causal: bool, buckets: int, max_distance: int) -> None:
    layer = RelativeBias(buckets, 3, max_distance=max_distance, causal=causal)
    torch.nn.init.normal_(layer.table)
    distances = torch.arange(199)[:, None] - torch.arange(211)[None]
    expected = T5Attention._relative_position_bucket(-distances, not causal, buckets, max_distance)
    assert torch.equal(layer.bucket(distances), expected)
    bias = layer(distances, torch.float32)
    assert bias.shape == (1, 3, 199, 211)
    assert torch.equal(bias[0, 2], layer.table[expected, 2])
    assert torch.equal(layer(distances[None].expand(5, -1, -1), torch.float32), bias.expand(5, -1, -1, -1))


def test_alibi_equals_formula() -> None:
    """m_h |i−j| is subtracted from each score(i, j) of head h; m_h = 2^{−8h/H} if H is a power of 2."""
    distances = torch.arange(5)[:, None] - torch.arange(11)[None]
    bias = AlibiPositions(8)(distances, torch.float32)
    assert bias.shape == (1, 8, 5, 11)
    for h in range(8):
        torch.testing.assert_close(bias[0, h], -(2.0 ** -(h + 1)) * distances.abs(), atol=0, rtol=1e-6)
    rows = torch.stack([distances, distances + 3])
    assert torch.equal(AlibiPositions(3)(rows, torch.bfloat16)[1:], AlibiPositions(3)(rows[1], torch.float32))


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 13, 16, 20])
def test_alibi_slopes_equal_blooms(heads: int) -> None:
    """BLOOM adds m_h · j instead of −m_h (i − j), which differs only by a constant for each query."""
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), theirs, atol=0, rtol=1e-6)


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3", "yarn", "yarn with a factor"])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rotary_equals_transformers(scaling: str, base: float) -> None:
    chosen = {"rope_type": "default", "rope_theta": base}
    ours = None
    if scaling == "linear":
        chosen |= {"rope_type": "linear", "factor": 3.0}
        ours = RotaryScaling("linear", 3.0)
    elif scaling == "llama3":
        chosen |= {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        ours = RotaryScaling("llama3", 8.0, low=1.0, high=4.0, original=64)
    elif "yarn" in scaling:
        factor = 1.3 if "factor" in scaling else None
        chosen |= {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 4096,
            "attention_factor": factor,
        }
        ours = RotaryScaling("yarn", 8.0, low=1.0, high=32.0, original=4096, attention_factor=factor)
    config = LlamaConfig(
        hidden_size=48, num_attention_heads=3, max_position_embeddings=512, rope_parameters=chosen, head_dim=16
    )
    query, key = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 5, 16)
    positions = torch.tensor([3, 4, 5, 100, 400])
    cos, sin = LlamaRotaryEmbedding(config)(query, positions[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    rotation = RotaryPositions(16, base=base, pairing="half", scaling=ours)(positions, torch.float32)
    for one, other in zip((rotate(query, rotation), rotate(key, rotation)), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_interleaved_rotary_equals_rotation_matrix() -> None:
    """(q₀, q₁) is rotated by mθ; pairs are neighbors."""
    x = torch.randn(1, 1, 1, 6, dtype=torch.float64)
    rotation = RotaryPositions(6)(torch.tensor([7]), torch.float64)
    turned = rotate(x, rotation)
    for pair in range(3):
        angle = 7 / 10000 ** (2 * pair / 6)
        matrix = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        expected = matrix.to(torch.float64) @ x[0, 0, 0, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(turned[0, 0, 0, 2 * pair : 2 * pair + 2], expected, atol=1e-6, rtol=0)


def test_rotary_pairings_are_permutations_of_each_other() -> None:
    x = torch.randn(2, 3, 5, 8)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    half = rotate(x[..., order], RotaryPositions(8, pairing="half")(torch.arange(5), torch.float32))
    assert torch.equal(half, rotate(x, RotaryPositions(8)(torch.arange(5), torch.float32))[..., order])


def test_low_precision_does_not_round_the_angles() -> None:
    """A model cast to bfloat16 must still distinguish position 4097 from 4096."""
    rotation = RotaryPositions(8).to(torch.bfloat16)(torch.tensor([4096, 4097]), torch.bfloat16)
    assert rotation.cos.dtype == torch.float32
    assert rotation.cos[0, 0] != rotation.cos[1, 0]


def test_an_odd_head_width_is_refused() -> None:
    with pytest.raises(ShapeError, match="need an even head width, not 7"):
        RotaryPositions(7)
