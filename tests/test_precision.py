"""QuantizedLinear weights: rounding errors are within the bounds of the formulas; and models with quantized weights."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from cells import Cell, model_of
from hypothesis import given
from hypothesis import strategies as st

from chumoku.decoding.engines.base import TorchEngine
from chumoku.errors import ShapeError, UsageError
from chumoku.models.build import build
from chumoku.models.model import Model
from chumoku.models.precision import PRECISIONS, to_precision
from chumoku.nn.quantized import GROUP, QuantizedLinear, QuantizedLogits, quantize, round_inputs, to_int4, to_int8

KINDS = ("bf16", "int8", "int4")
SIZES = (st.integers(1, 37), st.integers(1, 5), st.integers(0, 999))


def random_matrix(outputs: int, inputs: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(outputs, 1, generator=random) * 9
    return torch.randn(outputs, inputs, generator=random) * rows


@given(*SIZES)
def test_int8_is_within_half_a_step(outputs: int, groups: int, seed: int) -> None:
    weight = random_matrix(outputs, GROUP * groups - seed % 13, seed)
    stored = to_int8(weight)
    assert stored.q.shape == (outputs, groups, GROUP)
    filled = torch.nn.functional.pad(weight, (0, seed % 13))
    error = (stored.dequantize() - filled).abs().view(outputs, groups, GROUP)
    # Half a step, and the error of the largest weights from rounding s to 16 bits.
    assert (error <= stored.scale.float()[..., None] * (0.5 + 127 * 2**-11) + 1e-6).all()
    assert (stored.q.int().abs().amax(-1) >= 126).all(), "the largest weight of every group uses all there is"


@given(*SIZES)
def test_int4_is_within_half_a_step(outputs: int, groups: int, seed: int) -> None:
    weight = random_matrix(outputs, GROUP * groups, seed)
    stored = to_int4(weight)
    assert stored.packed.shape == (outputs, groups, GROUP // 2)
    error = (stored.dequantize() - weight).abs().view(outputs, groups, GROUP)
    # Half a step, and the error from rounding s and m to 16 bits.
    step, most = stored.scale.float()[..., None], weight.abs().amax()
    assert (error <= step * 0.5 + 15 * step * 2**-11 + most * 2**-11 + 1e-6).all()


def test_representable_weights_are_exact() -> None:
    for number in range(16):
        q = (torch.arange(GROUP) * 7 + number) % 16
        weight = q[None] * 0.25 - 1.5
        assert torch.equal(to_int4(weight).dequantize(), weight)
        assert torch.equal(to_int4(weight).unpack()[0], q.to(torch.uint8))
    many = torch.arange(-31.0, 33.0)[None]
    many[0, 0], many[0, -1] = -127, 127
    assert torch.equal(to_int8(many / 8).dequantize(), many / 8)


@pytest.mark.parametrize("value", [0.0, 0.375, -2.0])
def test_equal_weights_are_exact(value: float) -> None:
    weight = torch.full((3, GROUP), value)
    torch.testing.assert_close(to_int4(weight).dequantize(), weight)
    torch.testing.assert_close(to_int8(weight).dequantize(), weight, rtol=2**-11, atol=0)  # s has 16 bits


def formula(x: torch.Tensor, module: QuantizedLinear) -> torch.Tensor:
    """y = W (t p) + b in float64, step by step: p = round(x · 32512 / max|x|), one t for a group."""
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        parts = []
        for part in row.split(GROUP):
            top = part.abs().max()
            levels = torch.full_like(top, 32512.0)  # 32512.0 / top would be a product with 1 / top
            parts.append((part * (levels / top)).round().double() * (top / levels).double() if top > 0 else part)
        rows.append(torch.cat([part.double() for part in parts]))
    inputs = torch.stack(rows) if module.kind != "bf16" else x.reshape(-1, x.shape[-1]).double()
    bias = 0 if module.bias is None else module.bias.double()
    return (inputs @ module.float_weight().double().T + bias).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [7, 31, 67])
@pytest.mark.parametrize("rows", [1, 5, 37])
def test_product_equals_formula(kind: str, outputs: int, rows: int) -> None:
    weight, x = random_matrix(outputs, 2 * GROUP, 3), random_matrix(rows, 2 * GROUP, 5)
    module = QuantizedLinear(weight, torch.arange(outputs) * 1.0, kind)  # type: ignore[arg-type]
    expected = formula(x[:, None], module)
    spread = expected.std()
    assert float((module(x[:, None]) - expected).abs().max() / spread) < 4e-6
    if kind != "bf16":
        exact = x[:, None].double() @ module.float_weight().double().T + module.bias.double()
        assert float((module(x[:, None]) - exact).abs().max() / spread) > 4e-6, "inputs are rounded to 16 bits"
    module.get_buffer("weight" if kind == "bf16" else "scale").mul_(1.3)
    assert float((module(x[:, None]) - expected).abs().max() / spread) > 1e-3, "no stale weight is cached"


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_other_types_are_not_rounded(kind: str) -> None:
    module = QuantizedLinear(random_matrix(7, 2 * GROUP, 3), None, kind)  # type: ignore[arg-type]
    x = random_matrix(5, 2 * GROUP, 5).double()
    exact = x @ module.float_weight().double().T
    torch.testing.assert_close(module(x), exact, atol=1e-12, rtol=1e-12)
    assert torch.equal(round_inputs(x.bfloat16(), module.kind), x.bfloat16())


def test_extreme_inputs_are_rounded_safely() -> None:
    """Zeros, tiny numbers, ∞ and NaN: finite inputs stay finite, and others stay infinite or NaN."""
    x = torch.zeros(5, GROUP)
    x[1, 3], x[2, 5], x[3, 7], x[4, 0] = 1e-38, torch.inf, torch.nan, 1e38
    rounded = round_inputs(x, "int4")
    assert torch.equal(rounded[:2], torch.zeros(2, GROUP))
    assert not rounded[2].isfinite().all()
    assert rounded[3].isnan().all()
    assert rounded[4, 0] == pytest.approx(1e38)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_ignore_rounding(kind: str) -> None:
    module = QuantizedLinear(random_matrix(7, 2 * GROUP, 3), torch.arange(7) * 1.0, kind)  # type: ignore[arg-type]
    x = random_matrix(5, 2 * GROUP, 11).requires_grad_()
    y = random_matrix(5, 7, 13)
    out = module(x)
    (out * y).sum().backward()
    torch.testing.assert_close(x.grad, y @ module.float_weight())
    with torch.no_grad():
        assert torch.equal(module(x), out), "the same numbers with and without gradients"


def test_dequantized_matrix_is_cached_while_referenced() -> None:
    module = QuantizedLinear(random_matrix(7, 2 * GROUP, 3), None, "int4")
    floats = module.float_weight()
    assert module.float_weight() is floats
    module.scale.mul_(2)
    assert not torch.equal(module.float_weight(), floats), "changed in place"
    reference = weakref.ref(floats)
    del floats
    gc.collect()
    assert reference() is None


def test_quantized_from_stored_weights_copies_nothing() -> None:
    weight = random_matrix(7, 3 * GROUP, 5)
    for precision in KINDS:
        stored = quantize(weight, precision)
        layer = QuantizedLinear.of(stored, torch.arange(7) * 1.0)
        assert all(a is b for a, b in zip(layer.stored_weight, stored, strict=True))
        assert (layer.out_features, layer.in_features) == (7, 3 * GROUP)
        same = QuantizedLinear(weight, torch.arange(7) * 1.0, precision)
        assert torch.equal(layer(weight[:2]), same(weight[:2]))
    assert type(QuantizedLogits.of(to_int4(weight))) is QuantizedLogits


def model(kind: str, **changes: object) -> Model:
    sizes = {"width": 96, "feedforward_width": 64, "layers": 3}
    return build(Cell(kind, "rotary").config(**{**sizes, **changes}))


def answer(one: Model) -> torch.Tensor:
    tokens = torch.arange(14).view(2, 7)
    with torch.inference_mode():
        output = one(tokens, tokens + 3) if one.config.kind == "encoder-decoder" else one(tokens)
    return output.logits.float()


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_kind_at_every_precision(kind: str, tied: bool) -> None:
    one = model(kind, tie_output=tied, output_bias=True)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    exact = answer(one)
    errors = {}
    for precision in PRECISIONS:
        other = to_precision(one, precision)
        errors[precision] = float((answer(other) - exact).std() / exact.std())
        assert not other.training
        assert not any(parameter.requires_grad for parameter in other.parameters())
    assert errors["float32"] == 0
    assert 0 < errors["bf16"] < 0.03
    assert 0 < errors["int8"] < 0.03
    assert errors["int8"] < errors["int4"] < 0.25
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.state_dict().items())
    assert all(parameter.requires_grad for parameter in one.parameters())


def test_every_matrix_is_quantized_and_the_rest_is_shared() -> None:
    one = model("encoder-decoder", share_embeddings=True)
    small = to_precision(one, "int4")
    assert not [name for name, part in small.named_modules() if isinstance(part, torch.nn.Linear)]
    assert isinstance(small.head, QuantizedLogits)
    assert small.encoder.embedding is small.decoder.embedding
    assert small.decoder.embedding.table.data_ptr() == one.decoder.embedding.table.data_ptr()
    matrices = sum(p.numel() for name, p in one.named_parameters() if p.ndim == 2) * 4
    stored = sum(
        b.nbytes for part in small.modules() if isinstance(part, QuantizedLinear) for b in part.buffers(recurse=False)
    )
    assert stored < 0.2 * matrices
    engine = TorchEngine(small, rows=1, capacity=5)
    engine.add_rows(1, [[5, 7]])
    assert engine.prefill([[1, 3]]).isfinite().all()


def test_unsupported_precisions_are_refused() -> None:
    with pytest.raises(UsageError, match="no precision 'int3'; choose float32, bf16, int8, int4"):
        to_precision(model("decoder"), "int3")
    with pytest.raises(UsageError, match="already quantized"):
        to_precision(to_precision(model("decoder"), "int8"), "int4")
    with pytest.raises(UsageError, match="but one is 30"):
        to_precision(model_of(Cell("decoder"), torch.float32), "int4")
    with pytest.raises(UsageError, match="but one is 48"):
        to_precision(model("decoder", feedforward_width=48), "int4")
    with pytest.raises(UsageError, match="is not supported for models with experts"):
        to_precision(model("decoder", experts=3), "int8")
    with pytest.raises(ShapeError, match="multiple of 32 inputs"):
        to_int4(torch.ones(3, 33))
