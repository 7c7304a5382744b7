"""Recording: every address is recorded, results do not change, and the fused kernel still runs."""

from __future__ import annotations

import threading

import pytest
import torch
from cells import CELLS, HEADS, KINDS, Cell, model_of, tokens
from laws import logits_of

import chumoku
from chumoku.errors import AddressError, ChumokuError
from chumoku.models.build import build
from chumoku.models.config import Dropout
from chumoku.models.model import Model
from chumoku.models.presets import PRESETS, preset
from chumoku.nn import attention as attention_module
from chumoku.nn import masks, tap
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.tap import Tape, edit, matches, record

SOME = CELLS[::7]


@pytest.mark.sample(17)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_recording_changes_no_bit(cell: Cell) -> None:
    model = model_of(cell, torch.float32)
    given = tokens(2, 11)
    expected = logits_of(model, given)
    with record(model) as tape:
        recorded = logits_of(model, given)
    assert torch.equal(recorded, expected)
    assert sorted(tape) == sorted(chumoku.addresses(model)), "every declared address was recorded, and no other"
    assert all(tensor.isfinite().all() for tensor in tape.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", ["rotary", "relative", "relative_bias", "learned", "alibi"])
def test_recording_changes_no_bit_of_training(kind: str, position: str) -> None:
    """With dropout from the same seed, outputs and gradients equal those of a step without recording in every bit."""
    config = Cell(kind, position).config(dropout=Dropout(embedding=0.1, attention=0.2, sublayer=0.3))

    def step(*, recorded: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = build(config).train()
        torch.manual_seed(11)
        if recorded:
            with record(model):
                output = logits_of(model, tokens(2, 11))
        else:
            output = logits_of(model, tokens(2, 11))
        return output, list(torch.autograd.grad(output.square().mean(), list(model.parameters())))

    output, gradients = step(recorded=False)
    recorded, recorded_gradients = step(recorded=True)
    assert torch.equal(output, recorded)
    assert all(map(torch.equal, gradients, recorded_gradients))


def test_fused_kernel_runs_while_weights_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("encoder-decoder"), torch.float32)
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention

    def counting(*arguments, **options):
        calls.append(1)
        return fused(*arguments, **options)

    monkeypatch.setattr(attention_module.F, "scaled_dot_product_attention", counting)
    with record(model, "**.weights") as tape:
        logits_of(model, tokens(2, 11))
    assert len(calls) == len(tape) == 6


@pytest.mark.sample(17)
@pytest.mark.parametrize("cell", SOME, ids=str)
def test_recorded_weights_times_values_equal_heads(cell: Cell) -> None:
    """The weights computed for recording are those that the kernel used, also with padding."""
    model = model_of(cell)
    real = masks.real_tokens(torch.tensor([11, 7]), 11)
    with record(model) as tape:
        if cell.kind == "encoder-decoder":
            model(tokens(2, 11), tokens(2, 11), source_mask=real, target_mask=real)
        else:
            model(tokens(2, 11), mask=real)
    for address in [address for address in tape if address.endswith("attention.weights")]:
        path = address.removesuffix("weights")
        values = attention_module.repeat_kv(tape[path + "values"], tape[path + "queries"])
        torch.testing.assert_close(tape[address] @ values, tape[path + "heads"], atol=1e-10, rtol=0)
        sums = tape[address].sum(-1)[real[:, None].expand(-1, HEADS, -1)]
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-10, rtol=0)
        if "decoder" in path and "cross" not in path:
            assert (tape[address].triu(1) == 0).all()


@pytest.mark.sample(31)
@pytest.mark.parametrize("cell", CELLS[::11], ids=str)
def test_recorded_tensors_follow_the_formulas(cell: Cell) -> None:
    """Each recorded tensor is what the formula gives for the tensors recorded before it."""
    model = model_of(cell)
    real = masks.real_tokens(torch.tensor([11, 7]), 11)
    with torch.no_grad(), record(model) as tape:
        if cell.kind == "encoder-decoder":
            model(tokens(2, 11), tokens(2, 11), source_mask=real, target_mask=real)
        else:
            model(tokens(2, 11), mask=real)
    for name in {"encoder": ["encoder"], "decoder": ["decoder"]}.get(cell.kind, ["encoder", "decoder"]):
        x = tape[f"{name}.token_embedding"]
        if cell.position in ("sinusoidal", "learned"):
            x = x + tape[f"{name}.position"]
        assert_close(x, tape[f"{name}.embedding"])
        for layer, block in enumerate(getattr(model, name).blocks):
            here = f"{name}.blocks.{layer}"
            for attention in ("attention", "cross_attention"):
                if f"{here}.{attention}.output" in tape:
                    check_weights(tape, f"{here}.{attention}")
                    after = tape[f"{here}.after_{attention}"]
                    assert_close(after_sublayer(tape, x, f"{here}.{attention}", cell.placement), after)
                    start, x = x, after
            normalized = cell.placement in ("pre", "sandwich")
            given = tape[f"{here}.feedforward_norm"] if normalized else start if model.config.parallel else x
            check_hidden(tape, block.feedforward, f"{here}.feedforward", given)
            x = after_sublayer(tape, x, f"{here}.feedforward", cell.placement)
            assert_close(x, tape[f"{here}.output"])


