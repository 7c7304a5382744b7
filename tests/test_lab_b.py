"""Experiments of the lab, first half: every experiment runs, and its verdict follows from its numbers."""

from __future__ import annotations

import copy
import importlib
import json
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, VERDICTS, Budget, load_claims
from chumoku.lab.training import build_toy, downsample, final_loss, fit, fixed_seed, next_token_loss, remove_norms

IDS = (
    *("pe-heatmap", "pe-dot", "pe-linear", "order", "rejected-pe", "rope-relative", "extrapolate", "rnn", "scale"),
    *("skip", "depth", "ln-rate", "pre-post", "bn-ln", "covariate"),
)
SMALL = Budget(scale=0.1, seeds=2)


def load_claim(name: str) -> ModuleType:
    return importlib.import_module(f"chumoku.lab.claims.{name.replace('-', '_')}")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    return {}


def outcome_of(name: str, outcomes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run each experiment once, with far fewer steps than a quick run."""
    if name not in outcomes:
        monkeypatch.setattr(
            Budget, "steps", lambda self, full, minimum=1: min(minimum, 8) if minimum < 500 else minimum
        )
        outcomes[name] = load_claim(name).run(SMALL)
    return outcomes[name]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", IDS)
def test_experiment_runs_and_draws(name: str, outcomes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    module, outcome = load_claim(name), outcome_of(name, outcomes, monkeypatch)
    assert outcome.verdict in VERDICTS
    assert (outcome.when is not None) == (outcome.verdict == PARTLY)
    numbers = json.loads(json.dumps(outcome.numbers, allow_nan=False))
    assert module.judge(numbers) == outcome.verdict, "the verdict follows from the written numbers"
    for words in (outcome.summary, *vars(load_claims()[name]).values()):
        if isinstance(words, tuple) and hasattr(words, "ja"):
            assert words.en.strip()
            assert any("ぁ" <= letter <= "ヿ" for letter in words.ja), f"{words.ja} is not Japanese"
    assert load_claims()[name].reading
    figure = Figure(layout="constrained")
    module.draw(outcome, figure)
    assert figure.axes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skip", "covariate"])
def test_the_same_seeds_give_the_same_numbers(
    name: str, outcomes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = outcome_of(name, outcomes, monkeypatch)
    torch.rand(7)  # other random numbers do not matter
    assert outcome_of(name, {}, monkeypatch).numbers == first.numbers


# Known exact numbers.


def test_known_numbers() -> None:
    cycles = load_claim("pe-heatmap").run(SMALL).numbers["cycles_in_50_positions"]
    expected = [50 / (2 * math.pi * 10000 ** (dimension / 512)) for dimension in (0, 50, 100)]
    assert cycles == pytest.approx(expected, rel=1e-6)
    dot = load_claim("pe-dot").run(SMALL)
    assert dot.verdict == PARTLY
    assert dot.numbers["D=128"]["products"][0] == pytest.approx(64)
    assert dot.numbers["D=128"]["products"][7] == pytest.approx(
        sum(math.cos(7 / 10000 ** (2 * k / 128)) for k in range(64))
    )
    assert load_claim("pe-linear").run(SMALL).verdict == HOLDS
    assert load_claim("rope-relative").run(SMALL).verdict == PARTLY
    assert load_claim("scale").run(SMALL).verdict == HOLDS


def test_shift_matrix_is_a_rotation() -> None:
    linear = load_claim("pe-linear")
    matrix = linear.shift_matrix(5)
    assert torch.allclose(matrix @ matrix.T, torch.eye(linear.WIDTH, dtype=torch.float64), atol=1e-12)
    assert linear.relative_error(linear.shift_matrix(4), linear.encode, linear.UNSEEN, 5) > 0.1, (
        "the matrix of another shift is detected"
    )


def test_softmax_slope_is_the_jacobian_norm() -> None:
    scores = torch.randn(7, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert load_claim("scale").slope(scores.softmax(-1)) == pytest.approx(float(jacobian.norm()))


def test_only_positions_distinguish_permutations() -> None:
    order = load_claim("order")
    words, answer = order.sample_questions(200, torch.Generator().manual_seed(0))
    first = [row.index(1) < row.index(2) for row in words.tolist()]
    assert first == [not turned for turned in answer.tolist()]
    assert 0.3 < answer.float().mean() < 0.7
    free, placed = (build_toy(0, kind="encoder", position=kind, vocabulary=order.WORDS) for kind in ("none", "learned"))
    assert order.measure_movement(free, torch.Generator().manual_seed(0)) < 1e-5
    assert order.measure_movement(placed, torch.Generator().manual_seed(0)) > 1e-3


def test_ln_rate_states() -> None:
    rate, chance = load_claim("ln-rate"), math.log(8)
    assert rate.state([(9.0, 0.8 * chance), (9.0, 0.89 * chance)]) == "learns"
    assert rate.state([(9.0, 0.8 * chance), (9.0, 0.91 * chance)]) == "stays"
    assert rate.state([(9.0, 0.8 * chance), (1.5, 1.6)]) == "diverges"
    assert rate.state([(9.0, math.inf)]) == rate.state([(9.0, math.nan)]) == "diverges"


def test_only_recurrence_depends_on_previous_positions() -> None:
    rnn = load_claim("rnn")
    assert rnn.dependence_on_previous("attention") < 1e-5
    assert min(rnn.dependence_on_previous("rnn"), rnn.dependence_on_previous("lstm")) > 0.05


# Every rule, with numbers that must change the verdict.


def judge_changed(module: ModuleType, numbers: dict[str, Any], change: Any) -> str:
    other = copy.deepcopy(numbers)
    change(other)
    verdict: str = module.judge(other)
    return verdict


def put(*path: Any, value: Any) -> Any:
    def change(numbers: dict[str, Any]) -> None:
        at: Any = numbers
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


FOUND: dict[str, dict[str, Any]] = {
    "pe-heatmap": {"widths": {"32": {"sign_changes": [9, 4, 0], "smallest_distance": 0.5}}},
    "pe-dot": {"D=32": {"difference": 0.0, "correlation": -0.9, "rises": 0}},
    "pe-linear": {"written": [1e-13], "random_table": [1.0]},
    "order": {
        "accuracy": {kind: [0.9, 1.0] for kind in ("sinusoidal", "learned", "relative", "rotary")}
        | {"none": [0.5], "none, masked": [0.5]}
    },
    "rejected-pe": {
        "size": {"i": [1, 64], "i/N": [1, 1], "sinusoidal": [1, 1]},
        "moved": {"i": 0.0, "i/N": 0.9, "sinusoidal": 0.0},
        "lengths": [32, 64],
        "accuracy": {"i": [[0.5, 0.5]], "i/N": [[0.6, 0.605]], "sinusoidal": [[0.9, 0.6]]},
    },
    "rope-relative": {"rotary_float64": [1e-10], "float32_holds_until": 1_000_000},
    "extrapolate": {
        "reach": {"sinusoidal": 256, "learned": 32, "relative": 256, "rotary": 256},
        "table_of_32_rows": "refused",
    },
    "rnn": {
        **{"distances": [2, 128], "alone": {"rnn": 0.5, "lstm": 0.5, "attention": 1e-7}},
        "accuracy": {kind: [[1, 0.1]] for kind in ("rnn", "lstm", "lstm, open gates")} | {"attention": [[1, 1]]},
    },
    "scale": {
        "widths": [16, 1024],
        **{"entropy_scaled": [[3.0, 3.0]], "gradient_scaled": [[0.2, 0.2]]},
        **{"entropy_raw": [[2.0, 0.1]], "gradient_raw": [[0.2, 0.05]]},
    },
    "skip": {"identity_skip": {"reached": [20, 21]}, "identity_plain": {"reached": [200, None]}},
    "depth": {
        "end": {"residual": [[0.3]], "plain": [[1.38]], "plain, scaled start": [[0.5]]},
        "first_to_last": {"residual": [[0.4]], "plain": [[1e-40]], "plain, scaled start": [[1.1]]},
    },
    "ln-rate": {
        "state": {
            f"sgd, {depth} layers, {norm}": row
            for depth in (3, 5, 7)
            for norm, row in (("without", ["learns", "diverges", "stays"]), ("with", ["learns"] * 3))
        }
    },
    "pre-post": {
        "end": {
            **{f"pre, {depth} layers, no warm-up": [0.1, 0.2] for depth in (2, 6, 12)},
            "post, 12 layers, no warm-up": [2.1, 2.0],
            "post, 12 layers, warm-up": [0.1, 0.2],
        }
    },
    "bn-ln": {
        "moved": {"layer": [[0.0, 0.0]], "batch": [[0.5, 0.1]]},
        "loss": {"layer": [[0.1, 0.01]], "batch": [[0.4, 0.01]]},
    },
    "covariate": {
        "with": {"shift": [[0, 0.1]], "spread": [[1, 1.1]]},
        "without": {"shift": [[0, 1.0]], "spread": [[1, 0.4]]},
    },
}

TURNS = [
    ("pe-heatmap", put("widths", "32", "sign_changes", value=[9, 4, 5]), FAILS),
    ("pe-heatmap", put("widths", "32", "smallest_distance", value=0.0), FAILS),
    ("pe-dot", put("D=32", "rises", value=3), PARTLY),
    ("pe-dot", put("D=32", "difference", value=0.1), FAILS),
    ("pe-dot", put("D=32", "correlation", value=0.1), FAILS),
    ("pe-linear", put("written", value=[1e-3]), FAILS),
    ("pe-linear", put("random_table", value=[0.1]), FAILS),
    ("order", put("accuracy", "none, masked", value=[0.9]), PARTLY),
    ("order", put("accuracy", "none", value=[0.9, 0.9]), FAILS),
    ("order", put("accuracy", "rotary", value=[0.5, 0.51]), FAILS),
    ("order", put("accuracy", "rotary", value=[0.5, 0.8]), NOT_JUDGED),
    ("rejected-pe", put("accuracy", "i/N", value=[[0.95, 0.5]]), PARTLY),
    ("rejected-pe", put("accuracy", "i/N", value=[[0.6, 0.62]]), PARTLY),
    ("rejected-pe", put("size", "i", value=[1, 1]), FAILS),
    ("rejected-pe", put("moved", "i/N", value=0.0), FAILS),
    ("rope-relative", put("float32_holds_until", value=100_000), PARTLY),
    ("rope-relative", put("rotary_float64", value=[0.1]), FAILS),
    ("extrapolate", put("reach", "sinusoidal", value=32), PARTLY),
    ("extrapolate", put("reach", "learned", value=64), FAILS),
    ("extrapolate", put("table_of_32_rows", value=""), FAILS),
    ("extrapolate", put("reach", value=dict.fromkeys(("sinusoidal", "learned", "relative", "rotary"), 32)), FAILS),
    ("rnn", put("alone", "attention", value=0.5), FAILS),
    ("rnn", put("alone", "lstm", value=0.0), FAILS),
    ("rnn", put("accuracy", "rnn", value=[[0.1, 1]] * 2), FAILS),
    ("rnn", put("accuracy", "rnn", value=[[0.1, 1], [0.1, 0.3]]), NOT_JUDGED),
    ("rnn", put("accuracy", "attention", value=[[0.1, 1]] * 2), FAILS),
    ("rnn", put("accuracy", "lstm, open gates", value=[[1, 1]]), PARTLY),
    ("rnn", put("accuracy", "lstm", value=[[1, 1]] * 2), FAILS),
    ("rnn", put("accuracy", "attention", value=[[1, 0.4]] * 2), FAILS),
    ("scale", put("entropy_scaled", value=[[3.0, 2.0]]), FAILS),
    ("scale", put("gradient_raw", value=[[0.2, 0.15]]), FAILS),
    ("skip", put("identity_skip", "reached", value=[20, None]), PARTLY),
    ("skip", put("identity_skip", "reached", value=[300, None]), NOT_JUDGED),
    ("skip", lambda n: n.update(identity_skip={"reached": [300, 320]}, identity_plain={"reached": [200, 230]}), FAILS),
    ("skip", lambda n: n.update(identity_skip={"reached": [None] * 2}, identity_plain={"reached": [200, 230]}), FAILS),
    ("depth", put("end", "plain, scaled start", value=[[1.36]]), PARTLY),
    ("depth", put("first_to_last", "plain", value=[[0.5]]), PARTLY),
    ("depth", put("first_to_last", "residual", value=[[1e-6]]), PARTLY),
    ("depth", put("first_to_last", "plain, scaled start", value=[[1e-6]]), PARTLY),
    ("depth", put("end", "plain", value=[[0.3]] * 2), FAILS),
    ("depth", put("end", "residual", value=[[1.3]] * 2), FAILS),
    ("depth", put("end", "residual", value=[[1.3], [0.3]]), NOT_JUDGED),
    ("ln-rate", put("state", "sgd, 3 layers, without", value=["learns", "learns", "diverges"]), PARTLY),
    ("ln-rate", put("state", "sgd, 3 layers, with", value=["stays", "learns", "learns"]), PARTLY),
    ("ln-rate", lambda n: [row.__setitem__(0, "stays") for row in n["state"].values()], FAILS),
    ("pre-post", put("end", "post, 12 layers, no warm-up", value=[0.1, 0.2]), PARTLY),
    ("pre-post", put("end", "post, 12 layers, warm-up", value=[0.1, 2.1]), PARTLY),
    ("pre-post", put("end", "pre, 12 layers, no warm-up", value=[0.1, 2.0]), NOT_JUDGED),
    ("pre-post", put("end", "pre, 12 layers, no warm-up", value=[1.9, 2.0]), FAILS),
    ("bn-ln", put("loss", "batch", value=[[0.05, 0.01]]), PARTLY),
    ("bn-ln", put("moved", "layer", value=[[0.0, 1e-6]]), FAILS),
    ("bn-ln", put("moved", "batch", value=[[0.5, 0.0]]), FAILS),
    ("covariate", put("with", "shift", value=[[0, 0.9]]), PARTLY),
    ("covariate", put("without", "shift", value=[[0, 0.1], [0, 0.1]]), FAILS),
    ("covariate", put("without", "shift", value=[[0, 0.1], [0, 0.9]]), NOT_JUDGED),
]


@pytest.mark.parametrize("name", IDS)
def test_good_numbers_give_holds(name: str) -> None:
    assert load_claim(name).judge(FOUND[name]) == HOLDS


@pytest.mark.parametrize(("name", "change", "verdict"), TURNS)
def test_other_numbers_change_the_verdict(name: str, change: Any, verdict: str) -> None:
    assert judge_changed(load_claim(name), FOUND[name], change) == verdict


# The training loop.


def test_fit_depends_on_its_seed_and_restores_global_state() -> None:
    def losses(seed: int) -> list[float]:
        model = build_toy(3, vocabulary=11, position="learned", dropout={"sublayer": 0.5})

        def loss(generator: torch.Generator) -> torch.Tensor:
            tokens = torch.randint(11, (5, 7), generator=generator)
            return next_token_loss(model(tokens).logits, tokens)

        return fit(model, loss, steps=4, seed=seed)

    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = losses(0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert float(torch.tensor(1e-30) * 1e-12) != 0.0, "denormal numbers are enabled again"
    torch.rand(3)
    assert losses(0) == first
    assert losses(1) != first


def test_divergence_gives_infinite_losses() -> None:
    weight = nn.Linear(1, 1, bias=False)
    found = fit(weight, lambda g: weight.weight.pow(4).sum() * 1e6, steps=9, seed=0, rate=1e3, optimizer="sgd")
    assert len(found) == 9
    assert math.isfinite(found[0])
    assert found[-1] == math.inf


def test_sgd_with_warmup_and_callback() -> None:
    weight = nn.Linear(1, 1, bias=False)
    nn.init.ones_(weight.weight)
    seen: list[int] = []
    # L = w: each step takes rate · share from w; of a warm-up of 4 the shares are 1/4, 2/4, 3/4, 1, and then 1.
    fit(
        weight,
        lambda g: weight.weight.sum(),
        steps=5,
        seed=0,
        rate=0.1,
        warmup=4,
        optimizer="sgd",
        callback=seen.append,
    )
    assert weight.weight.item() == pytest.approx(1 - 0.1 * (0.25 + 0.5 + 0.75 + 1 + 1))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert not weight.training


def test_remove_norms() -> None:
    model = remove_norms(build_toy(0, vocabulary=7, embedding_norm=True))
    assert not [name for name, _ in model.named_parameters() if name.endswith(("gamma", "beta"))]
    assert model(torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 7)


def test_downsample_and_final_loss() -> None:
    assert downsample([1.0, 3.0, 5.0], 2) == [2.0, 5.0]
    assert final_loss([9.0] * 18 + [1.0, 3.0]) == 2.0
    with fixed_seed(5) as generator:
        assert torch.rand(1, generator=generator) == torch.rand(1, generator=torch.Generator().manual_seed(5))
