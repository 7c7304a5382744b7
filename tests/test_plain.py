"""chumoku.plain(): the plain formulas run, and their results equal those of the fast code."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import runpy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import make_bundle
from cells import CELLS, KINDS, Cell, model_of, tokens
from commands import Ask
from faults import recipe_for
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import PLANTED_BUGS, Subjects
from rich.console import Console
from torch import Tensor

import chumoku
from chumoku import lora
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.doctor import examine
from chumoku.errors import ConfigError
from chumoku.lora.settings import LoraSettings
from chumoku.models.build import build
from chumoku.models.model import Model, Output
from chumoku.nn import attention, moe, norms
from chumoku.nn import plain as plain_module
from chumoku.nn.attention import Attention
from chumoku.nn.plain import describe_mode, plain, plain_formulas
from chumoku.training.distributed import World, wrap
from chumoku.training.objectives import Objective
from chumoku.training.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("quick_runs")


def call(model: Model, rows: int = 3, length: int = 7, *, masked: bool = False, seed: int = 0) -> Output:
    """Run any kind of model; with `masked`, each row has a different amount of padding."""
    target, source = tokens(rows, length, seed), tokens(rows, 5, seed + 1)
    real = torch.arange(length) < 1 + (torch.arange(rows)[:, None] + seed) % length
    output: Output
    if model.config.kind == "encoder-decoder":
        masks = {"source_mask": real[:, :1].expand(rows, 5), "target_mask": real} if masked else {}
        output = model(source, target, **masks)
    else:
        output = model(target, **({"mask": real} if masked else {}))
    return output


def answer(model: Model, **options: Any) -> Tensor:
    with torch.no_grad():
        logits = call(model, **options).logits
    assert logits is not None
    return logits


def train_step(model: Model, **options: Any) -> dict[str, Tensor]:
    """Run a training step; return the logits, the loss, gradients and buffers."""
    model = copy.deepcopy(model).train()
    output = call(model, **options)
    assert output.logits is not None
    loss = output.logits.square().mean()
    if output.losses is not None:
        loss = loss + output.losses.balance + output.losses.z
    loss.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"logits": output.logits.detach(), "loss": loss.detach(), **gradients, **dict(model.named_buffers())}


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=1e-9, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
        )


@settings(max_examples=20)
@given(st.sampled_from(CELLS), st.integers(1, 11), st.booleans(), st.integers(0, 99))
def test_plain_equals_fast_for_every_choice(cell: Cell, length: int, masked: bool, seed: int) -> None:
    model = model_of(cell)
    options = {"length": length, "masked": masked, "seed": seed}
    fast, fast_step = call(model, **options), train_step(model, **options)
    with plain():
        slow, plain_step = call(model, **options), train_step(model, **options)
    assert_close({"hidden": fast.hidden, "logits": fast.logits}, {"hidden": slow.hidden, "logits": slow.logits})
    assert_close(fast_step, plain_step)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_plain_equals_fast_in_16_bits(norm: str, dtype: torch.dtype) -> None:
    module = {"layer": norms.LayerNorm, "rms": norms.RMSNorm, "batch": norms.BatchNorm}[norm](13).to(dtype)
    x = 300 * torch.randn(3, 7, 13, generator=torch.Generator().manual_seed(1)).to(dtype)
    fast = module(x)
    with plain():
        slow = module(x)
    assert slow.dtype == dtype
    torch.testing.assert_close(slow, fast, rtol=2e-2, atol=2e-2)


Patch = Callable[[pytest.MonkeyPatch], object]


def omit_score_scale(patch: pytest.MonkeyPatch) -> None:
    usual = attention.compute_attention_weights
    patch.setattr(
        attention,
        "compute_attention_weights",
        lambda query, *rest, **how: usual(query * math.sqrt(query.shape[-1]), *rest, **how),
    )


def enlarge_values(patch: pytest.MonkeyPatch) -> None:
    usual = attention.attend
    patch.setattr(attention, "attend", lambda query, key, value, **how: usual(query, key, 99 * value, **how))


def divide_norm_by_variance(name: str) -> Patch:
    usual = getattr(norms, name)
    return lambda patch: patch.setattr(norms, name, lambda x, *rest, **how: usual(x, *rest, **how) / x.var())


def double_expert_sum(patch: pytest.MonkeyPatch) -> None:
    usual = moe.MixtureOfExperts.plain
    patch.setattr(moe.MixtureOfExperts, "plain", lambda self, x: 2 * usual(self, x))


CHANGES: dict[str, tuple[Cell, Patch]] = {
    "scores without √d": (Cell("decoder"), omit_score_scale),
    "larger values": (Cell("encoder-decoder"), enlarge_values),
    "layer norm by σ²": (Cell("decoder", norm="layer"), divide_norm_by_variance("layer_norm")),
    "rms norm by σ²": (Cell("encoder", norm="rms"), divide_norm_by_variance("rms_norm")),
    "batch norm by σ²": (Cell("encoder", norm="batch"), divide_norm_by_variance("batch_norm")),
    "twice the experts": (Cell("decoder", feedforward="experts"), double_expert_sum),
}


@pytest.mark.parametrize("title", CHANGES)
def test_a_changed_formula_changes_the_model(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, change = CHANGES[title]
    model = model_of(cell)
    fast = answer(model)
    with plain():
        before = answer(model)
        change(monkeypatch)
        after = answer(model)
    assert (after - before).abs().max() > 1e-3
    assert torch.equal(answer(model), fast), "the fast code does not run the formula"


def test_plain_is_per_context_and_thread() -> None:
    seen = []
    assert not plain_formulas()
    assert describe_mode() == "fast kernels"
    with plain():
        assert describe_mode() == "plain formulas"
        with plain(False):
            assert not plain_formulas()
            with plain():
                assert plain_formulas()
        assert plain_formulas()
        thread = threading.Thread(target=lambda: seen.append(plain_formulas()))
        thread.start()
        thread.join()
        with contextlib.suppress(ZeroDivisionError), plain(False):
            raise ZeroDivisionError
        assert plain_formulas()
    assert not plain_formulas()
    assert seen == [False]


def test_compiled_code_follows_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("decoder", kv_heads=1), layers=1)
    graphs = []
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    fast = answer(compiled)
    with plain():
        slow = answer(compiled)
        omit_score_scale(monkeypatch)
        torch.compiler.reset()
        changed = answer(compiled)
    torch.testing.assert_close(slow, fast)
    assert (changed - slow).abs().max() > 1e-3
    has = [any("scaled_dot_product" in str(node.target) for node in graph.graph.nodes) for graph in graphs]
    assert has == [True, False, False]


def test_switching_back_does_not_recompile() -> None:
    model = model_of(Cell("encoder"), layers=1)
    graphs = []
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    for _ in range(3):
        answer(compiled)
        with plain():
            answer(compiled)
            with plain(False):
                answer(compiled)
    assert len(graphs) == 2


def test_compiled_training_fuses_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("decoder"), layers=1)
    usual, calls = Attention.join_projections, []
    monkeypatch.setattr(Attention, "join_projections", lambda *parts: calls.append(1) or usual(*parts))
    for enabled, expected in ((True, 0), (False, 1)):
        torch.compiler.reset()
        with plain(enabled):
            logits = call(torch.compile(model, backend="eager")).logits
            assert logits is not None
            logits.square().mean().backward()
        assert bool(calls) == bool(expected)
    model.zero_grad()


def test_mixture_of_experts_exports_in_plain_mode() -> None:
    """torch.export cannot trace the fast sum, which depends on the number of tokens of each expert."""
    from torch.export import Dim, export

    model = model_of(Cell("decoder", feedforward="experts"), layers=1)
    shapes = {"tokens": {0: Dim("batch", max=61), 1: Dim("length", max=23)}}
    with plain():
        program = export(model, (tokens(3, 7),), dynamic_shapes=shapes, strict=False).module()
    torch.testing.assert_close(program(tokens(2, 11)).logits, model(tokens(2, 11)).logits)


def test_dropout_inside_attention_is_the_same_in_distribution() -> None:
    """Means over many samples agree, although other weights may be dropped."""
    torch.manual_seed(0)
    module = Attention(15, 3, kv_heads=1, dropout=0.3).double().train()
    x = torch.randn(1, 5, 15, dtype=torch.float64)
    with torch.no_grad():
        draws = {}
        for enabled in (False, True):
            with plain(enabled):
                draws[enabled] = module(x.expand(4000, -1, -1))
        with plain():
            still = module.eval()(x)
    spread = draws[False].std(0)
    assert (draws[True].std(0) / spread - 1).abs().max() < 0.1
    assert spread.min() > 0
    for found in draws.values():
        assert ((found.mean(0) - still[0]) / (spread / math.sqrt(4000))).abs().max() < 5


@pytest.mark.parametrize("cell", [Cell("decoder", feedforward="experts", kv_heads=1), Cell("encoder-decoder")], ids=str)
def test_plain_records_the_same_tensors(cell: Cell) -> None:
    model = model_of(cell)
    with chumoku.record(model) as fast, torch.no_grad():
        call(model)
    with plain():
        unseen = answer(model)
        with chumoku.record(model, debug=True) as slow, torch.no_grad():
            seen = call(model).logits
    assert torch.equal(seen, unseen)
    assert set(fast) == set(slow) == set(chumoku.addresses(model))
    for address in fast:
        torch.testing.assert_close(slow[address], fast[address])


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_train_in_plain_mode(dora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(model_of(Cell("decoder")))
    lora.attach(model, LoraSettings(rank=3, dora=dora))
    with torch.no_grad():
        for parameter in lora.trainable_parameters(model).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    fast = train_step(model)
    with plain():
        slow = train_step(model)
        assert fast.keys() == slow.keys()
        for name in fast:
            torch.testing.assert_close(slow[name], fast[name], rtol=1e-6, atol=1e-7)
        from chumoku.nn.lora import LowRank

        before = answer(model)
        monkeypatch.setattr(LowRank, "delta_weight", lambda self: 2 * self.scale * (self.b @ self.a))
        assert (answer(model) - before).abs().max() > 1e-4


def test_small_adapter_is_not_rounded_away_in_16_bits() -> None:
    from chumoku.nn.lora import Adapted, LowRank

    module = Adapted(torch.nn.Linear(6, 7, bias=False).to(torch.bfloat16))
    low = module.adapters["one"] = LowRank(6, 7, 1, alpha=1.0)
    module.active = "one"
    signs = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])
    with plain(), torch.no_grad():
        module.base.weight.fill_(1.0)
        low.a.copy_(signs)
        low.b.fill_(2**-11)  # rounded to 16 bits, W + B A equals W
        assert module(signs.to(torch.bfloat16)).tolist() == [[6 * 2**-11] * 7]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_decoding_runs_the_formulas(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = chumoku.load(make_bundle(tmp_path / "model", kind))

    def say() -> list[Any]:
        if kind == "decoder":
            return [
                list(pipeline.stream("one", max_new_tokens=11, temperature=0.0)),
                list(pipeline.stream("two", max_new_tokens=7, seed=3)),
            ]
        return [pipeline.translate(["one", "another"], beam=beam, max_new_tokens=11) for beam in (1, 3)]

    fast, calls = say(), []
    usual = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *given, **how: calls.append(1) or usual(*given, **how))
    monkeypatch.setattr(attention, "attend_fused", lambda *given, **how: pytest.fail("the fast code ran"))
    with plain():
        assert type(open_engine(pipeline.model, rows=1, capacity=5)) is TorchEngine
        assert say() == fast
    assert len(calls) > 2 * 11


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_recipe_key_plain(kind: str, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {}
    for name, changes in (("fast", {}), ("plain", {"plain": True}), ("changed", {"plain": True})):
        recipe = recipe_for(kind, corpora, tmp_path / name)
        recipe["train"] |= {"steps": 4, "samples": 0, **changes}
        recipe["schedule"] = {"kind": "constant"}
        if name == "changed":
            enlarge_values(monkeypatch)
        with (tmp_path / f"{name}.txt").open("w+") as file:
            trained = chumoku.train(recipe, console=Console(file=file, width=300))
        result = (tmp_path / f"{name}.txt").read_text()
        assert ("runs fast kernels." if name == "fast" else "runs plain formulas.") in result
        losses[name] = trained.best_loss
    assert losses["plain"] == pytest.approx(losses["fast"], rel=1e-4)
    assert losses["changed"] != pytest.approx(losses["plain"], rel=1e-3)
    assert not plain_formulas()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"activation_checkpointing": True}, {"compile": True}, {"compile": True, "activation_checkpointing": True}],
    ids=str,
)
def test_wrapped_training_runs_the_formulas(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **words: usual(module, backend="aot_eager", **words))
    torch.compiler.reset()
    batch = {"tokens": tokens(3, 7), "labels": tokens(3, 7, 1)}

    def gradients(how: dict[str, Any]) -> list[Tensor]:
        objective = Objective(build(Cell("decoder", feedforward="experts").config(layers=1)))
        module = wrap(objective, TrainSettings(**how), World(torch.device("cpu"))).train()
        torch.manual_seed(3)
        module(batch).backward()
        return [one.grad for one in objective.parameters() if one.grad is not None]

    with plain():
        expected = gradients({})
        for one, other in zip(expected, gradients(changes), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_recomputation_in_another_thread_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass on a GPU runs in another thread, which is not inside plain()."""
    objective = Objective(build(Cell("decoder").config(layers=1)))
    module = wrap(objective, TrainSettings(activation_checkpointing=True), World(torch.device("cpu"))).train()
    usual, calls = attention.attend, []
    monkeypatch.setattr(attention, "attend", lambda *given, **how: calls.append(1) or usual(*given, **how))
    with plain():
        loss = module({"tokens": tokens(3, 7), "labels": tokens(3, 7, 1)})
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert len(calls) == 2
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_plain_key_must_be_a_bool() -> None:
    with pytest.raises(ConfigError, match="plain"):
        TrainSettings(plain="slow")