def after_sublayer(tape: Tape, x: torch.Tensor, path: str, placement: str) -> torch.Tensor:
    added = {"pre": f"{path}.output", "output": f"{path}_norm", "sandwich": f"{path}_output_norm"}
    return tape[f"{path}_norm"] if placement == "post" else x + tape[added[placement]]


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def check_weights(tape: Tape, path: str) -> None:
    """weights = softmax(masked scores); a hidden key has weight 0, and a visible one keeps its score."""
    scores, masked, weights = (tape[f"{path}.{name}"] for name in ("scores", "masked_scores", "weights"))
    visible = masked != torch.finfo(masked.dtype).min
    assert_close(masked[visible], scores[visible])
    assert (weights[~visible] == 0).all()
    some = visible.any(-1)
    assert_close(masked.softmax(-1)[some], weights[some])


def check_hidden(tape: Tape, module: torch.nn.Module, path: str, x: torch.Tensor) -> None:
    """hidden = f(pre-activation), times x W_up with a gate; of experts, for each that was chosen."""
    before, hidden = tape[f"{path}.pre_activation"], tape[f"{path}.hidden"]
    if isinstance(module, FeedForward):
        up, activation = module.up(x), module.activation
        assert_close(before, up if module.gate is None else module.gate(x))
    else:
        chosen, activation, experts = tape[f"{path}.chosen"], module.experts.activation, module.experts
        up, gate = (torch.einsum("btd,btkfd->btkf", x, weight[chosen]) for weight in (experts.up, experts.gate))
        up, gate = up + experts.up_bias[chosen], gate + experts.gate_bias[chosen]
        assert_close(before, gate)
    assert_close(activation.function(before) * (up if activation.gated else 1.0), hidden)


def test_addresses_are_stable() -> None:
    names = set(chumoku.addresses(build(Cell("encoder-decoder").config(layers=4), device="meta")))
    for address in (
        "encoder.blocks.0.attention.weights",
        "decoder.blocks.3.cross_attention.weights",
        "decoder.blocks.3.feedforward.hidden",
        "decoder.blocks.3.output",
        "decoder.embedding",
        "decoder.norm",
        "logits",
        "decoder.blocks.0.attention.queries",
        "decoder.blocks.0.attention.keys",
        "decoder.blocks.0.attention.values",
        "decoder.blocks.0.attention.scores",
        "decoder.blocks.0.attention.masked_scores",
        "decoder.blocks.0.after_attention",
        "decoder.blocks.0.after_cross_attention",
        "encoder.blocks.0.after_attention",
        "encoder.blocks.0.feedforward.pre_activation",
        "encoder.token_embedding",
    ):
        assert address in names
    post = chumoku.addresses(build(Cell("decoder", placement="post").config(), device="meta"))
    assert "decoder.norm" not in post
    assert "decoder.position" not in post, "rotary positions are not added to the embedding"
    assert "decoder.position" in chumoku.addresses(build(Cell("decoder", "learned").config(), device="meta"))
    assert not any("cross_attention" in address for address in post)


@pytest.mark.parametrize(
    ("pattern", "address", "fits"),
    [
        ("decoder.blocks.*.attention.weights", "decoder.blocks.11.attention.weights", True),
        ("decoder.blocks.*.attention.weights", "decoder.blocks.11.cross_attention.weights", False),
        ("decoder.blocks.*.attention.weights", "encoder.blocks.1.attention.weights", False),
        ("**.weights", "decoder.blocks.0.cross_attention.weights", True),
        ("**.logits", "logits", True),
        ("*", "decoder.norm", False),
        ("**", "decoder.norm", True),
        ("decoder.blocks.{0,2}.output", "decoder.blocks.2.output", True),
        ("decoder.blocks.{0,2}.output", "decoder.blocks.1.output", False),
        ("decoder.norm", "decoderXnorm", False),
        ("decoder,encoder", "decoder", False),
        ("{en,de}coder.norm", "encoder.norm", True),
        ("{**.norm,logits}", "decoder.norm", True),
    ],
)
def test_patterns(pattern: str, address: str, fits: bool) -> None:
    assert matches(pattern, address) is fits


