"""Packed rows: the same losses, gradients and attention as pairs one by one, and batches of one shape."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

import chumoku
from chumoku.data.batches import IGNORE, PairBatches, Share
from chumoku.data.packed_pairs import PackedPairBatches
from chumoku.data.prepared import Pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.errors import ChumokuError
from chumoku.nn.attention import attend, attend_packed
from chumoku.nn.gpu_kernels import has_kernels
from chumoku.nn.packing import make_packing, positions_from_starts, sequence_numbers
from chumoku.text.special_tokens import Roles
from chumoku.training import distributed
from chumoku.training.distributed import World, single_cpu_thread, wrap
from chumoku.training.objectives import Objective
from chumoku.training.recipe import read_recipe

ROLES = Roles(pad=0, begin=1, end=2)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def make_pairs(folder, lengths):
    random, sides = np.random.default_rng(5), []
    for name, column in (("source", 0), ("target", 1)):
        with RaggedArrayWriter(folder / name, np.dtype(np.uint16)) as writer:
            for pair in lengths:
                writer.add(random.integers(3, 61, pair[column]))
            sides.append(RaggedArray(folder, writer.close()))
    return Pairs(*sides)


def packed(folder, lengths, tokens=97, seed=3):
    return PackedPairBatches(PairBatches(make_pairs(folder, lengths), tokens=tokens, source_roles=ROLES, seed=seed))


def tiny(**choices):
    torch.manual_seed(0)
    sizes = {"width": 28, "heads": 2, "layers": 2, "encoder_layers": 3, "feedforward_width": 31, "context": 37}
    preset = {
        "vocabulary": 61,
        "dropout": dict.fromkeys(("embedding", "attention", "sublayer"), 0.0),
        **sizes,
        **choices,
    }
    return chumoku.build(chumoku.preset("tiny-encoder-decoder", **preset))


many_lengths = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), min_size=1, max_size=59)


@given(many_lengths, st.integers(0, 3), st.sampled_from([1, 2, 3]))
def test_every_epoch_has_each_pair_once_in_rows_of_one_shape(tmp_path_factory, lengths, epoch, world):
    folder = tmp_path_factory.mktemp("pairs")
    batches = packed(folder, lengths)
    indices = [i for index in range(len(batches)) for i in batches.samples(epoch, index)]
    assert sorted(indices) == list(range(len(lengths)))
    if batches.fewest_rows < world:
        return
    shape, texts = batches.shape(world), []
    assert shape.length <= 97
    for index in range(len(batches)):
        for rank in range(world):
            batch = batches.batch(epoch, index, Share(rank, world))
            assert {name: tuple(table.shape) for name, table in batch.items()} == {
                **dict.fromkeys(("source", "target", "labels"), (1, shape.length)),
                **dict.fromkeys(("source_starts", "target_starts"), (shape.sequences + 1,)),
            }
            for side in ("source", "target"):
                starts = batch[f"{side}_starts"]
                assert starts[0] == 0
                assert starts[-1] == shape.length
                assert 0 <= starts.diff().min() <= starts.diff().max() <= batches.longest
            for s, t in zip(
                *(batch[f"{side}_starts"].unfold(0, 2, 1).tolist() for side in ("source", "target")), strict=True
            ):
                label = batch["labels"][0, slice(*t)]
                if (label != IGNORE).any():
                    target = batch["target"][0, slice(*t)]
                    assert target[0] == 1
                    assert label[-1] == 2
                    assert torch.equal(target[1:], label[:-1])
                    texts.append((tuple(batch["source"][0, slice(*s)].tolist()), tuple(label.tolist())))
    pairs = batches.pairs
    wanted = [((*pairs.source[i].tolist(), 2), (*pairs.target[i].tolist(), 2)) for i in range(len(pairs))]
    assert sorted(texts) == sorted(wanted)


def test_a_pair_as_long_as_a_row_is_packed_in_good_time(tmp_path):
    """The number of batches is then far from the smallest possible one."""
    batches = packed(tmp_path, [(96, 96), *[(2, 2)] * 9972], tokens=97)
    tried = []
    batches._totals = lambda count, world: tried.append(count) or PackedPairBatches._totals(batches, count, world)
    assert batches._fewest_batches() == len(batches)
    assert len(tried) < 40


def test_batches_are_nearly_full(tmp_path):
    random = np.random.default_rng(7)
    source = np.clip(random.lognormal(3, 0.5, 9973), 2, 113).astype(int)
    target = np.clip(source * random.normal(1, 0.2, 9973), 2, 113).astype(int)
    batches = packed(tmp_path, list(zip(source, target, strict=True)), tokens=4099)
    assert batches.padding < 0.03
    assert len({tuple(batches.samples(epoch, 0)) for epoch in range(5)}) == 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_attention_stays_within_sequences(device, causal, heads):
    dtype = torch.float64 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 5, 18, 31, 31], dtype=torch.int32, device=device)
    keys = starts if causal else torch.tensor([0, 7, 7, 20, 20, 23], dtype=torch.int32, device=device)
    packing, width = make_packing(starts, 31, keys, int(keys[-1])), 16
    query = torch.randn(1, heads[0], 31, width, dtype=dtype, device=device, requires_grad=True)
    key, value = (
        torch.randn(1, heads[1], int(keys[-1]), width, dtype=dtype, device=device, requires_grad=True) for _ in range(2)
    )
    inputs, found = (query, key, value), []
    for output in (
        attend_packed(*inputs, packing, causal=causal),
        attend(*inputs, mask=packing.mask(), causal=causal)[0],
    ):
        found.append((output, *torch.autograd.grad((output * output.detach().cos()).sum(), inputs)))
    tolerance = {"atol": 1e-12, "rtol": 0} if device == "cpu" else {"atol": 0.04, "rtol": 0.02}
    for ours, formula in zip(*found, strict=True):
        torch.testing.assert_close(ours, formula, **tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_kernel_is_for_half_precision_where_triton_is_installed(dtype):
    assert has_kernels(SimpleNamespace(device=torch.device("cuda"), dtype=dtype)) == (
        importlib.util.find_spec("triton") is not None and dtype.itemsize == 2
    )


def test_positions_count_from_the_start_of_each_sequence():
    starts = torch.tensor([0, 3, 3, 5, 9], dtype=torch.int32)
    assert positions_from_starts(starts, sequence_numbers(starts, 9)).tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "none"])
@pytest.mark.parametrize("plain", [False, True])
def test_packed_rows_give_the_loss_and_gradients_of_padded_batches(tmp_path, position, plain):
    lengths = [(5, 7), (11, 3), (29, 23), (2, 2), (13, 17), (7, 5), (0, 1)]
    batches = packed(tmp_path, lengths, tokens=83)
    objective = Objective(tiny(position=position).double())
    results = []
    for source in (batches, batches.pair_batches):
        objective.zero_grad()
        with chumoku.plain(plain):
            losses = [objective(source.batch(0, index)) for index in range(len(source))]
            sum(losses).backward()
        results.append((sum(losses).item(), [p.grad for p in objective.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_step_is_compiled_for_the_first_batch_only(tmp_path):
    torch._dynamo.reset()
    batches = packed(tmp_path, [(source, 31 - source) for source in range(2, 31)], tokens=83)
    objective, counter = Objective(tiny(layers=1, encoder_layers=1)), CompileCounter()
    compiled = torch.compile(objective, backend=counter, dynamic=False)
    counts = []
    for index in range(3):
        torch.testing.assert_close(compiled(batches.batch(0, index)), objective(batches.batch(0, index)))
        counts.append(counter.frame_count)
    assert counts == [counts[0]] * 3


def test_recorded_weights_of_a_packed_row_stay_within_sequences(tmp_path):
    batches = packed(tmp_path, [(5, 7), (11, 3), (13, 17)], tokens=83)
    batch, model = batches.batch(0, 0), tiny().eval()
    with torch.no_grad(), chumoku.record(model) as tape:
        model(*(batch[key] for key in ("source", "target")), **{k: v for k, v in batch.items() if "starts" in k})
    weights = tape["decoder.blocks.1.cross_attention.weights"]
    numbers = [sequence_numbers(batch[f"{side}_starts"], batch[side].shape[1]) for side in ("target", "source")]
    inside = numbers[0][:, None] == numbers[1]
    assert weights[:, :, ~inside].abs().max() == 0
    assert weights[0, :, :3].sum(-1).allclose(torch.ones(1))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"position": "relative"}, "positions"),
        ({"position": "alibi"}, "positions"),
        ({"position": "relative_bias"}, "positions"),
        ({"attention_window": 5}, "window"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, change, sentence):
    batch = packed(tmp_path, [(5, 7), (11, 3)]).batch(0, 0)
    with pytest.raises(ChumokuError, match=sentence):
        Objective(tiny(**change))(batch)
    model = {"preset": "tiny-encoder-decoder", **change}
    recipe = {"model": model, "data": {"kind": "pairs", "files": "a.tsv"}, "train": {"packing": True}}
    with pytest.raises(ChumokuError, match=r"train\.packing.*" + sentence):
        read_recipe(recipe)


def test_attention_dropout_is_refused(tmp_path):
    rates = {"embedding": 0.1, "attention": 0.1, "sublayer": 0.1}
    with pytest.raises(ChumokuError, match="dropout"):
        Objective(tiny(dropout=rates)).train()(packed(tmp_path, [(5, 7), (11, 3)]).batch(0, 0))
    model = {"preset": "tiny-encoder-decoder", "dropout": rates, "position": "none"}
    recipe = {"model": model, "data": {"kind": "pairs", "files": "a.tsv"}, "train": {"packing": True}}
    with pytest.raises(ChumokuError, match=r"train\.packing.*dropout"):
        read_recipe(recipe)


def test_starts_and_rows_are_checked(tmp_path):
    batch, model = packed(tmp_path, [(5, 7), (11, 3)]).batch(0, 0), tiny()
    source, target = batch["source"], batch["target"]
    starts = {key: batch[key] for key in ("source_starts", "target_starts")}
    for wrong in (
        {**starts, "target_starts": starts["target_starts"][:-1]},
        {**starts, "source_starts": starts["source_starts"].long()},
        {"target_starts": starts["target_starts"]},
        {"source_starts": starts["source_starts"]},
        {**starts, "source_mask": torch.ones_like(source, dtype=torch.bool)},
    ):
        with pytest.raises(ChumokuError, match=r"[Pp]acked"):
            model(source, target, **wrong)


def test_training_with_packing_learns_and_resumes(tmp_path):
    words = ["one", "two", "three", "four", "five"]
    lines = [f"{a} {b} {c}\t{c} {b} {a}" for a in words for b in words for c in words]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), "utf-8")
    sizes = {"width": 28, "heads": 2, "layers": 1, "encoder_layers": 1, "feedforward_width": 31, "context": 37}
    recipe = {
        "model": {"kind": "encoder-decoder", "position": "rotary", **sizes},
        "tokenizer": {"kind": "word"},
        "data": {"kind": "pairs", "files": str(tmp_path / "pairs.tsv"), "validation_share": 0.1},
        "train": {"packing": True, "batch_tokens": 131, "save_every": 5, "validate_every": 11, "samples": 0},
        "optimizer": {"learning_rate": 0.01},
        "schedule": {"kind": "constant"},
    }
    losses = {}
    for name, steps in (("whole", [11]), ("resumed", [5, 11])):
        for number, count in enumerate(steps):
            train = {**recipe["train"], "out": str(tmp_path / name), "steps": count}
            result = chumoku.train({**recipe, "train": train}, resume=number > 0)
        losses[name] = result.best_loss
    assert losses["whole"] < 2.5
    assert losses["resumed"] == losses["whole"]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_without_the_kernel_is_refused(monkeypatch, precision):
    """One call of attention for each sentence would be very slow."""
    monkeypatch.setattr(distributed, "TRITON", False)
    settings = read_recipe(
        {
            "model": {"preset": "tiny-encoder-decoder", "position": "none"},
            "data": {"kind": "pairs", "files": "a.tsv"},
            "train": {"packing": True, "precision": precision},
        }
    ).train
    with pytest.raises(ChumokuError, match="16 bits" if precision == "float32" else "Triton"):
        wrap(Objective(tiny()), settings, World(torch.device("cuda")))


def test_beside_a_gpu_one_cpu_thread_computes():
    before = torch.get_num_threads()
    for beside_gpu in (True, False):
        with single_cpu_thread(beside_gpu=beside_gpu):
            assert torch.get_num_threads() == (1 if beside_gpu else before)
        assert torch.get_num_threads() == before