@pytest.fixture
def in_plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with plain():
        yield


def test_commands_report_plain_mode(tmp_path: Path, ask: Ask, in_plain: None) -> None:
    folder = str(make_bundle(tmp_path / "model", "decoder"))
    result = ask("generate", folder, "one", "--max-new-tokens", "3", "--json")
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert "plain formulas" in result.err
    assert json.loads(result.out)["prompt"] == "one"
    result = ask("doctor", folder, "--quick")
    assert "The model runs plain formulas." in result.out
    with plain(False):
        result = ask("generate", folder, "one", "--max-new-tokens", "3")
        assert result.err == ""
        assert "runs fast kernels." in ask("doctor", folder, "--quick").out


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False)])
def test_the_environment_switches_every_thread(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUMOKU_PLAIN", value)
    fresh = runpy.run_path(str(plain_module.__file__))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(fresh["plain_formulas"]).result() is expected
    assert fresh["_compiled"] is expected


@pytest.mark.parametrize("title", ["fused kernel of another scale", "experts lose a token"])
def test_the_doctor_still_finds_a_broken_kernel(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_plain: None
) -> None:
    subject = PLANTED_BUGS[title].plant(Subjects(tmp_path), monkeypatch)
    from chumoku.doctor import fused

    assert examine(subject, checks=[fused.CHECK]).findings
