"""The contrastive objective: its formula, false negatives, exact accumulation, and whole runs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sentence_recipes import sentence_recipe, write_table
from test_runs import equal, everything, losses
from torch import Tensor

import chumoku
from chumoku.data.sentence_batches import SentenceBatches
from chumoku.doctor.accumulation import minimal_run, weight_change
from chumoku.errors import ConfigError, CorpusError, UsageError
from chumoku.models.model import EncoderModel
from chumoku.training.datasets import prepare
from chumoku.training.distributed import World
from chumoku.training.objectives import ContrastiveObjective, count_labels
from chumoku.training.objectives.contrastive import contrastive_losses
from chumoku.training.plan import plan
from chumoku.training.recipe import read_recipe
from chumoku.training.run import TrainResult

pytestmark = pytest.mark.usefixtures("quick_runs")
ROWS, WIDTH, TAU = 5, 7, 0.3


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_table(folder / "pairs.tsv")
    write_table(folder / "triplets.tsv", negatives=True)
    return folder


def go(recipe: dict[str, Any], *, resume: bool = False) -> TrainResult:
    return chumoku.train(recipe, resume=resume, console=Console(file=io.StringIO()))


def triplets(tables: Path, out: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    data = {"columns": [0, 1, 2]} | changes.pop("data", {})
    return sentence_recipe(tables / "triplets.tsv", out, data=data, **changes)


def random_vectors(sides: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, sides, WIDTH, generator=random, dtype=torch.float64)


def written_out(vectors: Tensor, allowed: list[list[int]]) -> list[float]:
    """loss_i with loops; `allowed[i]` are the candidates of row i besides its own positive."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True)
    candidates = [unit[row, side] for side in range(1, vectors.shape[1]) for row in range(len(vectors))]
    result = []
    for row in range(len(vectors)):
        scores = {place: math.exp(float(unit[row, 0] @ candidates[place]) / TAU) for place in (row, *allowed[row])}
        result.append(-math.log(scores[row] / sum(scores.values())))
    return result


@pytest.mark.parametrize("sides", [2, 3])
def test_the_loss_equals_its_formula(sides: int) -> None:
    vectors = random_vectors(sides)
    groups = torch.arange(ROWS * (sides - 1)).view(sides - 1, ROWS).T
    others = [[place for place in range(ROWS * (sides - 1)) if place != row] for row in range(ROWS)]
    found = contrastive_losses(vectors, groups, temperature=TAU)
    assert found.tolist() == pytest.approx(written_out(vectors, others), rel=1e-12)


def test_both_directions_are_the_mean_of_two_losses() -> None:
    vectors, groups = random_vectors(2), torch.arange(ROWS)[:, None]
    one, other = (contrastive_losses(each, groups, temperature=TAU) for each in (vectors, vectors.flip(1)))
    found = contrastive_losses(vectors, groups, temperature=TAU, both_directions=True)
    torch.testing.assert_close(found, (one + other) / 2)


def test_false_negatives_are_left_out() -> None:
    """Rows 0 and 3 are near-duplicates; the negative of row 1 is a text of row 2; own negatives always count."""
    vectors = random_vectors(3)
    groups = torch.tensor([[7, -1], [11, 13], [13, -1], [7, 7], [17, -1]])
    allowed = [[place for place in range(2 * ROWS) if place != row] for row in range(ROWS)]
    for row, place in ((0, 3), (3, 0), (2, ROWS + 1), (0, ROWS + 3)):
        allowed[row].remove(place)
    found = contrastive_losses(vectors, groups, temperature=TAU)
    assert found.tolist() == pytest.approx(written_out(vectors, allowed), rel=1e-12)


def test_widths_add_the_losses_of_the_first_elements(tables: Path, tmp_path: Path) -> None:
    model, batch = model_and_batch(tables, tmp_path)
    expected = [
        contrastive_losses(vectors[..., :width], batch["group"][:, None], temperature=TAU).sum()
        for vectors in (ContrastiveObjective(model).embed(batch)[0],)
        for width in (5, 14)
    ]
    objective = ContrastiveObjective(model, temperature=TAU, widths=[5, 14])
    torch.testing.assert_close(objective.train()(batch), sum(expected, torch.zeros(())).double())
    torch.testing.assert_close(objective.eval()(batch), expected[1])


def model_and_batch(tables: Path, out: Path, **changes: dict[str, Any]) -> tuple[EncoderModel, dict[str, Tensor]]:
    data = prepare(read_recipe(sentence_recipe(tables / "pairs.tsv", out, **changes)))
    model = chumoku.build(data.config, seed=2, dtype=torch.float64)
    assert isinstance(model, EncoderModel)
    return model, data.train.batch(0, 0)


def take_rows(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: table[rows] for name, table in batch.items()}


