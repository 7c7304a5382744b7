"""Calculations of the notes: numbers and verdict of every claim, and that other numbers change the verdict."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from chumoku.lab.claims import ARITHMETIC, CLAIMS
from chumoku.lab.experiment import (
    FAILS,
    HOLDS,
    PARTLY,
    Budget,
    Outcome,
    Words,
    format_list,
    format_number,
    load_claims,
    matches_rounded,
)
from chumoku.probe.plot_style import plot_style

BUDGET = Budget(scale=0.05, seeds=2)
VERDICTS = {
    HOLDS: "norm dot matmul onehot sgd exploding residual-slope softmax-1234 scores-exercise pe-exercise ln-exercise "
    "ffn-params broadcast shapes",
    PARTLY: "gram saturation variance temperature rank ffn-share learned-pe rope-users",
    FAILS: "dot-proof rows-cols loss-window log-underflow autodiff attention-cat ln-formula head-cost pe-range "
    "mask-future softmax-axis slices",
}
EXPECTED = {id: verdict for verdict, ids in VERDICTS.items() for id in ids.split()}
# Changed numbers that must give another verdict.
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "norm": (FAILS, {"worst": 1e-6}),
    "dot": (FAILS, {"worst": 1e-3}),
    "dot-proof": (HOLDS, {"gap_minus": 0.0}),
    "matmul": (FAILS, {"refused_5x3_5x7": False}),
    "gram": (FAILS, {"product": [[50, 110], [110, 251]]}),
    "rows-cols": (HOLDS, {"called": {"行": 2, "列": 4}}),
    "onehot": (FAILS, {"rows": [{"same": True, "apart": 1.0}]}),
    "loss-window": (HOLDS, {"window_1": 0.5, "language_model": 0.5}),
    "log-underflow": (HOLDS, {"largest_product": 1.5}),
    "sgd": (FAILS, {"losses": [1.0, 1.1]}),
    "autodiff": (HOLDS, {"automatic": 1e-9, "best_difference": 1e-9}),
    "exploding": (FAILS, {"factors": {"100.0": 1e5, "0.01": 1e-6}}),
    "residual-slope": (FAILS, {"gap_matrix": 1.0}),
    "attention-cat": (HOLDS, {"weights": [0.352, 0.19, 0.33, 0.20, 0.27]}),
    "saturation": (FAILS, {"gradient_norms": [0.5, 0.4]}),
    "variance": (HOLDS, {"unit_vectors": [4, 16, 64, 128, 512]}),
    "temperature": (FAILS, {"entropies": [1.0, 0.9, 0.8]}),
    "softmax-1234": (FAILS, {"found": [0.033, 0.087, 0.237, 0.643]}),
    "scores-exercise": (FAILS, {"scores": [1.0, 0.0, 1.0]}),
    "pe-exercise": (FAILS, {"first_two": [1.0, 0.0]}),
    "ln-exercise": (FAILS, {"found": [-1.2, -0.4, 0.4, 1.2]}),
    "ln-formula": (HOLDS, {"variance_by_variance": 1.0, "variance_after": {"σ²": [1.0, 1.0]}}),
    "head-cost": (HOLDS, {"operations": {"1": 120, "12": 10}}),
    "rank": (FAILS, {"ranks": {"d": 8, "equal_columns": 6, "wide": 48}}),
    "ffn-params": (FAILS, {"weights": 4_600_000}),
    "ffn-share": (FAILS, {"gpt2": {"of_all": 0.45, "of_blocks": 0.5}}),
    "learned-pe": (HOLDS, {"gives_the_numbers": True}),
    "pe-range": (HOLDS, {"least": 0.0}),
    "rope-users": (FAILS, {"rotary": {"GPT-Neo": False, "LLaMA": False}}),
    "mask-future": (HOLDS, {"logits": 1e-9}),
    "softmax-axis": (HOLDS, {"sums_columns": [1.0, 1.0], "gap_columns": 0.0}),
    "broadcast": (FAILS, {"wrongly_told": 1}),
    "shapes": (FAILS, {"walk": {"logits": [2, 4, 50257]}}),
    "slices": (HOLDS, {"features_seen": {"whole": [8, 8], "sliced": [8, 8]}}),
}


def module_of(id: str) -> ModuleType:
    return importlib.import_module(f"chumoku.lab.claims.{id.replace('-', '_')}")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {id: module_of(id).run(BUDGET) for id in ARITHMETIC}


def test_tables_contain_every_claim() -> None:
    assert set(EXPECTED) == set(CHANGED) == set(ARITHMETIC)


@pytest.mark.sample(7)
@pytest.mark.parametrize("id", ARITHMETIC)
def test_verdict_follows_from_the_numbers(id: str, outcomes: dict[str, Outcome]) -> None:
    outcome, judge = outcomes[id], module_of(id).judge
    assert outcome.verdict == EXPECTED[id] == judge(outcome.numbers)
    verdict, changes = CHANGED[id]
    assert verdict != EXPECTED[id]
    assert judge({**outcome.numbers, **changes}) == verdict


@pytest.mark.parametrize("id", ARITHMETIC)
def test_texts_are_in_both_languages(id: str, outcomes: dict[str, Outcome]) -> None:
    claim, outcome = load_claims()[id], outcomes[id]
    assert claim.notes
    assert set(claim.notes) <= {"000", "001", "002", "003", "004"}
    texts = [value for value in (*vars(claim).values(), *vars(outcome).values()) if isinstance(value, Words)]
    texts += [outcome.correction.computed] if outcome.correction else []
    for words in texts:
        assert words.en.strip()
        assert words.ja.strip()
    for words in (claim.title, claim.stated, claim.tried, claim.refutes, claim.rule, outcome.summary):
        assert re.search("[ぁ-んァ-ヶ一-龠]", words.ja), words
    for words in (claim.stated, claim.tried, claim.refutes, claim.rule, outcome.summary):
        assert words.en.endswith("."), words
        assert words.ja.endswith("。"), words
    assert (outcome.correction is not None) == (outcome.verdict != HOLDS)
    assert (outcome.when is not None) == (outcome.verdict == PARTLY)


@pytest.mark.sample(7)
@pytest.mark.parametrize("id", ARITHMETIC)
def test_figures_need_only_json_numbers(id: str, outcomes: dict[str, Outcome]) -> None:
    numbers = json.loads(json.dumps(outcomes[id].numbers, allow_nan=False))
    draw = getattr(module_of(id), "draw", None)
    if draw is None:
        assert load_claims()[id].reading is None
        return
    assert load_claims()[id].reading is not None
    settings: Any = plot_style()
    with rc_context(settings):
        figure = Figure(layout="constrained")
        draw(dataclasses.replace(outcomes[id], numbers=numbers), figure)
        figure.draw_without_rendering()
    assert figure.axes


def test_known_numbers(outcomes: dict[str, Outcome]) -> None:
    numbers = {id: outcome.numbers for id, outcome in outcomes.items()}
    assert numbers["gram"]["product"] == [[50, 110], [110, 250]]
    cat = numbers["attention-cat"]
    assert format_list(cat["weights"]) == "[0.265, 0.141, 0.248, 0.150, 0.195]"
    assert format_list(cat["scores"], 4) == "[0.7142, 0.0849, 0.6505, 0.1485, 0.4101]"
    assert round(cat["note_sum"], 2) == 1.34
    assert format_list(numbers["saturation"]["found"][1]) == "[0.507, 0.340, 0.084, 0.069]"
    temperatures = [format_list(found) for found in numbers["temperature"]["found"]]
    assert temperatures == ["[0.016, 0.117, 0.867]", "[0.090, 0.245, 0.665]", "[0.186, 0.307, 0.506]"]
    assert format_list(numbers["ln-formula"]["by_variance"], 1) == "[−1.2, −0.4, 0.4, 1.2]"
    small = numbers["ffn-share"]["gpt2"]
    assert small["parameters"] == 124_439_808
    assert f"{small['of_all']:.3f}" == "0.455"
    parts = {"feedforward": 56_669_184, "attention": 28_348_416, "embeddings": 38_597_376, "positions": 786_432}
    assert parts.items() <= small["parts"].items()
    assert numbers["ffn-params"]["weights"] == 4_718_592
    assert numbers["head-cost"]["operations"] == {"1": 4 * 256**2 * 768, "12": 4 * 256**2 * 768}
    assert numbers["log-underflow"]["first_zero"]["float32"] == 46
    assert numbers["shapes"]["walk"]["logits"] == [2, 4, 50257]
    assert numbers["mask-future"]["logits"] == 0.0 < numbers["mask-future"]["logits_without_mask"]


def test_recorded_rope_users_match_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    claim = module_of("rope-users")
    measured = claim.run(BUDGET)
    assert measured.numbers["how"].startswith("measured")
    assert measured.numbers["rotary"] == claim.RECORDED
    monkeypatch.setattr(claim.importlib.util, "find_spec", lambda name: None)
    recorded = claim.run(BUDGET)
    assert recorded.numbers["how"] == "recorded"
    assert recorded.verdict == measured.verdict


def test_onehot_compares_every_word() -> None:
    onehot = module_of("onehot")
    table = onehot.Embedding(1009, 7)
    words = torch.tensor([3, 3, 1008])
    with torch.no_grad():
        torch.nn.init.normal_(table.table)
        assert onehot.compare_lookups(table, words) == (True, 0.0)
        table.forward = lambda ids: table.table[ids.clamp(max=1000)]  # wrong only for the last words
        assert onehot.compare_lookups(table, words) == (False, 0.0)


def test_transposes_are_recorded() -> None:
    with module_of("shapes").RecordTransposes() as seen:
        torch.zeros(2, 3, 5).view(2, 3, 5, 1).transpose(1, 2)
    assert seen.shapes == [[2, 3, 5, 1]]


@pytest.mark.parametrize("id", CLAIMS)
def test_japanese_terms_are_consistent(id: str) -> None:
    claim = load_claims()[id]
    rule = claim.rule.ja
    assert re.search("「(条件つきで)?成り立(つ|たない)」", rule), rule
    wrong = "成立|デコーダー|エンコーダー|[Ee]ncoder|[Dd]ecoder|交差注意|注意機構|詰め物|[0-9]e-[0-9]"
    for words in (claim.title, claim.stated, claim.tried, claim.refutes, claim.rule):
        assert not re.search(wrong, words.ja), words.ja


def test_number_formatting() -> None:
    assert matches_rounded([0.12, -0.5], [0.1249, -0.495], 2)
    assert not matches_rounded([0.12], [0.1251], 2)
    assert not matches_rounded([0.12], [0.12, 0.0], 2)
    assert format_list([0.0, -0.0004, -1.5], 2) == "[0.00, 0.00, −1.50]"
    assert format_number(1.23e-7) == "1.2 × 10⁻⁷"
    assert format_number(0.5) == "0.5"
    assert format_number(0.0) == "0"
