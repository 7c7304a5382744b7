"""Logit lens, rollout, patching and ablation: properties that hold for every kind of model, and counterexamples."""

from __future__ import annotations

import math

import pytest
import torch
from cells import CELLS, HEADS, KINDS, VOCABULARY, Cell, model_of, tokens
from foreign import save_variant

import chumoku
from chumoku.errors import AddressError, ChumokuError, ShapeError, UsageError
from chumoku.models.model import Model, Output
from chumoku.models.precision import to_precision
from chumoku.nn import attention as attention_module
from chumoku.nn.attention import repeat_kv
from chumoku.nn.record_check import check_same, same_bits
from chumoku.nn.tap import edit, record
from chumoku.probe.attention import attention_entropy, attention_rollout, entropy, record_attention
from chumoku.probe.edits import apply_edits
from chumoku.probe.forward_pass import final_output, make_input, run_and_record, run_model
from chumoku.probe.lens import logit_lens, residual_norms
from chumoku.probe.patching import Change, ablate, patch
from chumoku.weights.formats.transformers_folder import read_folder

SOME = CELLS[::37]
LENGTH = 7


def source_of(model: Model) -> torch.Tensor | None:
    return tokens(2, 5, seed=3) if model.config.kind == "encoder-decoder" else None


def output_of(model: Model, written: torch.Tensor) -> torch.Tensor:
    return final_output(run_model(model, make_input(model, written, source_of(model))))


@pytest.mark.sample(11)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_last_layer_of_the_lens_equals_the_output(cell: Cell) -> None:
    model = model_of(cell, torch.float32)
    written = tokens(2, LENGTH)
    lens = logit_lens(model, written, source=source_of(model), best=3, debug=True)
    output = output_of(model, written).softmax(-1)
    assert lens.tokens.shape == (3, 2, LENGTH, 3)
    best = output.topk(3)
    assert torch.equal(lens.tokens[-1], best.indices)
    assert torch.equal(lens.probabilities[-1], best.values)
    assert torch.equal(lens.final[-1], best.values[..., 0])
    assert not torch.allclose(lens.probabilities[0], lens.probabilities[-1]), "layers differ"


def test_lens_refuses_wrong_inputs() -> None:
    vectors = model_of(Cell("encoder"), torch.float32, head="vector")
    with pytest.raises(UsageError, match="no head over the vocabulary"):
        logit_lens(vectors, tokens(1, 5))
    decoder = model_of(Cell("decoder"))
    with pytest.raises(UsageError, match=f"best=30 is out of range: use 1 to {VOCABULARY}"):
        logit_lens(decoder, tokens(1, 5), best=30)
    with pytest.raises(UsageError, match="takes no source"):
        logit_lens(decoder, tokens(1, 5), source=[1, 2])
    with pytest.raises(UsageError, match="needs a source"):
        logit_lens(model_of(Cell("encoder-decoder")), [1, 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_stream_norm_is_at_most_the_sum_of_its_parts(kind: str, placement: str) -> None:
    model = model_of(Cell(kind, placement=placement))
    streams = residual_norms(model, tokens(2, LENGTH), source=source_of(model))
    assert list(streams) == [name for name in ("encoder", "decoder") if hasattr(model, name)]
    for name, stream in streams.items():
        length = 5 if (kind, name) == ("encoder-decoder", "encoder") else LENGTH
        assert stream.x.shape == (3, 2, length)
        assert stream.attention.shape == stream.feedforward.shape == (2, 2, length)
        assert (stream.cross is not None) == (kind == "encoder-decoder" and name == "decoder")
        if placement == "pre":  # triangle inequality
            parts = stream.attention + stream.feedforward + (0 if stream.cross is None else stream.cross)
            assert (stream.x[1:] <= stream.x[:-1] + parts + 1e-4).all()
            assert not (stream.x[1:] <= stream.x[:-1] + parts * 0.1).all()


def test_entropy_in_bits() -> None:
    rows = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0], [0.0, 0, 0, 0]])
    assert entropy(rows).tolist() == [0.0, 2.0, 1.0, 0.0]
    model = model_of(Cell("encoder-decoder"))
    by_head = attention_entropy(model, tokens(2, LENGTH), source=source_of(model))
    assert {name: tuple(value.shape) for name, value in by_head.items()} == dict.fromkeys(
        ("encoder", "decoder", "cross"), (2, HEADS)
    )
    assert 0 < float(by_head["cross"].max()) <= math.log2(5) + 1e-6