@pytest.mark.parametrize("kind", ["pairs", "triplets"])
def test_accumulated_batches_are_one_large_batch(kind: str, tables: Path, tmp_path: Path) -> None:
    """The negatives of a row are all rows of the step, also those of other batches."""
    recipe = triplets(tables, tmp_path) if kind == "triplets" else sentence_recipe(tables / "pairs.tsv", tmp_path)
    data = prepare(read_recipe(recipe))
    model = chumoku.build(data.config, seed=2, dtype=torch.float64).train()
    batch = data.train.batch(0, 0)
    objective = ContrastiveObjective(model, widths=[5, 14])
    assert count_labels(batch) == 11
    whole = weight_change(model, objective, [batch])
    parts = weight_change(model, objective, [take_rows(batch, slice(0, 4)), take_rows(batch, slice(4, 11))])
    for name, moved in whole.items():
        torch.testing.assert_close(parts[name], moved, rtol=1e-9, atol=1e-12)
    # Negatives of the own batch only give another gradient: the test would notice.
    halves = [take_rows(batch, slice(0, 4)), take_rows(batch, slice(4, 11))]
    model.zero_grad()
    sum((objective(half) for half in halves), torch.zeros(())).backward()
    name = "encoder.embedding.table"
    alone = -1e-3 * dict(model.named_parameters())[name].grad / 11  # type: ignore[operator]
    assert (alone - whole[name]).abs().max() > 0.01 * whole[name].abs().max()


def test_both_passes_of_a_step_have_the_same_dropout(tables: Path, tmp_path: Path) -> None:
    """The loss of the first pass is that of the vectors of the second."""
    rates = {"dropout": {"embedding": 0.3, "attention": 0.0, "sublayer": 0.2}}
    model, batch = model_and_batch(tables, tmp_path, model=rates)
    objective, world = ContrastiveObjective(model).train(), World(torch.device("cpu"))
    halves = [take_rows(batch, slice(0, 4)), take_rows(batch, slice(4, 11))]
    torch.manual_seed(5)
    total = torch.zeros((), dtype=torch.float64)
    vectors = []
    for half in objective.step_batches(halves, objective, world):
        vectors.append(objective.embed(half)[0])
        total = total + half["loss"]
    expected = objective.losses(torch.cat(vectors), batch["group"][:, None]).sum()
    torch.testing.assert_close(total, expected)


def test_a_step_counts_rows(tables: Path, tmp_path: Path) -> None:
    model, batch = model_and_batch(tables, tmp_path)
    run = minimal_run(model, ContrastiveObjective(model))
    run.train_step([batch], count_labels(batch))
    assert run.state.tokens == 11


def test_training_finds_positives(tables: Path, tmp_path: Path) -> None:
    log = io.StringIO()
    recipe = sentence_recipe(tables / "pairs.tsv", tmp_path, train={"steps": 31, "samples": 1, "log_every": 1})
    result = chumoku.train(recipe, console=Console(file=log, width=300))
    found = losses(tmp_path)
    assert sum(found[-5:]) < 0.8 * sum(found[:5])
    assert "recall@1 among 11 validation rows: " in log.getvalue()
    assert "perplexity" not in log.getvalue()
    trained = chumoku.load(result.last)
    assert trained.config.head_kind == "vector"
    assert trained.embed(["cata dogb", "stock"]).shape == (2, 14)
    notes: list[str] = []
    assert torch.equal(*trained.embed(["stock " * 7, "stock " * 11], note=notes.append))  # cut as in training
    assert "this model reads the first 37 tokens" in notes[0]


def test_a_resumed_run_is_the_same_run(tables: Path, tmp_path: Path) -> None:
    options = {"gradient_accumulation": 2, "batch_size": 5}
    model = {"dropout": {"embedding": 0.1, "attention": 0.2, "sublayer": 0.3}}
    schedule = {"kind": "constant"}

    def recipe(name: str, steps: int) -> dict[str, Any]:
        train = {**options, "steps": steps}
        return triplets(tables, tmp_path / name, model=model, train=train, schedule=schedule)

    go(recipe("whole", 7))
    go(recipe("parts", 4))
    go(recipe("parts", 7), resume=True)
    assert equal(everything(tmp_path / "whole"), everything(tmp_path / "parts"))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16
