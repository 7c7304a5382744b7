"""Properties of adapters in every kind of model: new adapters change nothing, and everything can be undone."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext

import laws
import pytest
import torch
from cells import CELLS, KINDS, Cell, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import distance, logits_of, tokens
from torch import Tensor, nn

from chumoku import lora
from chumoku.config import parse_settings
from chumoku.decoding.engines import gpu
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.native import build as native_build
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.engines.unmodified import modification
from chumoku.errors import AddressError, ConfigError, ShapeError, UsageError
from chumoku.lora import LoraSettings
from chumoku.lora.adapters import adaptable_matrices, adapted_modules
from chumoku.models.build import build
from chumoku.models.count import count
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.nn.lora import Adapted, LowRank
from chumoku.nn.quantized import QuantizedLinear

EXACT, BROKEN = 1e-10, 1e-4
EVERYTHING = ["**"]

cells = st.sampled_from(CELLS)
seeds = st.integers(0, 2**16)
choices = st.builds(
    LoraSettings,
    rank=st.sampled_from([1, 2, 5, 11]),
    alpha=st.sampled_from([0.5, 3.0, 16.0]),
    stabilized=st.booleans(),
    dora=st.booleans(),
    targets=st.sampled_from([None, EVERYTHING, ["**.attention.*", "**.{attention,cross_attention}.output"]]),
)
some = settings(max_examples=20, deadline=None)


def new_model(cell: Cell, dtype: torch.dtype = torch.float64) -> Model:
    return copy.deepcopy(model_of(cell, dtype))


def randomize_adapter(model: Model, seed: int) -> None:
    """Fill the active adapter with random numbers, as if it were trained."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in lora.trainable_parameters(model).items():
            noise = torch.rand(parameter.shape, generator=random, dtype=parameter.dtype) - 0.5
            parameter.copy_(parameter * (1.2 + noise) if name.endswith("magnitude") else noise / 3)


def attach_trained(model: Model, settings: LoraSettings, seed: int, name: str = "default") -> Model:
    lora.attach(model, settings, name=name, seed=seed)
    randomize_adapter(model, seed)
    return model


def answer(model: Model, seed: int = 0) -> Tensor:
    with torch.no_grad():
        return logits_of(model, tokens(2, 7, seed))


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def states_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# ---- one adapted matrix


