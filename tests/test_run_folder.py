"""A run's folder is enough to resume the run and to use its model."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundles import make_bundle
from commands import Ask
from rich.console import Console

import chumoku
from chumoku.data.grammar import generate
from chumoku.errors import UsageError
from chumoku.evaluation.translation import seems_swapped
from chumoku.model_path import resolve_run
from chumoku.pipeline import Pipeline
from chumoku.training.log import Log, read_metrics
from chumoku.training.recipe import TABLES, load_recipe, read_recipe
from chumoku.training.settings import TrainSettings
from chumoku.training.state import State
from chumoku.weights.checksums import write_checksums

pytestmark = pytest.mark.usefixtures("quick_runs")

TABLE: dict[str, Any] = {
    "model": {"kind": "encoder-decoder", "width": 12, "heads": 3, "layers": 1, "context": 131},
    "tokenizer": {"kind": "byte"},
    "data": {"kind": "pairs", "files": "pairs.tsv", "validation_share": 0.2},
    "train": {"out": "runs/x", "steps": 3, "batch_tokens": 400, "device": "cpu", "samples": 0},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of pairs whose columns were swapped by key=value, without a rate."""
    folder = tmp_path_factory.mktemp("work")
    pairs = generate(61)
    (folder / "pairs.tsv").write_text("".join(f"{one.target}\t{one.source}\n" for one in pairs), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        chumoku.train(TABLE, ["data.columns=1,0"])
    return folder


@pytest.fixture
def ask(ask: Ask, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(runs)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return ask


def test_columns_and_languages_may_be_written_with_a_comma() -> None:
    recipe = read_recipe({**TABLE, "data": {**TABLE["data"], "columns": "1,0", "languages": "ja, en"}})
    assert recipe.data.columns == [1, 0]
    assert recipe.data.languages == ["ja", "en"]
    named = read_recipe({**TABLE, "data": {**TABLE["data"], "columns": "text,english"}})
    assert named.data.columns == ["text", "english"]


def test_a_run_is_resumed_by_its_folder(ask: Ask, runs: Path) -> None:
    shutil.copytree(runs / "runs/x", runs / "moved")
    ended = ask("train", "moved", "train.steps=5", "--resume")
    assert ended.code == 0, ended.err
    assert "Finished at step 5" in ended.out
    stored = json.loads((runs / "moved/recipe.json").read_text("utf-8"))
    assert stored["train"]["out"] == "moved", "where the folder is now, not where it was"
    assert load_recipe(runs / "moved").data.columns == [1, 0]
    with pytest.raises(UsageError, match=r"already contains a run"):
        chumoku.train("moved")


def test_folder_without_a_run_is_refused(ask: Ask) -> None:
    Path("empty").mkdir(exist_ok=True)
    ended = ask("train", "empty")
    assert ended.code == 2
    assert "empty is a folder without recipe.json" in ended.err


def test_run_folder_opens_its_last_model(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chumoku.load("runs/x").config == chumoku.load("runs/x/last").config
    monkeypatch.setattr("chumoku.probe.figures.draw_figures", lambda *_, **__: [])  # pictures take seconds
    for words in (("translate", "runs/x", "一"), ("count", "runs/x"), ("look", "runs/x", "一", "--out", "looked")):
        ended = ask(*words)
        assert ended.code == 0, ended.err
        assert "is used" not in ended.err
    ended = ask("evaluate", "runs/x", "pairs.tsv", "--columns", "1,0", "--beam", "1", "--json")
    assert json.loads(ended.out)["sentences"] == 61


def test_unfinished_run_opens_its_best_model_with_a_notice(ask: Ask, tmp_path: Path) -> None:
    make_bundle(tmp_path / "run" / "best", "decoder")
    ended = ask("generate", str(tmp_path / "run"), "ab", "--max-new-tokens", "3")
    assert ended.code == 0
    assert "is not finished" in ended.err
    assert "is not finished" not in ask("generate", str(tmp_path / "run/best"), "ab", "--max-new-tokens", "3").err
    assert resolve_run(tmp_path / "run/best") == tmp_path / "run/best"


def test_a_run_without_a_model_says_how_to_go_on(ask: Ask, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.json").write_text("{}")
    command = f"Continue it with chumoku train {run} --resume"
    ended = ask("generate", str(run), "ab")
    assert (ended.code, ended.out) == (2, "")
    assert f"{run} is a training run that has no model yet" in ended.err
    assert f"{command}." in ended.err
    for name in ("step-00000300", "step-00001000", "step-00002000.bad", "step-00003000.incomplete"):
        (run / "checkpoints" / name).mkdir()
    with pytest.raises(UsageError, match=f"{command}. Or give its newest checkpoint, {run}/checkpoints/step-00001000."):
        chumoku.load(run)
    ended = ask("generate", "ja-en", "ab", "--adapter", str(run))
    assert ended.code == 2
    assert f"newest checkpoint, {run}/checkpoints/step-00001000." in ended.err


def test_a_share_of_the_peak_is_never_above_one(tmp_path: Path) -> None:
    """A step can be faster than the product that was measured at the start, when the machine was busy then."""
    log = Log(tmp_path, TrainSettings(steps=7, log_every=1), Console(file=io.StringIO()))
    log.open(State())
    log.peak_speed = 100.0
    for step, speed in ((1, 53.0), (2, 106.0), (3, 53.0)):
        log.step(State(step=step), loss=1.0, norm=1.0, rate=0.1, speed=speed)
    log.close()
    assert [line["peak_share"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [0.53, 1.0, 0.5]


def test_slow_steps_are_logged_every_ten_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = [1000.0], io.StringIO()
    monkeypatch.setattr("chumoku.training.log.time.monotonic", lambda: clock[0])
    log = Log(tmp_path, TrainSettings(steps=47, log_every=37), Console(file=out, width=200))
    log.unit, log.tokens_a_term, log.peak_speed = "tokens", 3.0, 100.0
    log.open(State())
    for step, seconds in ((1, 7), (2, 4), (3, 5), (4, 2), (5, 11), (37, 1)):
        clock[0] += seconds
        log.step(State(step=step, seconds=clock[0] - 1000), loss=1.0, norm=1.0, rate=0.1, speed=53.0)
    log.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["tokens_per_second"]) for line in lines] == [(2, 159.0), (5, 159.0), (37, 159.0)]
    assert out.getvalue().count("159 tokens/s, 53 of them learned") == 2, "lines are 10 s apart too"


def test_swapped_columns_are_reported(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A translator into English, fed with English, writes English; the references are Japanese."""
    monkeypatch.setattr(Pipeline, "translate", lambda *_, **__: ["I eat a mandarin at the kotatsu."] * 61)
    swapped = ask("evaluate", "runs/x", "pairs.tsv", "--json")
    assert json.loads(swapped.out)["bleu"] < 5
    assert "seem to be swapped" in swapped.err
    assert "Try --columns 1,0." in swapped.err
    assert "swapped" not in ask("evaluate", "runs/x", "pairs.tsv", "--columns", "1,0", "--json").err


def test_languages_of_one_script_are_distinguished() -> None:
    english = ["The dog runs across the green meadow.", "Two men are sitting on a bench.", "A girl with the ball."]
    german = ["Der Hund läuft über die grüne Wiese.", "Zwei Männer sitzen auf einer Bank.", "Ein Mädchen mit Ball."]
    output = ["The man is sitting with the dog.", "A girl runs across a bench.", "Two men and the ball."]
    assert seems_swapped(output, sources=english, references=german)
    assert not seems_swapped(output, sources=german, references=english)
    assert not seems_swapped(["", ""], sources=["a"], references=["b"])


OLD_NAMES = {new: old for table in TABLES.values() for old, new in table.FORMER_NAMES.items()}


def with_old_names(tables: dict[str, Any]) -> dict[str, Any]:
    """Stored tables with the keys of earlier versions."""
    return {
        name: {OLD_NAMES.get(key, key): value for key, value in table.items()} if name in TABLES else table
        for name, table in tables.items()
    }


def test_a_run_stored_with_old_keys_resumes(ask: Ask, runs: Path) -> None:
    folder = Path(shutil.copytree(runs / "runs/x", runs / "old"))
    stored = with_old_names(json.loads((folder / "recipe.json").read_text("utf-8")))
    assert {"tokens", "clip", "smoothing"} <= stored["train"].keys()
    assert {"validation"} <= stored["data"].keys()
    assert {"rate"} <= stored["optimizer"].keys()
    (folder / "recipe.json").write_text(json.dumps(stored), "utf-8")
    checkpoint = folder / "checkpoints" / "step-00000003"
    state = json.loads((checkpoint / "state.json").read_text("utf-8"))
    origin = with_old_names({**state["origin"], "tokenizer": {}}) | {"tokenizer": state["origin"]["tokenizer"]}
    assert {"batch", "length", "tokens", "accumulate"} <= origin["train"].keys()
    (checkpoint / "state.json").write_text(json.dumps({**state, "origin": origin}), "utf-8")
    write_checksums(checkpoint)
    ended = ask("train", "old", "train.steps=5", "--resume")
    assert ended.code == 0, ended.err
    assert "Finished at step 5" in ended.out
    assert ended.out.count("Changed since") == 2, "train.steps and train.out"
    assert "batch_tokens" in json.loads((folder / "recipe.json").read_text("utf-8"))["train"]


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [(name, old, new) for name, table in TABLES.items() for old, new in table.FORMER_NAMES.items()],
)
def test_an_old_key_in_a_recipe_is_refused_with_the_new_name(table: str, old: str, new: str, ask: Ask) -> None:
    Path("old.toml").write_text(f"[model]\npreset = 'tiny-decoder'\n[{table}]\n{old} = 1\n", "utf-8")
    ended = ask("train", "old.toml")
    assert ended.code == 2
    assert f"{table}.{old}: there is no such key; it is called {table}.{new} here." in ended.err
