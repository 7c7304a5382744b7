"""The GPU kernels of training equal their formulas: on a GPU as they run, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed, so there is no kernel to test.", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOURCES = Path(__file__).parent.parent / "chumoku"

from chumoku.data.batches import IGNORE  # noqa: E402 - only where Triton is installed
from chumoku.models.build import build  # noqa: E402
from chumoku.models.presets import preset  # noqa: E402
from chumoku.models.stack import Stack  # noqa: E402
from chumoku.nn import (  # noqa: E402
    activation_kernel,
    joined_attention,
    joined_projection_kernel,
    norm_kernel,
    relu_kernel,
)
from chumoku.nn.activation_kernel import KINDS, linear_activation  # noqa: E402
from chumoku.nn.attention import Attention, AttentionContext  # noqa: E402
from chumoku.nn.dropout_kernel import STEPS, draw_mask  # noqa: E402
from chumoku.nn.feedforward import ACTIVATIONS, FeedForward  # noqa: E402
from chumoku.nn.joined_attention_kernel import attend_joined_tiles, attend_source_tiles  # noqa: E402
from chumoku.nn.joined_projection_kernel import join_gradients, project_heads  # noqa: E402
from chumoku.nn.norm_kernel import add_norm_rows, rms_norm_rows  # noqa: E402
from chumoku.nn.norms import layer_norm, rms_norm  # noqa: E402
from chumoku.nn.packed_kernels import attend_tiles  # noqa: E402
from chumoku.nn.packed_tiles import cut_tiles  # noqa: E402
from chumoku.nn.packing import make_packing  # noqa: E402
from chumoku.nn.positions import Rotation, rotate  # noqa: E402
from chumoku.nn.relu_kernel import multiply_where_positive, relu_feedforward  # noqa: E402
from chumoku.nn.residual import PendingSum  # noqa: E402
from chumoku.training.compiler_fallbacks import register_fallbacks  # noqa: E402
from chumoku.training.loss_kernel import linear_losses, token_losses  # noqa: E402
from chumoku.training.loss_kernel_fp8 import (  # noqa: E402
    GRADIENT_SCALE,
    linear_losses_fp8,
    losses_and_gradients,
)


@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("vocabulary", [2, 97, 4099])  # the last needs two blocks
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
@pytest.mark.parametrize(("vocabulary", "smoothing"), [(97, 0.0), (4099, 0.13)])  # the second needs two blocks
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
    for (ours, formula), rounded in zip(zip(*found, strict=True), (False, True, True, True), strict=False):
        assert ours.shape == formula.shape
        difference = (ours.float() - formula.float()).norm() / formula.float().norm()
        assert (1e-3 < difference < 0.1) if rounded else (difference < 0.004), "only gradients have 8 bits"


def test_the_gradient_in_8_bits_is_rounded_and_stored_twice():
    torch.manual_seed(0)
    bf16 = {"device": DEVICE, "dtype": torch.bfloat16}
    x, weight = torch.randn(144, 48, **bf16), 0.1 * torch.randn(197, 48, **bf16)  # small logits: in bf16
    labels = torch.randint(197, (144,), device=DEVICE)  # their last digit must not matter
    _, gradient, transposed = losses_and_gradients(x, weight, None, labels, 0.0)
    assert torch.equal(gradient.view(torch.uint8), transposed.view(torch.uint8).T)
    logits = (x.float() @ weight.float().T).bfloat16().float()
    expected = logits.softmax(-1) - F.one_hot(labels, 197)
    found = gradient.float() / GRADIENT_SCALE
    assert not found[:, 197:].any()
    errors = found[:, :197] / expected - 1
    assert (errors.abs() <= 0.26).all()  # 2 bits of mantissa: a quarter
    mantissas = 2 * expected.frexp().mantissa.abs()
    for least in (1.03, 1.1, 1.17, 1.28, 1.35, 1.42, 1.6, 1.85):  # the nearest number would be wrong in the same way
        chosen = errors[(mantissas > least) & (mantissas < least + 0.05)]
        assert len(chosen) > 500
        assert chosen.mean().abs() < 5 * 0.125 / len(chosen) ** 0.5


@pytest.mark.parametrize(
    "op",
    [
        lambda x, weight, gamma, labels: rms_norm_rows(x, gamma, 1e-5),
        lambda x, weight, gamma, labels: add_norm_rows(x, x, gamma, gamma, gamma, labels, 6554, 1e-5, True),
        lambda x, weight, gamma, labels: (linear_activation(x, weight, None, "gelu"),),
        lambda x, weight, gamma, labels: (linear_activation(x, weight, None, "relu"),),
        lambda x, weight, gamma, labels: relu_feedforward(x, weight, None, weight.T, None),
        lambda x, weight, gamma, labels: multiply_where_positive(x, weight.T, x @ weight.T, biased=True),
        lambda x, weight, gamma, labels: join_gradients(*(x.view(x.shape[0], 1, 1, 5),) * 3)[:1],
        lambda x, weight, gamma, labels: token_losses(x, labels, 0.0),
        lambda x, weight, gamma, labels: linear_losses(x, weight, None, labels, 0.0),
    ],
)
def test_the_number_of_rows_stays_a_variable(op):
    """Where it became a number, code for batches of many shapes was compiled again for each of them."""
    shapes = ShapeEnv()
    mode, rows = FakeTensorMode(shape_env=shapes), StatelessSymbolicContext([DimDynamic.DYNAMIC])
    table = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.zeros(7, 5), symbolic_context=table)
    labels = mode.from_tensor(torch.zeros(7, dtype=torch.int64), symbolic_context=rows)
    with mode:
        found = op(x, torch.empty(13, 5), torch.empty(5), labels)
    assert all(isinstance(each.shape[0], torch.SymInt) for each in found)
    assert not shapes.replacements


def test_the_compiler_knows_our_operators():
    """Where it did not, PyTorch 2.11 wrote the computations of their inputs as text, which doubles with every layer."""
    from torch._inductor.lowering import lowerings, maybe_layout_constraints

    definition = re.compile(r'custom_op\("(chumoku::\w+)"')
    names = [name for file in SOURCES.rglob("*.py") for name in definition.findall(file.read_text(encoding="utf-8"))]
    assert len(names) > 20
    register_fallbacks()
    for name in names:
        operator = getattr(torch.ops.chumoku, name.removeprefix("chumoku::")).default
        assert operator in lowerings, name
        assert maybe_layout_constraints(operator) is not None, "strides stay as they are without the compiler"


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


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_with_their_product(kind, biased):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((67, 7), (263, 7), (263,)))  # several blocks
    assert_equal_with_gradients(
        lambda x, weight, bias=None: linear_activation(x, weight, bias, kind),
        lambda x, weight, *bias: ACTIVATIONS[kind].function(F.linear(x, weight, *bias)),
        *(x, weight, bias)[: 2 + biased],
    )


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_feedforward_is_the_same_with_the_kernel(kind, biased, monkeypatch):
    torch.manual_seed(0)
    feed, x = FeedForward(7, 29, kind=kind, bias=biased).to(DEVICE), torch.randn(2, 5, 7, device=DEVICE)
    for parameter in feed.parameters():
        torch.nn.init.normal_(parameter)
    expected = feed(x)
    monkeypatch.setattr(FeedForward, "_has_kernel", lambda self, x: True)
    torch.testing.assert_close(feed(x), expected, atol=1e-4 if DEVICE.type == "cpu" else 5e-2, rtol=1e-3)


@pytest.mark.parametrize("biased", [False, True])
def test_a_feedforward_with_relu(biased, monkeypatch):
    """Several blocks, which are not full, and fewer programs than blocks."""
    if DEVICE.type == "cuda" and not relu_kernel.BULK_COPIES:
        pytest.skip("This GPU does not copy blocks of tensors.")
    monkeypatch.setattr(relu_kernel, "ROWS", 64)
    monkeypatch.setattr(relu_kernel, "COLUMNS", 64)
    monkeypatch.setattr(relu_kernel, "_programs", lambda device: 3)
    torch.manual_seed(0)
    shapes = ((71, 88), (136, 88), (88, 136), (136,), (88,))
    x, up, down, up_bias, down_bias = (torch.randn(*shape, device=DEVICE) / 8 for shape in shapes)
    assert_equal_with_gradients(
        lambda x, up, down, a=None, b=None: relu_feedforward(x, up, a, down, b)[0],
        lambda x, up, down, a=None, b=None: F.linear(F.linear(x, up, a).relu(), down, b),
        *(x, up, down, up_bias, down_bias)[: 3 + 2 * biased],
    )


@pytest.fixture
def few_programs(monkeypatch):
    """Fewer programs than blocks of rows, but more than one."""
    monkeypatch.setattr(activation_kernel, "PROGRAMS", 4)
    monkeypatch.setattr(joined_projection_kernel, "PROGRAMS", 7)
    monkeypatch.setattr(norm_kernel, "_programs", lambda width: 4)


@pytest.mark.parametrize(("rows", "width", "programs"), [(71, 7, 4), (2, 43, None), (11, 263, 4), (3, 16_411, None)])
def test_rms_norm(rows, width, programs, monkeypatch):
    """Of 5, 1, 6 and 3 blocks of rows. On a GPU, the last are too wide to be loaded ahead."""
    if programs is not None:
        monkeypatch.setattr(norm_kernel, "_programs", lambda width: programs)
    torch.manual_seed(0)
    x, gamma = torch.randn(rows, width, device=DEVICE), torch.randn(width, device=DEVICE)
    assert_equal_with_gradients(
        lambda x, gamma: rms_norm_rows(x, gamma, 1e-5)[0], lambda x, gamma: rms_norm(x, gamma, 1e-5), x, gamma
    )


def test_norms_of_transposed_tensors_and_gradients():
    torch.manual_seed(0)
    x, f = (torch.randn(43, 7, device=DEVICE).T for _ in range(2))
    gamma, seed = torch.randn(43, device=DEVICE), torch.tensor([3], device=DEVICE)
    assert_equal_with_gradients(
        lambda x, gamma: rms_norm_rows(x, gamma, 1e-5)[0].T, lambda x, gamma: rms_norm(x, gamma, 1e-5).T, x, gamma
    )
    assert_equal_with_gradients(
        lambda x, f, gamma: torch.stack(add_norm_rows(x, f, None, gamma, None, seed, 0, 1e-5, True)[:2]).mT,
        lambda x, f, gamma: torch.stack([x + f, layer_norm(x + f, gamma, None, 1e-5)]).mT,
        *(x, f, gamma),
    )


@pytest.mark.parametrize("alone", [False, True])
def test_norms_of_16_bits_compute_in_32(alone):
    """In float16, because Triton's interpreter does not round to the nearest bf16."""
    torch.manual_seed(0)
    x, f = (torch.randn(67, 43, device=DEVICE, dtype=torch.float16) for _ in range(2))
    gamma, seed = torch.randn(43, device=DEVICE, requires_grad=True), torch.tensor([3], device=DEVICE)
    if alone:
        total, (y, roots) = x, rms_norm_rows(x, gamma, 1e-5)
        centered = total.double()
    else:
        total, y, means, roots = add_norm_rows(x, f, None, gamma, None, seed, 0, 1e-5, True)
        assert torch.equal(total, (x.float() + f.float()).half())
        torch.testing.assert_close(means.double(), total.double().mean(1), atol=1e-6, rtol=0)
        centered = total.double() - total.double().mean(1, keepdim=True)
    exact = (centered.square().mean(1) + 1e-5).rsqrt()
    torch.testing.assert_close(roots.double(), exact, atol=0, rtol=1e-5)
    normalized = centered * exact[:, None]
    assert (y == (normalized * gamma).half()).double().mean() > 0.99  # the norm of the sum as it is stored
    gradient = torch.randn_like(y)
    found = torch.autograd.grad(y, gamma, gradient)[0]
    torch.testing.assert_close(found.double(), (gradient * normalized).sum(0), atol=1e-4, rtol=1e-4)


