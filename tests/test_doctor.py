"""The doctor: every planted bug is found by its own check, healthy subjects have no findings, nothing is changed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import make_bundle
from commands import Ask
from planted import HEALTHY, PLANTED_BUGS, POSSIBLE_INTENTIONS, Subjects

from chumoku.data.pairs import Pair
from chumoku.doctor import CHECKS, Check, Finding, Subject, examine, run_quick_checks
from chumoku.doctor.finding import Skip
from chumoku.doctor.open_subject import open_subject
from chumoku.doctor.tools import distance, restore_after, train_mode
from chumoku.errors import ShapeError, UsageError
from chumoku.models.model import Model
from chumoku.training.datasets import prepare
from chumoku.training.recipe import read_recipe


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


def checks_of(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings}


@pytest.mark.sample(3)
@pytest.mark.parametrize("title", PLANTED_BUGS)
def test_planted_bugs_are_found_and_named(title: str, subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED_BUGS[title]
    report = examine(planted.plant(subjects, monkeypatch))
    assert planted.check in checks_of(report.findings), report.skipped
    assert all(finding.measured for finding in report.findings), "a check that breaks down has found nothing"
    # A bug that is planted by changing a module is also reported by the check of modules.
    assert checks_of(report.findings) <= {planted.check, "modules", *planted.also}
    assert report.broken
    for finding in report.findings:
        assert 0 < finding.sure <= 1
        assert finding.what.endswith((".", "!")), "a sentence"
        assert finding.todo.endswith("."), "a sentence"
        assert finding.where


@pytest.mark.parametrize("title", POSSIBLE_INTENTIONS)
def test_possible_intentions_are_only_hints(title: str, subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = POSSIBLE_INTENTIONS[title]
    report = examine(planted.plant(subjects, monkeypatch))
    assert checks_of(report.findings) - {"modules"} == {planted.check}
    assert not report.broken


def test_one_bug_is_one_finding(subjects: Subjects) -> None:
    subject = subjects.translator()
    assert subject.model is not None
    for block in subject.model.decoder.blocks:
        block.cross_attention.output.weight.data.zero_()
    findings = [finding for finding in examine(subject).findings if finding.check == "gradients"]
    assert len(findings) == 1
    assert re.match(r"4\d of \d+ parameters", findings[0].what)
    assert re.search(r" and 4\d more$", findings[0].where)


def test_there_are_enough_bugs_and_every_check_has_one() -> None:
    docs = Path(__file__).parent.parent / "docs"
    english, japanese = ((docs / one / "guides/doctor.md").read_text(encoding="utf-8") for one in ("en", "ja"))
    bugs, healthy = len(PLANTED_BUGS), len(HEALTHY)
    assert f"all {bugs} planted bugs are found and named correctly, with no findings on {healthy} healthy" in english
    assert f"There are {len(CHECKS)} checks" in english
    assert f"{len(CHECKS)} 項目" in japanese
    assert f"仕込んだ {bugs} 個" in japanese
    assert f"コーパス {healthy} 件" in japanese
    # Engines and changed modules are planted in tests/test_doctor_engine.py.
    assert {plant.check for plant in PLANTED_BUGS.values()} == {check.name for check in CHECKS} - {"engine", "modules"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("title", HEALTHY)
def test_healthy_subjects_have_no_findings(title: str, subjects: Subjects) -> None:
    with HEALTHY[title](subjects) as subject:
        report = examine(subject)
    assert report.findings == []
    assert len(report.passed) >= 10
    assert set(report.passed) | set(report.skipped) == {check.name for check in CHECKS}


def test_wrong_engine_is_found(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    from chumoku.decoding.engines.base import TorchEngine
    from chumoku.doctor import cache

    class Forgetful(TorchEngine):
        def step(self, tokens: torch.Tensor) -> torch.Tensor:
            self.truncate([length - 1 for length in self.lengths])
            return super().step(tokens)

    subject = subjects.decoder(initialization="xavier")
    monkeypatch.setattr(cache, "open_engine", TorchEngine)
    assert not list(cache.run_engine(subject))
    monkeypatch.setattr(cache, "open_engine", Forgetful)
    assert [finding.check for finding in cache.run_engine(subject)] == ["engine"]


def state(model: Model) -> dict[str, Any]:
    return {
        "bits": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "places": [parameter.data_ptr() for parameter in model.parameters()],
        "flags": [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "rates": [getattr(module, "dropout", None) for module in model.modules()],
        "chance": torch.get_rng_state(),
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    bits = all(torch.equal(tensor, other["bits"][name]) for name, tensor in one["bits"].items())
    rest = all(one[key] == other[key] for key in ("places", "flags", "modes", "rates"))
    return bits and rest and torch.equal(one["chance"], other["chance"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_examine_changes_nothing(kind: str, subjects: Subjects) -> None:
    subject = subjects.subject(kind, norm="batch", dropout={"attention": 0.3})
    assert subject.model is not None
    before = state(subject.model)
    examine(subject)
    assert same(before, state(subject.model))
    torch.rand(1)
    assert not same(before, state(subject.model)), "what would be noticed"


def test_restore_after_restores_even_after_an_error(subjects: Subjects) -> None:
    model = subjects.decoder(dropout={"embedding": 0.3}).model
    assert model is not None
    before = state(model)

    def roughly() -> None:
        with restore_after(model), train_mode(model):
            assert model.dtype == torch.float64
            for parameter in model.parameters():
                parameter.data.fill_(7.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roughly()
    assert same(before, state(model))


def test_quick_checks_are_the_cheap_ones(subjects: Subjects, tmp_path: Path) -> None:
    recipe = read_recipe(subjects.recipe("decoder", train={"out": str(tmp_path)}))
    material = prepare(recipe)
    model = subjects.decoder().model
    assert model is not None
    before = state(model)
    assert run_quick_checks(material, model) == []
    assert same(before, state(model))
    model.decoder.causal = False
    assert checks_of(run_quick_checks(material, model)) >= {"future"}
    assert 8 <= sum(check.cheap for check in CHECKS) < len(CHECKS) - 8


def test_skipped_checks_give_a_reason() -> None:
    report = examine(Subject())
    assert report.findings == []
    assert report.passed == []
    assert set(report.skipped) == {check.name for check in CHECKS}
    assert all(reason for reason in report.skipped.values())


def test_crashing_check_is_a_finding() -> None:
    def run(subject: Subject) -> Iterator[Finding]:
        raise ShapeError("Tokens are of the wrong shape.")
        yield

    def pause(subject: Subject) -> Iterator[Finding]:
        raise Skip("today is Sunday")
        yield

    checks = [Check("odd", "nothing is odd", True, run), Check("idle", "nothing", True, pause)]
    calls: list[Any] = []
    report = examine(Subject(), checks=checks, on_check=lambda *done: calls.append(done))
    assert [finding.check for finding in report.findings] == ["odd"]
    assert "wrong shape" in report.findings[0].what
    assert not report.findings[0].measured
    assert report.skipped == {"idle": "today is Sunday"}
    assert [done[2] for done in calls] == [None, "today is Sunday"]


def test_the_warning_of_slow_bf16_is_not_shown_but_others_are() -> None:
    def warn(_: Subject) -> Iterator[Finding]:
        warnings.warn("mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul: no bf16", stacklevel=2)
        warnings.warn("mkldnn is odd", stacklevel=2)
        yield from ()

    with pytest.warns(UserWarning, match="mkldnn is odd") as shown:
        examine(Subject(), checks=[Check("warns", "it warns", cheap=True, run=warn)])
    assert [str(one.message) for one in shown] == ["mkldnn is odd"]


def test_blocking_finding_skips_other_model_checks(subjects: Subjects) -> None:
    subject = subjects.decoder()
    assert subject.model is not None
    subject.model.decoder.norm.gamma.data[0] = float("inf")
    report = examine(subject)
    assert checks_of(report.findings) == {"numbers"}
    assert "numbers" in report.skipped["future"]
    assert "labels" in report.passed, "the corpus has nothing to do with it"


def test_unsure_finding_is_not_broken() -> None:
    def run(subject: Subject) -> Iterator[Finding]:
        yield Finding("odd", "It looks odd.", "here", 0.3, "Look.")

    report = examine(Subject(), checks=[Check("odd", "nothing is odd", True, run)])
    assert report.findings
    assert not report.broken


def test_few_leaks_and_duplicates_are_accepted(subjects: Subjects) -> None:
    """Thresholds from both sides: one line of many is no finding, one of ten is."""
    corpus = subjects.corpus()
    assert corpus.pairs is not None
    assert corpus.validation_pairs is not None
    for many, expected in ((1, set()), (len(corpus.pairs) // 10, {"lines"})):
        subject = Subject(pairs=[*corpus.pairs, *corpus.pairs[:many]])
        assert checks_of(examine(subject).findings) == expected
    swapped = [Pair(*reversed(pair)) for pair in corpus.pairs[:2]]
    assert not examine(Subject(pairs=[*corpus.pairs, *swapped])).findings


def test_distances() -> None:
    one = torch.tensor([2.0, -4.0])
    assert distance(one, one) == 0
    assert distance(one, torch.tensor([2.0, -3.0])) == pytest.approx(0.25)
    assert distance(one, torch.tensor([2.0, float("nan")])) == float("inf")


def test_the_command_on_a_healthy_model(tmp_path: Path, ask: Ask) -> None:
    finished = ask("doctor", str(make_bundle(tmp_path / "model", "decoder")))
    assert finished.code == 0, finished.out + finished.err
    assert "No findings" in finished.out
    assert "✓ future" in finished.out
    assert "– leak          skipped: " in finished.out


def test_the_command_on_a_damaged_model(tmp_path: Path, ask: Ask) -> None:
    folder = make_bundle(tmp_path / "model", "decoder")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    finished = ask("doctor", str(folder), "--json")
    assert finished.code == 1
    output = json.loads(finished.out)
    assert output["broken"] is True
    assert [finding["check"] for finding in output["findings"]] == ["checkpoint"]
    assert set(output["findings"][0]) == {"check", "what", "where", "sure", "todo", "measured"}
    assert "✗ checkpoint" in finished.err


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [["nothing-there"], ["demo", "model.widht=3"], ["MODEL", "model.width=3"]])
def test_wrong_use(words: list[str], tmp_path: Path, ask: Ask) -> None:
    place = make_bundle(tmp_path / "model", "encoder")
    finished = ask("doctor", *(str(place) if word == "MODEL" else word for word in words))
    assert finished.code == 2
    assert finished.err.strip().endswith((".", "?"))
    assert "Traceback" not in finished.err


def test_a_recipe_leaves_nothing_behind(
    subjects: Subjects, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "text.txt"
    corpus.write_text((subjects.folder / "text.txt").read_text(encoding="utf-8"), encoding="utf-8")
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        '[model]\nwidth = 24\nheads = 3\nlayers = 1\ncontext = 29\n[tokenizer]\nkind = "byte"\n'
        f'[data]\nfiles = "{corpus}"\n[train]\nout = "{tmp_path / "run"}"\nbatch_size = 13\n'
        "[optimizer]\nlearning_rate = 0.01\n"
    )
    finished = ask("doctor", str(recipe), "model.layers=2", "--quick")
    assert finished.code == 0, finished.out + finished.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["small.toml", "text.txt"]


def test_run_without_corpus_is_still_examined(subjects: Subjects, tmp_path: Path) -> None:
    make_bundle(tmp_path / "run" / "last", "decoder")
    recipe = subjects.recipe("decoder", data={"files": str(tmp_path / "gone.txt")})
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    output: list[str] = []
    with open_subject(str(tmp_path / "run"), notify=output.append) as subject:
        assert subject.model is not None
        assert subject.train is None
        assert not examine(replace(subject, recipe=None)).findings
    assert "gone.txt" in output[-1]


def test_changes_belong_to_recipes(tmp_path: Path) -> None:
    place = make_bundle(tmp_path / "model", "encoder")
    with pytest.raises(UsageError, match="changes a recipe"), open_subject(str(place), ["model.width=3"]):
        pass