@given(seed=seeds, rank=st.integers(1, 13), dora=st.booleans(), bias=st.booleans(), stabilized=st.booleans())
@some
def test_fast_forward_equals_formula_with_gradients(
    seed: int, rank: int, dora: bool, bias: bool, stabilized: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    base = nn.Linear(7, 5, bias=bias, dtype=torch.float64)
    module = Adapted(base)
    low = LowRank(7, 5, rank, alpha=3.0, stabilized=stabilized, magnitude=dora, dtype=torch.float64)
    module.adapters["one"] = low.initialize(base.weight, random)
    module.active = "one"
    with torch.no_grad():
        low.b.normal_(generator=random)
    x = torch.randn(2, 3, 7, generator=random, dtype=torch.float64, requires_grad=True)
    gradients = []
    for form in (module.forward, module.plain):
        y = form(x)
        wanted = [x, *low.parameters()]
        gradients.append((y, *torch.autograd.grad((y * torch.arange(5.0)).sin().sum(), wanted)))
    for quick, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(quick, plain, rtol=1e-10, atol=1e-10)
    low.alpha *= 1.001
    assert distance(module(x), gradients[1][0]) > BROKEN / 10, "seen to fail"


def test_the_formula_by_hand() -> None:
    """y = m ⊙ (W + s B A) x / ‖W + s B A‖ + b with numbers that can be checked on paper."""
    base = nn.Linear(2, 2)
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        base.bias.copy_(torch.tensor([10.0, 20.0]))
    module = Adapted(base)
    low = LowRank(2, 2, 1, alpha=2.0, magnitude=True).initialize(base.weight)
    assert low.magnitude is not None
    assert low.magnitude.tolist() == [1.0, 2.0]
    with torch.no_grad():
        low.a.copy_(torch.tensor([[0.0, 1.0]]))
        low.b.copy_(torch.tensor([[1.0], [0.0]]))
        low.magnitude.copy_(torch.tensor([3.0, 2.0]))
    module.adapters["one"], module.active = low, "one"
    x = torch.tensor([1.0, 1.0])
    # Row 0 is [1, 2] with length √5, scaled to length 3; row 1 is unchanged.
    torch.testing.assert_close(module(x), torch.tensor([10 + 3 * 3 / math.sqrt(5), 22.0]))
    module.adapters["one"].magnitude = None
    torch.testing.assert_close(module(x), torch.tensor([13.0, 22.0]))


def test_zero_row_stays_zero() -> None:
    base = nn.Linear(3, 2)
    with torch.no_grad():
        base.weight[0] = 0
    module = Adapted(base)
    module.adapters["one"], module.active = LowRank(3, 2, 1, alpha=1.0, magnitude=True).initialize(base.weight), "one"
    x = torch.randn(5, 3)
    assert torch.equal(module(x), base(x))


def test_adapted_module_has_no_weight() -> None:
    module = Adapted(nn.Linear(3, 2))
    assert not hasattr(module, "weight")
    assert not hasattr(module, "bias")
    assert (module.in_features, module.out_features) == (3, 2)
    with pytest.raises(ShapeError, match="An adapter needs a rank, inputs and outputs of 1 or more, not 0"):
        LowRank(3, 2, 0, alpha=1.0)


def test_initial_a_is_that_of_a_linear_layer() -> None:
    low = LowRank(400, 7, 64, alpha=1.0).initialize(torch.zeros(7, 400), torch.Generator().manual_seed(1))
    assert float(low.a.detach().abs().max()) <= 400**-0.5
    assert float(low.a.detach().std()) == pytest.approx(400**-0.5 / math.sqrt(3), rel=0.02)
    assert not low.b.any()


# ---- properties of models


@given(cell=cells, choice=choices, seed=seeds)
@some
def test_new_adapter_changes_nothing(cell: Cell, choice: LoraSettings, seed: int) -> None:
    model = new_model(cell)
    before = answer(model)
    lora.attach(model, choice, seed=seed)
    assert torch.equal(answer(model), before)
    randomize_adapter(model, seed)
    assert distance(answer(model), before) > BROKEN, "seen to fail"
    lora.set_adapter(model, None)
    assert torch.equal(answer(model), before)


@given(cell=cells, choice=choices, seed=seeds, single=st.booleans())
@some
def test_merged_equals_attached(cell: Cell, choice: LoraSettings, seed: int, single: bool) -> None:
    model = attach_trained(new_model(cell, torch.float32 if single else torch.float64), choice, seed)
    expected, before = answer(model), copy_state(model)
    limit = 1e-5 if single else EXACT
    apart = lora.merged_copy(model)
    assert not any(isinstance(module, Adapted) for module in apart.modules())
    assert states_equal(copy_state(model), before)
    assert distance(answer(apart), expected) < limit
    lora.merge(model)
    assert distance(answer(model), expected) < limit
    assert torch.equal(answer(lora.merged_copy(model)), answer(model))
    lora.unmerge(model)
    for low in adapted_modules(model).values():
        low.adapters["default"].alpha *= 1.5
    assert distance(answer(apart), answer(model)) > BROKEN / 10, "seen to fail"


@given(cell=cells, choice=choices, seed=seeds)
@some
def test_unmerge_restores_everything(cell: Cell, choice: LoraSettings, seed: int) -> None:
    model = attach_trained(new_model(cell, torch.float32), choice, seed)
    before, modules, expected = copy_state(model), dict(model.named_modules()), answer(model)
    weights = {path: module.base.weight for path, module in adapted_modules(model).items()}
    lora.merge(model)
    assert not any(isinstance(module, Adapted) for module in model.modules())
    changed = [path for path in weights if not torch.equal(model.get_submodule(path).weight, weights[path])]
    assert changed == list(weights)
    lora.unmerge(model)
    assert states_equal(copy_state(model), before)
    assert dict(model.named_modules()) == modules
    assert all(adapted_modules(model)[path].base.weight is weight for path, weight in weights.items())
    assert torch.equal(answer(model), expected)


@given(cell=cells, choice=choices, other=choices, seed=seeds)
@some
def test_set_adapter_equals_reloading(cell: Cell, choice: LoraSettings, other: LoraSettings, seed: int) -> None:
    both = attach_trained(attach_trained(new_model(cell), choice, seed, "one"), other, seed + 1, "two")
    assert lora.list_adapters(both) == ["one", "two"]
    answers = {}
    for name, one, number in (("one", choice, seed), ("two", other, seed + 1), ("one", choice, seed)):
        lora.set_adapter(both, name)
        answers[name] = answer(both)
        assert torch.equal(answers[name], answer(attach_trained(new_model(cell), one, number)))
        assert lora.active_adapter(both) == name
        assert all(f".adapters.{name}." in path for path in lora.trainable_parameters(both))
    assert not torch.equal(answers["one"], answers["two"]), "seen to fail"


@given(cell=cells, choice=choices, seed=seeds)
@some
def test_only_the_adapter_trains(cell: Cell, choice: LoraSettings, seed: int) -> None:
    model = attach_trained(new_model(cell), choice, seed)
    base = {name: tensor for name, tensor in copy_state(model).items() if ".adapters." not in name}
    trained = lora.trainable_parameters(model)
    assert {name for name in trained if ".adapters.default." not in name} == set()
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        logits_of(model, tokens(2, 7, step)).square().mean().backward()
        optimizer.step()
    graded = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert graded == set(trained)
    assert all(not torch.equal(parameter, before[name]) for name, parameter in trained.items())
    assert states_equal({name: tensor for name, tensor in copy_state(model).items() if name in base}, base)


@pytest.mark.sample(3)
@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dora", [False, True])
def test_quantized_base_is_not_changed(precision: str, kind: str, dora: bool) -> None:
    config = Cell(kind).config(width=96, feedforward_width=64)
    model = to_precision(build(config), precision)
    before, plain = copy_state(model), answer(model)
    lora.attach(model, LoraSettings(rank=3, dora=dora, targets=EVERYTHING), seed=5)
    assert torch.equal(answer(model), plain)
    model.train()
    optimizer = torch.optim.AdamW(lora.trainable_parameters(model).values(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (logits_of(model, tokens(7, 11)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    model.eval()
    assert distance(answer(model), plain) > BROKEN
    with pytest.raises(UsageError, match=r"are quantized.*float32 model and merge it there"):
        lora.merge(model)
    with pytest.raises(UsageError, match="are quantized"):
        lora.merged_copy(model)
    lora.detach(model)
    assert states_equal(copy_state(model), before)
    assert torch.equal(answer(model), plain)


@given(cell=st.sampled_from([cell for cell in CELLS if cell.kind != "encoder"]), choice=choices, seed=seeds)
@some
def test_cached_decoding_equals_full_pass(cell: Cell, choice: LoraSettings, seed: int) -> None:
    assert laws.cache_error(attach_trained(new_model(cell), choice, seed), 7, seed) < EXACT


def test_cache_test_detects_missing_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attach_trained(new_model(Cell("decoder")), LoraSettings(targets=EVERYTHING), 3)
    real = Adapted.forward
    monkeypatch.setattr(Adapted, "forward", lambda self, x: self.base(x) if x.shape[1] == 1 else real(self, x))
    assert laws.cache_error(model, 7, 3) > BROKEN


@pytest.mark.parametrize("dora", [False, True])
def test_dropout_only_in_training(dora: bool) -> None:
    model, settings = new_model(Cell("decoder")).train(), LoraSettings(dropout=0.5, dora=dora)
    base = answer(model)
    lora.attach(model, settings)
    assert torch.equal(answer(model), base), "what the base sees is never dropped"
    randomize_adapter(model.eval(), 3)
    quiet = answer(model)
    assert torch.equal(answer(model), quiet)
    model.train()
    torch.manual_seed(1)
    one, two = answer(model), answer(model)
    assert not torch.equal(one, two)
    assert not torch.equal(one, quiet)
    lora.set_adapter(model, None)
    assert torch.equal(answer(model), base)


def test_dropout_keeps_the_mean() -> None:
    """The mean over many draws is the adapter's output without dropout; W x is never dropped."""
    base = nn.Linear(7, 5)
    module = Adapted(base)
    module.adapters["one"] = LowRank(7, 5, 3, alpha=6.0, dropout=0.3).initialize(base.weight)
    module.active = "one"
    with torch.no_grad():
        module.adapters["one"].b.normal_(generator=torch.Generator().manual_seed(3))
        x = torch.randn(1, 7, generator=torch.Generator().manual_seed(5))
        quiet = module.eval()(x)
        torch.manual_seed(7)
        drawn = module.train()(x.expand(40_000, 7)) - base(x)
    torch.testing.assert_close(drawn.mean(0), (quiet - base(x))[0], atol=0.03, rtol=0.02)


@given(cell=cells, choice=choices, seed=seeds)
@some
def test_detach_restores_the_model(cell: Cell, choice: LoraSettings, seed: int) -> None:
    model = new_model(cell)
    frozen = next(name for name, _ in model.named_parameters())
    model.get_parameter(frozen).requires_grad_(False)
    modules, parameters, before = dict(model.named_modules()), dict(model.named_parameters()), copy_state(model)
    attach_trained(model, choice, seed)
    assert not any(parameter.requires_grad for parameter in parameters.values())
    if seed % 2:
        lora.merge(model)
    lora.detach(model)
    assert dict(model.named_modules()) == modules
    assert all(model.get_parameter(name) is parameter for name, parameter in parameters.items())
    assert [name for name, parameter in parameters.items() if not parameter.requires_grad] == [frozen]
    assert states_equal(copy_state(model), before)
    assert lora.list_adapters(model) == []
    lora.detach(model)


def test_seeds_and_copies() -> None:
    one, two, three = (new_model(Cell("encoder-decoder")) for _ in range(3))
    for model, seed in ((one, 1), (two, 1), (three, 2)):
        lora.attach(model, LoraSettings(), seed=seed)
    assert states_equal(lora.adapter_tensors(one), lora.adapter_tensors(two))
    assert not states_equal(lora.adapter_tensors(one), lora.adapter_tensors(three))
    other = copy.deepcopy(one)
    randomize_adapter(other, 3)
    lora.merge(other)
    assert lora.list_adapters(other) == lora.list_adapters(one) == ["default"]
    lora.unmerge(other)
    lora.detach(other)
    assert isinstance(one.get_submodule("decoder.blocks.0.attention.query"), Adapted), "a copy has its own"


# ---- targets


def test_targets_by_address() -> None:
    def beside(kind: str, *targets: str, **changes: object) -> list[str]:
        model = build(Cell(kind).config(**changes))
        lora.attach(model, LoraSettings(targets=list(targets) or None))
        return list(adapted_modules(model))

    both = [f"{stack}.blocks.{n}.attention.{p}" for stack in ("encoder",) for n in (0, 1) for p in ("query", "value")]
    assert beside("encoder") == both
    assert beside("decoder") == [path.replace("encoder", "decoder") for path in both]
    assert len(beside("encoder-decoder")) == 4 + 4 + 4
    assert beside("decoder", "decoder.blocks.1.attention.{query,output}", "decoder.blocks.*.feedforward.down") == [
        "decoder.blocks.0.feedforward.down",
        "decoder.blocks.1.attention.query",
        "decoder.blocks.1.attention.output",
        "decoder.blocks.1.feedforward.down",
    ]
    assert beside("encoder", "head.*") == ["head.transform"]
    routers = [f"decoder.blocks.{layer}.feedforward.router" for layer in (0, 1)]
    assert beside("decoder", "**.router", experts=3) == routers
    every = beside("encoder-decoder", "**")
    assert len(every) == 2 * (4 + 2) + 2 * (8 + 2)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "decoder.blocks.*.atention.query",
            r"decoder\.blocks\.\*\.atention\.query matches no matrix of this model\. Did you mean deco",
        ),
        ("decoder.embedding", "decoder.embedding matches no matrix .*; embedding tables, norms, logits"),
        ("head", "head matches no matrix"),
        ("decoder.norm", "decoder.norm matches no matrix"),
        ("encoder.**", "matches no matrix of this model"),
        ("decoder.{blocks", "are not balanced"),
    ],
)
def test_patterns_without_a_match(pattern: str, message: str) -> None:
    model = build(Cell("decoder").config(tie_output=False))
    with pytest.raises(AddressError, match=message):
        lora.attach(model, LoraSettings(targets=["**.query", pattern]))
    assert not adapted_modules(model)
    assert all(parameter.requires_grad for parameter in model.parameters()), "nothing happened"


def test_quantized_logits_are_not_adaptable() -> None:
    model = to_precision(build(Cell("decoder").config()), "int8")
    assert "head" not in adaptable_matrices(model)
    assert all(isinstance(module, QuantizedLinear) for module in adaptable_matrices(model).values())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"lora\.rank: 0 is too small"):
        parse_settings(LoraSettings, {"rank": 0}, prefix="lora.")
    with pytest.raises(ConfigError, match=r"it is called lora\.targets here"):
        parse_settings(LoraSettings, {"target_modules": ["q_proj"]}, prefix="lora.")
    with pytest.raises(ConfigError, match="targets"):
        LoraSettings(targets=[])
    assert parse_settings(LoraSettings, {"rank": 4, "alpha": 8, "targets": ["**"]}).patterns == ("**",)


# ---- use and misuse


def test_wrong_use_is_refused() -> None:
    model = new_model(Cell("decoder"))
    with pytest.raises(UsageError, match="nothing to merge"):
        lora.merge(model)
    with pytest.raises(UsageError, match="Nothing is merged"):
        lora.unmerge(model)
    with pytest.raises(UsageError, match=r"no adapter 'x'\. It has no adapters"):
        lora.set_adapter(model, "x")
    with pytest.raises(UsageError, match="Attach one first"):
        lora.adapter_tensors(model)
    for name in ("", "a.b", "keys", "training", "x" * 65, "../x"):
        with pytest.raises(UsageError, match="is not a valid adapter name"):
            lora.attach(model, LoraSettings(), name=name)
    assert all(parameter.requires_grad for parameter in model.parameters())
    attach_trained(model, LoraSettings(), 3, "one")
    with pytest.raises(UsageError, match="already has an adapter 'one'"):
        lora.attach(model, LoraSettings(), name="one")
    with pytest.raises(UsageError, match=r"no adapter 'two'\. It has one"):
        lora.set_adapter(model, "two")
    with pytest.raises(UsageError, match=r"Merge them first: lora\.merged"):
        to_precision(model, "int8")
    lora.merge(model)
    for doing in (lambda: lora.merge(model), lambda: lora.set_adapter(model, None)):
        with pytest.raises(UsageError, match="merged"):
            doing()
    with pytest.raises(UsageError, match="Call unmerge first"):
        lora.attach(model, LoraSettings(), name="two")
    assert lora.list_adapters(model) == ["one"]
    assert len(lora.adapter_tensors(model, "one")) == 8
    with pytest.raises(AttributeError, match="it has "):
        lora.nothing  # noqa: B018


def test_fast_engines_refuse_adapters() -> None:
    model = attach_trained(new_model(Cell("decoder"), torch.float32), LoraSettings(), 3)
    assert "is of class Adapted" in (modification(model) or "")
    # Without the native library there is no faster engine to miss, so there is no warning.
    with pytest.warns(UserWarning, match="is of class Adapted") if native_build.library() else nullcontext():
        assert isinstance(open_engine(model, rows=1, capacity=5), TorchEngine)
    assert "Adapted" in (gpu.unsupported(model) or "")
    lora.merge(model)
    assert gpu.unsupported(model) is None
    assert modification(model) is None
    engine, slow = (kind(model, rows=1, capacity=5) for kind in (open_engine, TorchEngine))
    for one in (engine, slow):
        one.add_rows(1)
    assert distance(engine.prefill([[1, 3]]), slow.prefill([[1, 3]])) < 1e-4


@pytest.mark.sample(1)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_compiled_training_uses_the_adapter(precision: str) -> None:
    """Compiled models join the three projections into one product, except if one has an adapter."""
    base = build(Cell("decoder").config(width=96, feedforward_width=64))
    model = attach_trained(to_precision(base, precision), LoraSettings(rank=3), 3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    given = tokens(2, 7)
    gradients = []
    for one in (model, compiled):
        model.zero_grad()
        logits = one(given).logits
        logits.square().mean().backward()
        gradients.append(
            (logits.detach(), *(parameter.grad for parameter in lora.trainable_parameters(model).values()))
        )
    for plain, quick in zip(*gradients, strict=True):
        torch.testing.assert_close(quick, plain, rtol=1e-4, atol=1e-5)
    lora.set_adapter(model, None)
    assert distance(model(given).logits, gradients[1][0]) > BROKEN, "seen to fail"


def test_memory_savings() -> None:
    model = new_model(Cell("decoder"))
    lora.attach(model, LoraSettings(rank=5, targets=["**.attention.query"]))
    trained, total = 2 * 5 * (30 + 30), count(model.config).parameters
    assert lora.memory_savings(model) == (trained, total, 12 * total - 16 * trained)
    assert trained == sum(parameter.numel() for parameter in lora.trainable_parameters(model).values())
    lora.set_adapter(model, None)
    assert lora.memory_savings(model) == (0, total, 12 * total)


def test_adapters_are_never_below_32_bits() -> None:
    model = to_precision(new_model(Cell("decoder"), torch.float32), "bf16")
    before = answer(model)
    lora.attach(model, LoraSettings(dora=True, targets=EVERYTHING))
    assert {tensor.dtype for tensor in lora.adapter_tensors(model).values()} == {torch.float32}
    assert torch.equal(answer(model), before)
    assert {part.kind for part in model.modules() if isinstance(part, QuantizedLinear)} == {"bf16"}
    randomize_adapter(model, 3)
    assert distance(answer(lora.merged_copy(model)), answer(model)) < 0.1