def gradients_of_norms(x, gamma, roots, seed):
    """The operators of the backward pass, and inputs for them."""
    yield norm_kernel.differentiate_norm, (x, gamma, roots, x)
    for dropped in (0, 6554):
        yield norm_kernel.differentiate_add_norm, (x, gamma, seed, roots, roots, x, x, dropped, True, True, True)


def test_the_compiler_knows_the_shapes_of_the_gradients_of_norms():
    x, gamma, roots = (torch.zeros(*shape, device=DEVICE) for shape in ((7, 13), (13,), (7,)))
    for operator, inputs in gradients_of_norms(x, gamma, roots, torch.tensor([3], device=DEVICE)):
        assert torch.library.opcheck(operator, inputs, test_utils="test_faketensor") == {"test_faketensor": "SUCCESS"}


def test_gradients_of_norms_where_the_width_is_a_variable():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    both = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])
    x = mode.from_tensor(torch.zeros(7, 13), symbolic_context=both)
    with mode:
        for operator, inputs in gradients_of_norms(x, torch.empty(13), torch.empty(7), torch.empty(1)):
            *_, parts = operator(*inputs)
            assert parts.shape[-1] == 13


@pytest.mark.parametrize("width", [3, 130, 1_030, 4_096, 5_120, 8_192, 16_384, 40_000])
def test_rows_that_are_loaded_ahead_fit_into_the_shared_memory_of_small_gpus(width):
    """There is room for two blocks of rows of each of three tensors, in 16 bits; Triton needs up to 300 bytes more."""
    sizes, ahead = norm_kernel._sizes(width, 0), norm_kernel._stages(width) - 1
    assert ahead * 3 * 2 * sizes["ROWS"] * sizes["PADDED"] <= 101_376 - 300