@pytest.mark.parametrize("cell", SOME[::3], ids=str)
def test_rollout_rows_sum_to_one(cell: Cell) -> None:
    model = model_of(cell)
    rollout = attention_rollout(model, tokens(2, LENGTH), source=source_of(model))
    for name in ("encoder", "decoder"):
        assert (getattr(rollout, name) is not None) == hasattr(model, name)
    if rollout.decoder is not None:
        whole = rollout.decoder.sum(-1) + (0 if rollout.cross is None else rollout.cross.sum(-1))
        torch.testing.assert_close(whole, torch.ones_like(whole))
        assert (rollout.decoder.triu(1) == 0).all(), "no attention to the future"
    if rollout.encoder is not None:
        torch.testing.assert_close(rollout.encoder.sum(-1), torch.ones_like(rollout.encoder[..., 0]))


def test_rollout_of_two_layers_by_hand() -> None:
    model = model_of(Cell("decoder"))
    maps = record_attention(model, tokens(2, LENGTH))["decoder"].float().mean(2)
    half = (maps + torch.eye(LENGTH)) / 2
    found = attention_rollout(model, tokens(2, LENGTH)).decoder
    torch.testing.assert_close(found, half[1] @ half[0])
    assert not torch.allclose(found, half[0] @ half[1]), "the order matters"


@pytest.mark.sample(5)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_patching_the_stream_of_another_run_gives_its_output(cell: Cell) -> None:
    """Later layers see the tokens only through the stream, so replacing it removes every trace of the first text."""
    model = model_of(cell, torch.float32)
    one, other = tokens(2, LENGTH, seed=1), tokens(2, LENGTH, seed=2)
    source = source_of(model)
    _, tape = run_and_record(model, other, source=source)
    stack = "encoder" if cell.kind == "encoder" else "decoder"
    for address in (
        f"{stack}.token_embedding",
        f"{stack}.embedding",
        f"{stack}.blocks.0.output",
        f"{stack}.blocks.1.output",
    ):
        change = patch(model, address, tape, one, source=source, debug=True)
        assert same_bits(change.after, output_of(model, other)), address
        assert same_bits(change.before, output_of(model, one))
    assert change.max_difference > 1e-3
    if cell.kind != "encoder":
        late = patch(model, f"{stack}.blocks.0.output", tape, one, source=source, positions=[LENGTH - 2])
        moved = ((late.before - late.after).abs() > 1e-5).any(-1).any(0).tolist()
        assert moved == [False] * (LENGTH - 2) + [True] * 2, "only from that position on"


@pytest.mark.sample(5)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_patching_with_its_own_tensors_changes_nothing(cell: Cell) -> None:
    model = model_of(cell, torch.float32)
    written, source = tokens(2, LENGTH), source_of(model)
    _, tape = run_and_record(model, written, source=source)
    for pattern in (
        "**.output",
        "**.heads",
        "**.{attention,feedforward}_norm",
        "**.after_*",
        "**.token_embedding",
        "logits",
    ):
        change = patch(model, pattern, tape, written, source=source)
        assert same_bits(change.before, change.after), pattern
        assert change.effect == change.max_difference == 0


