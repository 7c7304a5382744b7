"""Distillation: the loss is its formula, the teacher is only read, and recipes refuse teachers that do not fit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import recipe_for
from rich.console import Console
from torch import Tensor

import chumoku
from chumoku import text
from chumoku.errors import ConfigError, UsageError
from chumoku.models.model import Model
from chumoku.training.objectives import Objective
from chumoku.training.objectives.distillation import Distillation, distillation_loss
from chumoku.training.recipe import read_recipe
from chumoku.training.run import train

pytestmark = pytest.mark.usefixtures("quick_runs")
VOCABULARY = 23


def build(seed: int, *, width: int = 12, **settings: Any) -> Model:
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "width": width, "layers": 1, "heads": 2, "context": 17}
    return chumoku.build(chumoku.ModelConfig(**{**sizes, **settings}), seed=seed)


def random_batch() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(5)
    batch = {name: torch.randint(VOCABULARY, (3, 7), generator=random) for name in ("tokens", "labels")}
    batch["labels"][1, 3:] = -100
    return batch


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_loss_is_its_formula(temperature: float) -> None:
    random = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 3, 5, 7, generator=random).double()
    labels = torch.randint(7, (3, 5), generator=random)
    labels[0, 2] = labels[2, 4] = -100
    expected = 0.0
    for row in range(3):
        for place in range(5):
            p, q = ((side[row, place] / temperature).exp() for side in (teacher, student))
            p, q = p / p.sum(), q / q.sum()
            if labels[row, place] >= 0:
                expected += temperature**2 * float((p * (p / q).log()).sum())
    found = distillation_loss(student, teacher, labels, temperature)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    classes = distillation_loss(student[:, 0], teacher[:, 0], labels[:, 0], temperature)
    assert float(classes) == pytest.approx(
        float(distillation_loss(student[:, :1], teacher[:, :1], labels[:, :1], temperature))
    )


def test_both_terms_are_mixed_and_eval_mode_is_cross_entropy() -> None:
    student, teacher, batch = build(1), build(2, width=16), random_batch()
    plain = Objective(student)
    options: dict[str, Any] = {"temperature": 2.0, "outputs": VOCABULARY}
    mixed = Distillation(student, teacher, weight=0.3, **options)
    assert torch.equal(mixed.eval()(batch), plain.eval()(batch))
    soft = distillation_loss(student(batch["tokens"]).logits, teacher(batch["tokens"]).logits, batch["labels"], 2.0)
    torch.testing.assert_close(mixed.train()(batch), 0.7 * plain.train()(batch) + 0.3 * soft)
    itself = Distillation(student, student, weight=1.0, **options).train()
    for parameter in student.parameters():
        parameter.requires_grad_(True)
    itself(batch).backward()  # type: ignore[no-untyped-call]
    largest = max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None)
    assert largest < 1e-5, "a model has nothing to learn from itself"


def test_the_teacher_is_no_part_of_the_objective() -> None:
    teacher = build(2, dropout={"sublayer": 0.5})
    teacher.train()
    objective = Distillation(build(1), teacher, temperature=2.0, weight=0.5, outputs=VOCABULARY).train()
    assert {name for name, _ in objective.named_parameters()} == {
        f"model.{name}" for name, _ in objective.model.named_parameters()
    }
    assert not any(module.training for module in teacher.modules()), "no dropout"
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    batch = random_batch()
    assert torch.equal(objective(batch), objective(batch))
    padded = Distillation(build(1, vocabulary=29), teacher, temperature=2.0, weight=1.0, outputs=VOCABULARY)
    assert torch.isfinite(padded.train()(batch)), "vocabularies may be padded differently"


def test_a_student_takes_the_tokenizer_and_comes_near_the_teacher(corpora: Path, tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    teacher = chumoku.load(corpora / "teacher")
    near = {}
    for weight in (0.0, 1.0):
        out = tmp_path / f"student-{weight}"
        tables = recipe_for("distillation", corpora, out, train={"steps": 47}, distillation={"weight": weight})
        trained = train(tables, console=quiet)
        student = chumoku.load(trained.last)
        assert student.tokenizer.fingerprint == teacher.tokenizer.fingerprint
        tokens = torch.tensor([student.tokenizer.encode("It was the ")])
        labels = torch.zeros_like(tokens)
        near[weight] = float(distillation_loss(student.model(tokens).logits, teacher.model(tokens).logits, labels, 1.0))
    assert near[1.0] < 0.5 * near[0.0]
    stored = json.loads((tmp_path / "student-1.0" / "recipe.json").read_text("utf-8"))
    assert "tokenizer" not in stored
    assert read_recipe(stored).distillation is not None, "a run's own recipe is accepted"


def test_another_teacher_is_another_run(corpora: Path, tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    tables = recipe_for("distillation", corpora, tmp_path / "run", train={"steps": 5})
    train(tables, console=quiet)
    other = chumoku.load(corpora / "teacher")
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    other.save(tmp_path / "other")
    tables["distillation"] = {"teacher": str(tmp_path / "other")}
    with pytest.raises(UsageError, match=r"belongs to another run.*\n.*distillation\.teacher"):
        train(tables, resume=True, console=quiet)


def test_wrong_teachers_are_refused(corpora: Path, tmp_path: Path) -> None:
    def refused(changes: dict[str, Any], **tables: Any) -> str:
        recipe = {**recipe_for("distillation", corpora, tmp_path / "x"), **tables}
        recipe["distillation"] = {**recipe["distillation"], **changes}
        with pytest.raises(ConfigError) as error:
            read_recipe(recipe)
        return str(error.value)

    assert "distillation.teacher: " in refused({"teacher": str(tmp_path / "absent")})
    assert "distillation.temperature: 0 is too small" in refused({"temperature": 0})
    assert "distillation.weight: 1.5 is too large" in refused({"weight": 1.5})
    assert "tokenizer: the student takes the tokenizer of its teacher" in refused({}, tokenizer={"kind": "byte"})
    encoder = {"kind": "encoder", "width": 12, "layers": 1, "heads": 3, "context": 11}
    assert "the teacher is of kind 'decoder' with the head 'next', the student of kind 'encoder'" in refused(
        {}, model=encoder
    )
    other = chumoku.Pipeline(build(1, vocabulary=300), text.train(["a"], kind="byte", sentinels=1))
    other.save(tmp_path / "other")
    tables = recipe_for("distillation", corpora, tmp_path / "y")
    tables["model"] = {"init": str(tmp_path / "other")}
    with pytest.raises(UsageError, match="The teacher has another tokenizer than the student"):
        train(tables, console=Console(file=io.StringIO()))
