"""Arms of a comparison: how choices are read, how their cost becomes equal, and the search of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chumoku.compare.arms import parse_choices, read_arms, split_values
from chumoku.compare.equal_cost import BatchSize, Cost, adjust_cost, choose_adjust
from chumoku.compare.metrics import METRICS, choose_test_files, score_model
from chumoku.compare.rates import EXTENSIONS, search_rates
from chumoku.compare.results import RunResult
from chumoku.errors import ConfigError, UsageError
from chumoku.probe.bilingual import Words
from chumoku.training.recipe import Recipe, read_recipe

MODEL = {"kind": "decoder", "width": 44, "layers": 3, "heads": 2, "context": 17, "vocabulary": 257}
RECIPE: dict[str, Any] = {
    "model": MODEL,
    "data": {"files": "text.txt"},
    "train": {"steps": 1009, "batch_size": 5},
    "schedule": {"warmup": 101},
}


def test_choices_are_all_combinations_and_explicit_arms() -> None:
    found = parse_choices(["model.position=rotary,none", "train.steps=7", "model.layers=2,3"], ["", "model.width=22"])
    assert found.shared == ("train.steps=7",)
    assert [arm.name for arm in found.arms] == [
        "model.position=rotary model.layers=2",
        "model.position=rotary model.layers=3",
        "model.position=none model.layers=2",
        "model.position=none model.layers=3",
        "recipe",
        "model.width=22",
    ]
    assert found.arms[0].overrides == ("train.steps=7", "model.position=rotary", "model.layers=2")
    assert found.arms[-2].overrides == ("train.steps=7",)
    assert split_values("data.files", '["a,b", "c"],d') == ['["a,b", "c"]', "d"]
    assert split_values("data.languages", "ja,en") == ["ja,en"]  # one list, as in `chumoku train`


def test_an_empty_value_clears_a_key_for_all_arms() -> None:
    found = parse_choices(["data.validation_files=", "model.layers=2,3"], [])
    assert found.shared == ("data.validation_files=",)
    tables = {**RECIPE, "data": {"files": "text.txt", "validation_files": "held-out.txt"}}
    assert not any(arm.data.validation_files for arm in read_arms(tables, found).values())


@pytest.mark.parametrize(
    ("choices", "arms", "message"),
    [
        (["model.width=22"], [], "two arms or more"),
        (["model.width=22,"], [], "has an empty value"),
        (["model.width=22,22"], [], "is given twice"),
        (["model.width=22,44", "model.width=66"], [], "model.width is given twice"),
        (["rotary,none"], [], "not of the form key=value"),
        (["train.seed=1,2"], [], "see --seeds"),
        (["train.out=a", "model.width=22,44"], [], "inside the one of --out"),
        ([], ["train.seed=1", "train.seed=2"], "see --seeds"),
        ([], ['model.width="22', "x=1"], "no closing quotation"),
        ([f"model.width={','.join(map(str, range(1, 300)))}"], [], "more than 256 arms"),
    ],
)
def test_wrong_choices_are_refused(choices: list[str], arms: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_choices(choices, arms)


def test_a_typo_names_the_right_key_and_a_wrong_value_its_arm() -> None:
    with pytest.raises(ConfigError) as error:
        read_arms(RECIPE, parse_choices(["model.positoin=rotary,none", "model.width=44,45"]))
    assert str(error.value).splitlines() == [
        "model.positoin: there is no such key. Did you mean model.position?",
        "model.heads: 2 heads do not divide width = 45; 1 or 3 would. (arm model.positoin=rotary model.width=45)",
    ]


def cost_of(recipe: Recipe) -> Cost:
    return Cost(recipe.config(), BatchSize(tokens=85, length=17), recipe.train.steps)


def adjusted(changes: dict[str, Any], equal: Any, by: Any) -> Any:
    recipe = read_recipe({**RECIPE, "model": {**MODEL, **changes}})
    target = cost_of(read_recipe(RECIPE))
    return adjust_cost(recipe, cost_of(recipe), target=target, equal=equal, by=by), target


def test_flops_become_equal_by_steps_and_the_schedule_follows() -> None:
    found, target = adjusted({"layers": 6}, "flops", "steps")
    assert found.cost.flops == pytest.approx(target.flops, rel=1 / found.cost.steps)
    assert found.cost.steps < 1009
    assert found.recipe.train.steps == found.cost.steps
    assert found.recipe.schedule.warmup == 101 * found.cost.steps // 1009
    assert found.overrides == (f"train.steps={found.cost.steps}", f"schedule.warmup={found.recipe.schedule.warmup}")
    assert found.words[0] == f"train.steps 1,009 → {found.cost.steps:,}"
    same, _ = adjusted({"position": "learned"}, "flops", "steps")
    assert not same.overrides


@pytest.mark.parametrize(("equal", "by"), [("parameters", "feedforward"), ("parameters", "width"), ("flops", "width")])
def test_a_size_changes_to_the_nearest_legal_one(equal: Any, by: Any) -> None:
    found, target = adjusted({"layers": 2, "position": "rotary"}, equal, by)
    error = abs(found.cost.value(equal) / target.value(equal) - 1)
    assert error < (0.001 if by == "feedforward" else 0.1)
    config = found.recipe.config()
    if by == "width":
        assert config.width > 44
        assert config.width % 4 == 0  # two heads of an even width, for rotary positions
        key, step = "width", 4
    else:
        key, step = "feedforward_width", 1
    value = config.width if by == "width" else config.hidden
    for other in (value - step, value + step):  # its neighbors are farther away
        changed = cost_of(read_recipe({**RECIPE, "model": {**MODEL, "layers": 2, "position": "rotary", key: other}}))
        assert abs(changed.value(equal) / target.value(equal) - 1) >= error
    assert found.overrides == (f"model.{key}={value}",)


def test_impossible_adjustments_are_refused() -> None:
    with pytest.raises(UsageError, match="Try --adjust width"):
        adjusted({"layers": 97}, "parameters", "feedforward")
    with pytest.raises(UsageError, match="not with steps"):
        choose_adjust("parameters", "steps")
    with pytest.raises(UsageError, match="unknown; choose flops"):
        choose_adjust("flop", None)  # type: ignore[arg-type]


def search(values: dict[float, float | None], count: int = 3) -> tuple[float, Words | None, list[float]]:
    """The rate found for an arm whose runs have these values, the note, and the rates tried."""
    tried: list[float] = []

    def run(trials: Sequence[tuple[str, float]]) -> list[RunResult]:
        tried.extend(rate for _, rate in trials)
        return [RunResult(0, values.get(rate), (), 0.0, 0.0, 0) for _, rate in trials]

    found = search_rates({"arm": 0.01}, count, METRICS["loss"], run)["arm"]
    return found.rate(found.best(METRICS["loss"])), found.note("arm", METRICS["loss"]), tried


def test_the_learning_rate_search_extends_an_edge() -> None:
    assert search({0.005: 3.0, 0.01: 2.0, 0.02: 5.0}) == (0.01, None, [0.005, 0.01, 0.02])
    assert search({0.005: 3.0, 0.01: 2.0, 0.02: 1.0, 0.04: 2.0})[0::2] == (0.02, [0.005, 0.01, 0.02, 0.04])
    rate, note, tried = search({rate: rate for rate in (0.02, 0.01, 0.005, 0.0025, 0.00125, 0.000625)})
    assert (rate, len(tried)) == (0.000625, 3 + EXTENSIONS)
    assert note is not None
    assert "at the edge" in note.en


def test_rates_that_diverge_are_worst() -> None:
    assert search({0.005: 3.0}) == (0.005, None, [0.005, 0.01, 0.02, 0.0025])
    rate, note, tried = search({})
    assert (rate, len(tried)) == (min(tried), 3 + EXTENSIONS)
    assert note is not None
    assert "diverged" in note.en


class StandInModel:
    """Translates a source by itself in capitals, and embeds a text as the number in it."""

    config = SimpleNamespace(prompts=SimpleNamespace(query="", document=""))
    model = source_tokenizer = None

    def translate(self, texts: list[str], *, into: str | None) -> list[str]:
        return [text.upper() for text in texts]

    def embed(self, texts: list[str], *, prompt: str | None) -> torch.Tensor:
        assert prompt is None
        angles = torch.tensor([float(text.split()[-1]) for text in texts])
        return torch.stack([angles.cos(), angles.sin()], dim=-1)


def test_metrics_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chumoku.pipeline.load", lambda folder, device: StandInModel())
    monkeypatch.setattr(
        "chumoku.decoding.translate.fits_context", lambda model, texts, *_, **__: ["long" not in t for t in texts]
    )
    recipe, table = read_recipe(RECIPE), tmp_path / "pairs.tsv"
    options: dict[str, Any] = {"device": "cpu", "files": [str(table)]}
    table.write_text("a small dog sat here\tA SMALL DOG SAT HERE\n" * 3, encoding="utf-8")
    assert score_model("bleu", tmp_path, recipe, **options) == pytest.approx(100)
    table.write_text("a small dog sat here\tA SMALL DOG SAT HERE\nlong\tTWO BIG CATS RAN AWAY\n", encoding="utf-8")
    assert 0 < score_model("chrf", tmp_path, recipe, **options) < 90  # an empty translation of what does not fit
    table.write_text("q 0.1\tdocument 0.2\nq 2.9\tdocument 3.0\nq 0.4\tdocument 3.1\n", encoding="utf-8")
    assert score_model("recall", tmp_path, recipe, **options) == pytest.approx(200 / 3)


def test_metrics_need_their_data(tmp_path: Path) -> None:
    recipe = read_recipe(RECIPE)
    with pytest.raises(UsageError, match="not for 'text'"):
        choose_test_files("bleu", recipe, [])
    with pytest.raises(UsageError, match="unknown; choose loss"):
        choose_test_files("blue", recipe, [])
    pairs = read_recipe({**RECIPE, "model": {"preset": "tiny-encoder-decoder"}, "data": {"kind": "embedded"}})
    with pytest.raises(UsageError, match="with --on"):
        choose_test_files("bleu", pairs, [])