@pytest.mark.sample(13)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_heads_are_recomputed_from_replaced_weights_and_values(cell: Cell) -> None:
    model = model_of(cell)
    written, source = tokens(2, LENGTH), source_of(model)
    _, tape = run_and_record(model, written, source=source)
    for pattern in ("**.weights", "**.values"):
        assert patch(model, pattern, tape, written, source=source).max_difference < 1e-9, (
            "its own weights, through the formula"
        )
    stack = "encoder" if cell.kind == "encoder" else "decoder"
    path = f"{stack}.blocks.0.attention"
    even = torch.full((2, HEADS, LENGTH, LENGTH), 1 / LENGTH, dtype=torch.float64)
    with apply_edits(model, {f"{path}.weights": lambda _: even}), record(model, f"{path}.heads") as inside:
        run_model(model, make_input(model, written, source))
    values = repeat_kv(tape[f"{path}.values"], even)
    torch.testing.assert_close(inside[f"{path}.heads"], values.mean(2, keepdim=True).expand(-1, -1, LENGTH, -1))


@pytest.mark.parametrize("feedforward", ["relu", "swiglu"])
def test_every_tensor_that_is_passed_on_can_be_switched_off(feedforward: str) -> None:
    model = model_of(Cell("encoder-decoder", "learned", feedforward=feedforward), torch.float32)
    patterns = ("**.token_embedding", "**.position", "**.after_*", "**.pre_activation")
    effects = ablate(model, tokens(2, LENGTH), *patterns, source=source_of(model), debug=True)
    assert len(effects) == 14
    assert all(one.effect > 0 for one in effects)
    first = patch(
        model, "decoder.position", torch.zeros_like, tokens(2, LENGTH), source=source_of(model), positions=[3]
    )
    assert ((first.before - first.after).abs() > 1e-5).any(-1).any(0).tolist() == [False] * 3 + [True] * (LENGTH - 3)


def test_wrong_patches_are_refused() -> None:
    model = model_of(Cell("decoder", feedforward="experts"))
    for name in ("queries", "keys", "scores", "masked_scores"):
        with pytest.raises(AddressError, match=rf"{name} can be recorded but not replaced.*\.weights, \.values"):
            patch(model, f"decoder.blocks.0.attention.{name}", torch.zeros(1), tokens(1, 3))
    for name in ("router", "chosen", "pre_activation", "hidden"):
        with pytest.raises(AddressError, match=r"experts have already used it.*feedforward\.output"):
            patch(model, f"decoder.blocks.0.feedforward.{name}", torch.zeros(1), tokens(1, 3))
    with pytest.raises(AddressError, match=r"Did you mean decoder\.blocks\.0\.output"):
        patch(model, "decoder.block.0.output", torch.zeros(1), tokens(1, 3))
    with pytest.raises(ShapeError, match=r"shape \[1, 3, 30\], but the replacement has \[1, 4, 30\]"):
        patch(model, "decoder.blocks.0.output", torch.zeros(1, 4, 30), tokens(1, 3))
    with pytest.raises(UsageError, match=r"2 addresses match decoder\.blocks\.\*\.output"):
        patch(model, "decoder.blocks.*.output", torch.zeros(1, 3, 30), tokens(1, 3))
    with pytest.raises(UsageError, match="no heads to choose from"):
        patch(model, "decoder.blocks.0.output", torch.zeros(1, 3, 30), tokens(1, 3), heads=[0])
    with pytest.raises(UsageError, match=r"no head 3 at decoder\.blocks\.0\.attention\.heads: it has 3"):
        patch(model, "decoder.blocks.0.attention.heads", torch.zeros_like, tokens(1, 5), heads=[3])
    with pytest.raises(UsageError, match="no position 5"):
        patch(model, "decoder.blocks.0.output", torch.zeros_like, tokens(1, 5), positions=[5])
    with pytest.raises(UsageError, match="use 'zero' or 'mean'"):
        ablate(model, tokens(1, 5), by="random")