def test_an_adapter_learns_in_bf16(tables: Path, tmp_path: Path) -> None:
    """The adapter of a sentence encoder: trained, saved, and merged into its base by `load`."""
    start = go(triplets(tables, tmp_path / "base", train={"steps": 1})).last
    tables_of_run = triplets(tables, tmp_path / "run", train={"precision": "bf16", "log_every": 1})
    del tables_of_run["tokenizer"]
    lora = {"rank": 3, "targets": ["encoder.blocks.*.attention.{query,value}"]}
    trained = go({**tables_of_run, "model": {"init": str(start)}, "lora": lora})
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]
    base, adapted = chumoku.load(start), chumoku.load(trained.last)
    assert torch.equal(adapted.model.encoder.embedding.table, base.model.encoder.embedding.table)
    assert not torch.allclose(adapted.embed("a cat"), base.embed("a cat"), atol=1e-3)


def test_batches_have_rows_of_similar_length_once_an_epoch(tables: Path, tmp_path: Path) -> None:
    batches = prepare(read_recipe(triplets(tables, tmp_path))).train
    assert isinstance(batches, SentenceBatches)
    for epoch in (0, 1):
        seen = np.concatenate([batches.samples(epoch, index) for index in range(len(batches))])
        assert len(set(seen.tolist())) == len(seen) == len(batches) * 11
    assert not np.array_equal(batches.samples(0, 0), batches.samples(1, 0))
    spread = [np.ptp(batches.lengths[batches.samples(0, index)]) for index in range(len(batches))]
    assert np.mean(spread) < np.ptp(batches.lengths) / 2
    with pytest.raises(CorpusError, match="each row needs others as negatives"):
        SentenceBatches(batches.sentences, rows=101)


def test_start_from_a_masked_encoder_and_from_a_translator(tables: Path, tmp_path: Path) -> None:
    """The weights of their encoders, and a vector instead of other outputs."""
    sizes = {"vocabulary": 263, "width": 14, "layers": 2, "heads": 7, "context": 37, "feedforward_width": 19}
    own = {"encoder": {}, "encoder-decoder": {"encoder_layers": 3, "share_embeddings": True}}
    tokenizer = chumoku.text.train(["cat"], kind="byte")
    for kind, keys in own.items():
        model = chumoku.build(chumoku.ModelConfig(kind=kind, **sizes, **keys), seed=3)  # type: ignore[arg-type]
        chumoku.save(tmp_path / kind, model, tokenizer)
        recipe = sentence_recipe(tables / "pairs.tsv", tmp_path / f"run-{kind}", train={"steps": 1})
        recipe["model"], recipe["optimizer"] = {"init": str(tmp_path / kind)}, {"learning_rate": 1e-12}
        del recipe["tokenizer"]
        trained = chumoku.load(go(recipe).last).model
        assert trained.config.kind == "encoder"
        assert trained.config.head_kind == "vector"
        stored = model.state_dict()
        for name, tensor in trained.state_dict().items():
            torch.testing.assert_close(tensor, stored[name])
        assert trained.config.layers == model.config.encoder_depth


def test_prepared_sentences_are_not_read_again(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = read_recipe(sentence_recipe(tables / "pairs.tsv", tmp_path))
    first = prepare(recipe)
    monkeypatch.setattr("chumoku.training.datasets.sentences.read_corpus", pytest.fail)
    assert prepare(recipe).corpus == first.corpus


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"head": "masked"}}, "sentences train vectors"),
        ({"model": {"kind": "decoder"}}, "'sentences' does not fit a model of kind 'decoder'; choose from text"),
        ({"model": {"norm": "batch"}}, "batch norm mixes the rows"),
        ({"contrastive": {"widths": [15]}}, "15 is more than the model's width, 14"),
        ({"contrastive": {"temperature": 0.0}}, "contrastive.temperature"),
        ({"contrastive": {"tau": 0.1}}, "temperature"),
        ({"data": {"columns": [0]}}, "two or three columns"),
        ({"data": {"weights": [1.0]}}, "this key is for pairs"),
        ({"data": {"both_directions": True, "languages": ["ja", "en"]}}, "contrastive.both_directions"),
        ({"data": {"kind": "text"}, "model": {"head": "vector"}}, "data.kind = 'sentences'"),
        ({"data": {"kind": "text"}, "contrastive": {}}, "this table is for data.kind = 'sentences'"),
    ],
)
def test_what_does_not_fit_sentences_is_refused(changes: Any, sentence: str, tables: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_recipe(sentence_recipe(tables / "pairs.tsv", tmp_path, **changes))


def test_the_dry_run_times_the_contrastive_loss(tables: Path, tmp_path: Path) -> None:
    found = plan(read_recipe(triplets(tables, tmp_path)))
    assert found["tokens_a_step"] == 11 * 3 * 24
    assert found["tokens_timed"] > 0


def test_a_decoder_has_no_contrastive_objective() -> None:
    config = chumoku.ModelConfig(kind="decoder", vocabulary=11, width=14, layers=1, heads=7)
    with pytest.raises(UsageError, match="needs a model of kind 'encoder'"):
        ContrastiveObjective(chumoku.build(config))