def draw_factors(rows, width, seed, dropped):
    """What the kernel multiplies f by: x + f is this factor for x = 0 and f = 1."""
    ones = torch.ones(rows, width, device=DEVICE)
    return add_norm_rows(0 * ones, ones, None, ones[0], None, seed, dropped, 1e-5, False)[0]


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("dropped", [0, 20_011])
@pytest.mark.parametrize("kind", ["rms", "rms and bias", "layer", "layer and bias", "layer without shift, and bias"])
@pytest.mark.parametrize(("rows", "width"), [(67, 5), (3, 43), (11, 263), (5, 3)])  # 5, 1, 6 and 1 blocks of rows
def test_residual_sum_with_dropout_and_norm(rows, width, kind, dropped):
    torch.manual_seed(0)
    x, f = (torch.randn(rows, width, device=DEVICE) for _ in range(2))
    seed, centered = torch.tensor([3], device=DEVICE), "layer" in kind
    vectors = {"gamma": torch.randn(width, device=DEVICE)}
    if "bias" in kind:
        vectors["bias"] = torch.randn(width, device=DEVICE)
    if kind in ("layer", "layer and bias"):
        vectors["beta"] = torch.randn(width, device=DEVICE)
    factors = draw_factors(rows, width, seed, dropped)
    assert (factors == 1).all() if dropped == 0 else len(factors.unique()) == 2

    def formula(x, f, *given):
        found = dict(zip(vectors, given, strict=True))
        gamma, beta = found["gamma"], found.get("beta")
        total = x + factors * (f + found.get("bias", 0))
        return torch.cat([total, layer_norm(total, gamma, beta, 1e-5) if centered else rms_norm(total, gamma, 1e-5)])

    def ours(x, f, *given):
        found = dict(zip(vectors, given, strict=True))
        vector = (found.get("bias"), found["gamma"], found.get("beta"))
        return torch.cat(add_norm_rows(x, f, *vector, seed, dropped, 1e-5, centered)[:2])

    assert_equal_with_gradients(ours, formula, x, f, *vectors.values())