@pytest.mark.parametrize("kind", KINDS)
def test_ablating_a_head_equals_zeroing_its_output_columns(kind: str) -> None:
    model = model_of(Cell(kind))
    written, source = tokens(2, LENGTH), source_of(model)
    before = output_of(model, written)
    found = {(one.address, one.head): one.effect for one in ablate(model, written, source=source, debug=True)}
    attentions = 6 if kind == "encoder-decoder" else 2
    blocks = 4 if kind == "encoder-decoder" else 2
    assert len(found) == attentions * HEADS + blocks
    assert list(found.values()) == sorted(found.values(), reverse=True)
    stack = "encoder" if kind == "encoder" else "decoder"
    path = f"{stack}.blocks.1.attention"
    output = model.get_submodule(path).output
    kept, width = output.weight.detach().clone(), 10
    for head in range(HEADS):
        with torch.no_grad():
            output.weight[:, head * width : (head + 1) * width] = 0
        expected = Change(before, output_of(model, written)).effect
        with torch.no_grad():
            output.weight.copy_(kept)
        assert found[f"{path}.heads", head] == pytest.approx(expected, abs=1e-12)
        assert expected > 0
    assert same_bits(output_of(model, written), before), "nothing stays switched off"


def test_heads_and_positions_select_along_their_axes() -> None:
    model = model_of(Cell("decoder"))
    address = "decoder.blocks.0.attention.heads"
    _, tape = run_and_record(model, tokens(2, LENGTH))
    seen = []

    def keep(heads: torch.Tensor) -> torch.Tensor:
        seen.append(heads)
        return torch.zeros_like(heads)

    change = patch(model, address, keep, tokens(2, LENGTH), heads=[1], positions=[LENGTH - 2])
    assert torch.equal(seen[0], tape[address])
    moved = ((change.before - change.after).abs() > 1e-9).any(-1).any(0).tolist()
    assert moved == [False] * (LENGTH - 2) + [True] * 2
    both = patch(model, address, torch.zeros_like, tokens(2, LENGTH), positions=[LENGTH - 2])
    assert not torch.equal(both.after, change.after), "one head is not all of them"


def test_ablation_in_one_batch_equals_one_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("encoder-decoder", feedforward="experts"))
    arguments = {"source": source_of(model), "positions": [1, 4]}
    batched = {(one.address, one.head): one.effect for one in ablate(model, tokens(2, LENGTH), **arguments)}
    monkeypatch.setattr("chumoku.probe.patching.MAX_LOGITS", 1)
    alone = {(one.address, one.head): one.effect for one in ablate(model, tokens(2, LENGTH), **arguments)}
    assert batched == pytest.approx(alone, abs=1e-9)
    one = next(address for address, head in alone if head is None)
    change = patch(model, one, torch.zeros_like, tokens(2, LENGTH), source=source_of(model))
    assert alone[one, None] == pytest.approx(float(change.effects[:, [1, 4]].mean()), rel=1e-9)


def test_ablation_by_mean() -> None:
    model = model_of(Cell("decoder"))
    part = "decoder.blocks.0.feedforward.output"
    by_mean = ablate(model, tokens(2, LENGTH), part, by="mean")
    assert [one.address for one in by_mean] == [part]
    assert by_mean[0].effect != ablate(model, tokens(2, LENGTH), part)[0].effect
    assert ablate(model, [3], part, by="mean")[0].effect == pytest.approx(0, abs=1e-12), "one position is its own mean"


def test_effect_on_vectors_is_one_minus_cosine() -> None:
    model = model_of(Cell("encoder"), torch.float32, head="vector")
    found = ablate(model, tokens(1, LENGTH))
    assert len(found) == 2 * HEADS + 2
    assert 0 < found[0].effect <= 2
    turned = patch(model, "vector", lambda vector: -vector, tokens(1, LENGTH))
    assert turned.effect == pytest.approx(2)


def test_record_inside_an_edit_sees_it_and_outside_does_not() -> None:
    model = model_of(Cell("decoder"))
    address = "decoder.blocks.0.output"
    with record(model, address) as outside, edit(model, {address: torch.zeros_like}), record(model, address) as inside:
        model(tokens(1, 3))
    assert outside[address].any()
    assert not inside[address].any()
    with record(model, address) as after:
        model(tokens(1, 3))
    assert same_bits(after[address], outside[address])