def test_unknown_address_is_refused_with_suggestion() -> None:
    model = model_of(Cell("decoder"))
    with pytest.raises(AddressError, match=r"matches decoder.block.0.output. Did you mean decoder.blocks.0.output"):
        record(model, "decoder.block.0.output").__enter__()
    for pattern in ("decoder.{norm", "decoder}.{norm", "decoder.{{0,1},2}"):
        with pytest.raises(AddressError, match="braces"):
            record(model, pattern).__enter__()
    with pytest.raises(AddressError, match="A pattern must be a string"):
        record(model, ["logits"]).__enter__()
    with record(model, "decoder.norm") as tape:
        model(tokens(1, 3))
    with pytest.raises(AddressError, match=r"Nothing was recorded at decoder.nrm. Did you mean decoder.norm"):
        tape["decoder.nrm"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_records_all_its_addresses(name: str) -> None:
    model = build(preset(name, layers=1, vocabulary=29))
    with torch.no_grad(), record(model) as tape:
        logits_of(model, tokens(1, 5))
    assert sorted(tape) == sorted(chumoku.addresses(model))


def test_recorded_weights_follow_a_ragged_cache() -> None:
    model = model_of(Cell("decoder", kv_heads=1))
    with torch.no_grad():
        cache = model(tokens(2, 5), cache=model.new_cache(2, 11), lengths=torch.tensor([5, 2])).cache
        with record(model, "**.attention.*") as tape:
            model(tokens(2, 1, seed=1), cache=cache)
    path = "decoder.blocks.1.attention."
    weights = tape[path + "weights"]
    assert (weights[1, :, :, 3:] == 0).all()
    assert (weights[0] > 0).all()
    values = attention_module.repeat_kv(tape[path + "values"], tape[path + "queries"])
    torch.testing.assert_close(weights @ values, tape[path + "heads"], atol=1e-10, rtol=0)


def test_history_has_every_pass_until_recording_ends() -> None:
    model = model_of(Cell("decoder"))
    with record(model, "decoder.norm") as tape:
        model(tokens(1, 3))
        model(tokens(1, 5))
    model(tokens(1, 7))
    assert [tensor.shape[1] for tensor in tape.history["decoder.norm"]] == [3, 5]
    assert tape["decoder.norm"].shape[1] == 5


def test_other_models_and_other_threads_are_not_recorded() -> None:
    model, other = model_of(Cell("decoder")), build(Cell("decoder").config())
    with record(model, "logits") as tape:
        other(tokens(1, 3))
        thread = threading.Thread(target=lambda: model(tokens(1, 3)))
        thread.start()
        thread.join()
    assert len(tape) == 0


def test_tapes_may_be_nested_and_closed_in_any_order() -> None:
    model = model_of(Cell("decoder"))
    with record(model, "logits") as outer:
        with record(model, "logits") as inner:
            model(tokens(1, 3))
        model(tokens(1, 3))
    assert (len(outer.history["logits"]), len(inner.history["logits"])) == (2, 1)
    first, second = record(model, "logits"), record(model, "logits")
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None), second.__exit__(None, None, None)
    assert tap._tapes == ()
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_an_error_inside_closes_the_tape() -> None:
    model = model_of(Cell("decoder"))
    with pytest.raises(RuntimeError, match="stop"), record(model, "logits"):
        raise RuntimeError("stop")
    assert not tap._tapes


def test_a_compiled_model_can_be_recorded() -> None:
    model: Model = build(Cell("decoder").config())
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(tokens(1, 7))
        with record(compiled, "**.weights") as tape:
            compiled(tokens(1, 7))
    assert len(tape) == 2


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_tape_that_changes_results_is_detected_in_debug_mode(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(Cell(kind, norm="batch").config(dropout={"sublayer": 0.3}), seed=3)
    model.train()
    inputs = [tokens(2, 5)] if kind != "encoder-decoder" else [tokens(2, 7), tokens(2, 5)]

    def run() -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        with record(model, "**", debug=True):
            model(*inputs)
        return {name: buffer.clone() for name, buffer in model.named_buffers()}

    first = run()
    for buffer, expected in zip(model.buffers(), first.values(), strict=True):
        assert torch.equal(buffer, expected), "the comparison pass does not change the running means"
    process = Tape.process
    monkeypatch.setattr(Tape, "process", lambda *given: process(*given) + 1e-4)
    with pytest.raises(ChumokuError, match="Observing the model changed its result"):
        run()
    monkeypatch.setenv("CHUMOKU_DEBUG", "0")
    with record(model, "**"):
        model(*inputs)


def test_comparison_pass_is_not_recorded_and_uses_no_random_numbers() -> None:
    model = build(Cell("decoder", norm="batch").config(dropout={"sublayer": 0.3}), seed=3)
    after = []
    for debug in (True, False):
        torch.manual_seed(7)
        other = build(model.config, seed=3).train()
        with record(other, "logits", debug=debug) as tape:
            other(tokens(2, 5))
        assert len(tape.history["logits"]) == 1
        after.append((torch.rand(1), *(buffer.clone() for buffer in other.buffers())))
    for one, two in zip(*after, strict=True):
        assert torch.equal(one, two)


def test_edits_apply_in_comparison_pass() -> None:
    model = build(Cell("decoder").config(), seed=3)
    with edit(model, {"decoder.embedding": torch.zeros_like}), record(model, "logits", debug=True) as tape:
        edited = model(tokens(2, 5)).logits
    assert torch.equal(tape["logits"], edited)
    assert not torch.equal(edited, model(tokens(2, 5)).logits)