def test_a_residual_sum_drops_the_given_share_without_a_pattern():
    rows, width, dropped = 211, 191, 6554
    first, again, other = (
        draw_factors(rows, width, torch.tensor([seed], device=DEVICE), dropped).double() for seed in (3, 3, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    p, count = dropped / STEPS, rows * width
    for factors in (first, other):
        kept = factors > 0
        torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / (1 - p)), atol=1e-6, rtol=0)
        assert abs(1 - kept.double().mean() - p) < 5 * (p * (1 - p) / count) ** 0.5
        for row, column in ((0, 1), (0, 2), (0, 4), (0, 8), (1, 0), (4, 0)):  # the first three share a random word
            both = (~kept[row:, column:] & ~kept[: rows - row, : width - column]).double().mean()
            assert abs(both - p * p) < 5 * (p * p / count) ** 0.5


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("changes", [{"norm": "rms"}, {"norm": "layer"}, {"norm": "layer", "experts": 3}])
def test_a_model_is_the_same_with_sums_and_norms_in_one_kernel(changes, monkeypatch):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 2, "feedforward_width": 29, "encoder_layers": 2, "layers": 3, "context": 31}
    config = preset("transformer-base", vocabulary=97, placement="pre", **sizes, **changes)
    model = build(config).to(DEVICE).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases are zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    source, target = (torch.randint(97, (2, length), device=DEVICE) for length in (7, 11))
    found = []
    for deferred in (False, True):
        if deferred:
            monkeypatch.setattr(Stack, "_defer_sums", lambda self, x: PendingSum(x))
        logits = model(source, target).logits
        found.append((logits, *torch.autograd.grad(logits.sin().sum(), model.parameters())))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-4 if DEVICE.type == "cpu" else 5e-2, rtol=1e-3)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_joined_attention_equals_its_parts(causal, biased, rotated):
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 5, 18, 89, 101], dtype=torch.int32, device=DEVICE)
    packing, angles = make_packing(starts, 101, starts, 101), torch.randn(101, 8, device=DEVICE)
    tiles = cut_tiles(starts, 101, starts, 101)
    rotation = Rotation(angles.cos(), angles.sin(), "half")
    x, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((101, 7), (96, 7), (96,)))

    def turn(part):
        return rotate(part.transpose(0, 1), rotation).transpose(0, 1) if rotated else part

    def formula(x, weight, *bias):
        query, key, value = F.linear(x, weight / 2, *bias).view(101, 3, 2, 16).unbind(1)
        return attend_tiles(turn(query), turn(key), value, *packing[2:4], tiles, causal)[0]

    def ours(x, weight, bias=None):
        rows, angles = (packing.query_numbers, tiles), rotation[:2] if rotated else (None, None)
        return attend_joined_tiles(x, weight / 2, bias, *angles, *rows, 2, causal)[0]

    assert_equal_with_gradients(ours, formula, *(x, weight, bias)[: 2 + biased])


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize(("heads", "kv_heads"), [(23, 23), (26, 2)])  # 299 columns of queries, 23 of keys
def test_heads_of_one_product(heads, kv_heads):
    torch.manual_seed(0)
    width = (heads + 2 * kv_heads) * 13
    x, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((3, 37, 7), (width, 7), (width,)))

    def join(query, key, value):  # gradients with different strides: a query's is contiguous, a value's is not
        return torch.cat([(2 * query).flatten(), key.transpose(1, 2).sin().flatten(), value.transpose(2, 3).flatten()])

    def formula(x, weight, bias):
        parts = F.linear(x, weight, bias).split([heads * 13, kv_heads * 13, kv_heads * 13], dim=-1)
        return join(*(part.view(3, 37, -1, 13).transpose(1, 2) for part in parts))

    def ours(x, weight, bias):
        return join(*project_heads(x, weight, bias, head_width=13, kv_width=kv_heads * 13))

    assert_equal_with_gradients(ours, formula, x, weight, bias)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_is_the_same_with_joined_heads(biased, rotated, monkeypatch):
    """Only projections with biases, whose heads nothing changes, have a kernel."""
    torch.manual_seed(0)
    attention = Attention(26, 6, kv_heads=3, head_width=14, bias=biased).to(DEVICE)
    x, angles = torch.randn(2, 11, 26, device=DEVICE), torch.randn(11, 7, device=DEVICE)
    context = AttentionContext(causal=True, rotation=Rotation(angles.cos(), angles.sin(), "half") if rotated else None)
    joined, found = [], []
    usual = joined_projection_kernel.project_heads
    monkeypatch.setattr(joined_projection_kernel, "project_heads", lambda *a, **k: joined.append(1) or usual(*a, **k))
    for fused in (False, True):
        monkeypatch.setattr(Attention, "_can_fuse_projections", lambda self, fused=fused: fused)
        monkeypatch.setattr(joined_attention, "has_kernels", lambda x: True)
        output = attention(x, context=context)
        found.append((output, *torch.autograd.grad(output.sin().sum(), attention.parameters())))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-4 if DEVICE.type == "cpu" else 5e-3, rtol=1e-3)
    assert len(joined) == int(biased and not rotated)


def test_attention_to_joined_keys_and_values_equals_its_parts():
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 5, 18, 89, 101], dtype=torch.int32, device=DEVICE)
    others = torch.tensor([0, 7, 11, 11, 59, 131], dtype=torch.int32, device=DEVICE)
    packing = make_packing(starts, 101, others, 131)
    rows = (packing.query_numbers, packing.key_numbers, cut_tiles(starts, 101, others, 131))
    query, joined = torch.randn(101, 3, 16, device=DEVICE), torch.randn(131, 2, 3, 16, device=DEVICE)
    assert_equal_with_gradients(
        lambda query, joined: attend_source_tiles(query, joined, *rows)[0],
        lambda query, joined: attend_tiles(query, *joined.unbind(1), *rows, False)[0],
        *(query, joined),
    )