def test_debug_detects_recording_that_changes_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("decoder"), torch.float32)
    show = attention_module.Attention._record

    def disturbing(self, query, key, value, context):
        if attention_module.is_recorded(self, "weights"):
            self.output.bias.data.add_(1e-3)
        show(self, query, key, value, context)

    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    monkeypatch.setattr(attention_module.Attention, "_record", disturbing)
    try:
        run_and_record(model, tokens(1, 5))
        with pytest.raises(
            ChumokuError, match="Observing the model changed its result: while recording, decoder differs by up to"
        ):
            run_and_record(model, tokens(1, 5), debug=True)
        monkeypatch.setenv("CHUMOKU_DEBUG", "1")
        with pytest.raises(ChumokuError, match="Observing the model changed its result"):
            logit_lens(model, tokens(1, 5)) and attention_rollout(model, tokens(1, 5))
        monkeypatch.setenv("CHUMOKU_DEBUG", "0")
        attention_rollout(model, tokens(1, 5))
    finally:
        model.load_state_dict(kept)


def test_outputs_are_compared_bitwise() -> None:
    nan, zero = torch.tensor([math.nan]), torch.zeros(1)
    check_same(Output(nan, zero), Output(nan.clone(), zero), "seen")
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.double())


def test_training_mode_is_restored() -> None:
    model = chumoku.build(Cell("decoder").config(dropout={"sublayer": 0.5}))
    model.train()
    model.decoder.blocks[0].eval()
    modes = [part.training for part in model.modules()]
    one, _ = run_and_record(model, tokens(1, 5))
    two, _ = run_and_record(model, tokens(1, 5))
    assert same_bits(final_output(one), final_output(two)), "no dropout while recording"
    assert [part.training for part in model.modules()] == modes


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_probes_work_at_other_precisions(precision: str) -> None:
    model = to_precision(model_of(Cell("decoder"), torch.float32), precision)
    written = tokens(1, LENGTH)
    lens = logit_lens(model, written, debug=True)
    assert torch.equal(lens.tokens[-1, ..., 0], output_of(model, written).argmax(-1))
    assert ablate(model, written, debug=True)[0].effect > 0
    assert attention_rollout(model, written, debug=True).decoder is not None


def their_maps(theirs: torch.nn.Module, written: torch.Tensor, source: torch.Tensor | None) -> dict[str, torch.Tensor]:
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        if source is None:
            out = theirs(written, output_attentions=True)
            return {"encoder" if "bert" in type(theirs).__name__.lower() else "decoder": torch.stack(out.attentions)}
        out = theirs(input_ids=source, decoder_input_ids=written, output_attentions=True)
    parts = {"encoder": out.encoder_attentions, "decoder": out.decoder_attentions, "cross": out.cross_attentions}
    return {name: torch.stack(layers) for name, layers in parts.items()}


@pytest.mark.parametrize("name", ["gpt2", "bert", "bert body", "llama", "llama 3", "marian"])
def test_attention_maps_equal_those_of_transformers(name: str, tmp_path, monkeypatch) -> None:
    """Theirs are computed eagerly, ours beside the fused kernel, whose calls are counted."""
    theirs = save_variant(name, tmp_path)
    ours = read_folder(tmp_path).model
    generator = torch.Generator().manual_seed(5)
    written = torch.randint(263, (2, 31), generator=generator)
    source = torch.randint(263, (2, 29), generator=generator) if name == "marian" else None
    expected = their_maps(theirs, written, source)
    fused, calls = torch.nn.functional.scaled_dot_product_attention, []

    def counting(*arguments, **options):
        calls.append(1)
        return fused(*arguments, **options)

    monkeypatch.setattr(attention_module.F, "scaled_dot_product_attention", counting)
    found = record_attention(ours, written, source=source)
    assert len(calls) == sum(len(maps) for maps in found.values())
    assert list(found) == list(expected)
    for key, maps in found.items():
        assert maps.shape == expected[key].shape
        assert float((maps - expected[key]).abs().max()) < 1e-5
        assert float((maps.roll(1, 2) - expected[key]).abs().max()) > 1e-3, "heads in another order are noticed"
