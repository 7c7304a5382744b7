"""Schedules and objectives equal their formulas."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from cells import KINDS, Cell, model_of, tokens
from hypothesis import given
from hypothesis import strategies as st

from chumoku.data.batches import IGNORE
from chumoku.errors import UsageError
from chumoku.training.objectives import Objective, count_labels, forward
from chumoku.training.schedule import Schedule, paper_peak


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 10**4), width=st.integers(1, 4096))
def test_inverse_sqrt_is_the_papers_formula(step: int, warmup: int, width: int) -> None:
    paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    ours = paper_peak(width, warmup) * Schedule("inverse_sqrt", warmup=warmup)(step)
    assert math.isclose(ours, paper, rel_tol=1e-12)


def test_each_schedule_rises_stays_and_falls_as_it_says() -> None:
    cosine = Schedule("cosine", warmup=10, steps=110, min_ratio=0.1)
    assert [cosine(1), cosine(5), cosine(10)] == [0.1, 0.5, 1.0]
    assert math.isclose(cosine(60), 0.55)
    assert math.isclose(cosine(110), 0.1)
    assert math.isclose(cosine(999), 0.1)
    wsd = Schedule("wsd", warmup=10, steps=110, decay=20)
    assert (wsd(10), wsd(11), wsd(90), wsd(100), wsd(110)) == (1.0, 1.0, 1.0, 0.5, 0.0)
    constant = Schedule("constant", warmup=4)
    assert (constant(1), constant(4), constant(10**9)) == (0.25, 1.0, 1.0)


@given(
    kind=st.sampled_from(["inverse_sqrt", "cosine", "wsd", "constant"]),
    step=st.integers(1, 2000),
    warmup=st.integers(0, 300),
)
def test_schedule_is_above_zero_and_at_most_one(kind: str, step: int, warmup: int) -> None:
    rate = Schedule(kind, warmup=warmup, steps=1000, decay=500, min_ratio=0.01)(step)  # type: ignore[arg-type]
    assert 0 < rate <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "linear"}, "There is no schedule 'linear'"),
        ({"warmup": 700, "steps": 500}, "700 warm-up steps and 0 decay steps do not fit into a run of 500"),
        ({"min_ratio": 2.0}, "min_ratio from 0 to 1"),
        ({"steps": 0}, "at least 1 step"),
    ],
)
def test_impossible_schedules_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Schedule(**changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Steps count from 1"):
        Schedule()(0)


def batch_for(kind: str, rows: int = 4) -> dict[str, torch.Tensor]:
    labels = tokens(rows, 11, seed=5)
    labels[0, 3:] = IGNORE
    labels[2, ::2] = IGNORE
    if kind == "encoder-decoder":
        mask = torch.arange(7) < torch.tensor([[7], [5], [3], [7]])[:rows]
        return {"source": tokens(rows, 7), "source_mask": mask, "target": tokens(rows, 11, seed=1), "labels": labels}
    return {"tokens": tokens(rows, 11, seed=1), "labels": labels}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_objective_is_its_formula(kind: str, smoothing: float) -> None:
    batch = batch_for(kind)
    model = model_of(Cell(kind), torch.float32)
    objective = Objective(model, label_smoothing=smoothing).train()
    total = objective(batch)
    logs = forward(model, batch).logits.log_softmax(-1)
    expected, count = 0.0, 0
    for row in range(4):
        for place in range(11):
            label = int(batch["labels"][row, place])
            if label != IGNORE:
                here = logs[row, place]
                expected += -(1 - smoothing) * float(here[label].detach()) - smoothing * float(here.mean().detach())
                count += 1
    assert count_labels(batch) == count
    assert math.isclose(float(total.detach()), expected, rel_tol=1e-5)
    if smoothing:
        assert float(objective.eval()(batch).detach()) != float(total.detach()), "nothing is smoothed when judged"


@pytest.mark.parametrize("kind", KINDS)
def test_small_batches_add_up_to_a_large_one(kind: str) -> None:
    """Three unequal parts, divided by the tokens of all, give the gradients of the whole; a mean of means does not."""
    model, batch = model_of(Cell(kind)), batch_for(kind)
    parameters = list(model.parameters())

    def gradients(parts: list[slice], *, mean_of_means: bool = False) -> list[torch.Tensor]:
        batches = [{name: table[part] for name, table in batch.items()} for part in parts]
        losses, counts = [Objective(model)(one) for one in batches], [count_labels(one) for one in batches]
        if mean_of_means:
            total = sum(loss / count for loss, count in zip(losses, counts, strict=True)) / len(losses)
        else:
            total = sum(losses) / sum(counts)
        return list(torch.autograd.grad(total, parameters))

    whole = gradients([slice(0, 4)])
    parts = [slice(0, 1), slice(1, 3), slice(3, 4)]
    for one, other in zip(whole, gradients(parts), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    wrong = gradients(parts, mean_of_means=True)
    assert max(float((a - b).abs().max()) for a, b in zip(whole, wrong, strict=True)) > 1e-4


def test_packed_documents_have_the_loss_of_single_ones() -> None:
    model = model_of(Cell("decoder"))
    one, two = tokens(1, 5), tokens(1, 6, seed=1)
    batch = {
        "tokens": torch.cat([one, two], 1),
        "labels": tokens(1, 11, seed=2),
        "documents": torch.tensor([[0] * 5 + [1] * 6]),
        "positions": torch.tensor([[*range(5), *range(6)]]),
    }
    alone = [
        F.cross_entropy(model(part).logits[0].float(), labels, reduction="sum")
        for part, labels in ((one, batch["labels"][0, :5]), (two, batch["labels"][0, 5:]))
    ]
    torch.testing.assert_close(Objective(model)(batch), sum(alone))


def test_a_model_without_logits_cannot_learn_tokens() -> None:
    with pytest.raises(UsageError, match="outputs vectors, not logits"):
        Objective(model_of(Cell("encoder"), head="vector"))(batch_for("encoder"))
    with pytest.raises(UsageError, match=r"label smoothing of 1\.5"):
        Objective(model_of(Cell("encoder")), label_smoothing=1.5)
