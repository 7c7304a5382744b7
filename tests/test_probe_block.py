"""One block by its formula, parts switched off together, the next token, and the table at an address."""

from __future__ import annotations

import pytest
import torch
from cells import CELLS, HEADS, VOCABULARY, Cell, model_of, tokens

from chumoku.errors import AddressError, UsageError
from chumoku.models.model import Model
from chumoku.probe.block import trace_block
from chumoku.probe.forward_pass import run_and_record
from chumoku.probe.next_token import next_tokens
from chumoku.probe.patching import compare_without, patch, switch_off
from chumoku.probe.snapshot import LookInput
from chumoku.probe.tensor_table import read_table

LENGTH = 7


def source_of(model: Model) -> list[int] | None:
    return tokens(1, 5, seed=3)[0].tolist() if model.config.kind == "encoder-decoder" else None


@pytest.mark.parametrize("cell", CELLS[::37], ids=str)
def test_trace_equals_what_the_forward_pass_recorded(cell: Cell) -> None:
    model, written = model_of(cell), tokens(1, LENGTH)[0].tolist()
    part, layer, head, place = "encoder" if cell.kind == "encoder" else "decoder", 1, 2, 3
    trace = trace_block(model, written, place, part=part, layer=layer, head=head, source=source_of(model))
    _, tape = run_and_record(model, written, source=source_of(model))
    here = f"{part}.blocks.{layer}"
    heads = [(trace.attention, "attention")] + ([(trace.cross, "cross_attention")] if trace.cross else [])
    assert len(heads) == 1 + (cell.kind == "encoder-decoder")
    for one, name in heads:
        assert torch.allclose(one.weights, tape[f"{here}.{name}.weights"][0, head, place])
        assert torch.allclose(one.context, tape[f"{here}.{name}.heads"][0, head, place])
    assert torch.equal(trace.stream["input"], tape[f"{part}.blocks.0.output"][0, place])
    assert torch.equal(trace.stream["out"], tape[f"{here}.output"][0, place])
    if cell.placement == "pre":
        added = trace.stream.get("after_cross", trace.stream["after_attention"]) + trace.stream["feedforward"]
        assert torch.allclose(added, trace.stream["out"])


def test_trace_refuses_missing_parts() -> None:
    model = model_of(Cell("decoder"))
    for place, changes, sentence in (
        (0, {"part": "encoder"}, "of kind 'decoder' has no encoder"),
        (0, {"layer": -1}, "There is no layer -1: this model has 2"),
        (0, {"head": HEADS}, f"There is no head {HEADS}"),
        (LENGTH, {}, f"There is no place {LENGTH}: the text has {LENGTH} tokens"),
    ):
        with pytest.raises(UsageError, match=sentence):
            trace_block(model, tokens(1, LENGTH), place, **{"part": "decoder", "layer": 0, "head": 0, **changes})


def test_switched_off_parts_are_zero_together() -> None:
    model, written = model_of(Cell("decoder")), tokens(1, LENGTH)
    heads, feed = "decoder.blocks.1.attention.heads", "decoder.blocks.0.feedforward.output"
    with switch_off(model, {heads: [0, 2], feed: None}):
        _, tape = run_and_record(model, written)
    assert not tape[heads][:, [0, 2]].any()
    assert tape[heads][:, 1].all()
    assert not tape[feed].any()
    assert run_and_record(model, written, feed)[1][feed].all(), "on again"
    one = compare_without(model, {heads: [0, 2]}, written)
    assert torch.equal(one.after, patch(model, heads, torch.zeros_like, written, heads=[0, 2]).after)
    both = compare_without(model, {heads: [0, 2], feed: None}, written)
    assert torch.equal(both.after, tape["logits"])
    assert both.effect != one.effect


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_next_tokens_and_the_rest(kind: str) -> None:
    model, written = model_of(Cell(kind), torch.float32), tokens(1, LENGTH)[0].tolist()
    best = next_tokens(model, written, source=source_of(model), count=11)
    logits = run_and_record(model, written, source=source_of(model))[0].logits[0, -1]
    assert best.tokens == logits.topk(11).indices.tolist()
    assert best.vocabulary == VOCABULARY
    total = torch.tensor([*best.logits, best.rest]).logsumexp(0)
    assert float(total) == pytest.approx(float(logits.logsumexp(0)), rel=1e-5)
    assert next_tokens(model, written, source=source_of(model), count=VOCABULARY).rest == -float("inf")
    with pytest.raises(UsageError, match="predicts no next token"):
        next_tokens(model_of(Cell("encoder")), written)


def test_table_at_an_address() -> None:
    model = model_of(Cell("encoder-decoder", kv_heads=1))
    inputs = LookInput(tokens(1, LENGTH)[0].tolist(), str, 1, source=source_of(model), source_name=hex)
    address = "decoder.blocks.1.cross_attention.weights"
    found = read_table(model, inputs, address, head=2)
    assert found.shape == [HEADS, LENGTH, 5]
    recorded = run_and_record(model, inputs.tokens, address, source=inputs.source)[1][address][0, 2]
    assert torch.equal(found.table, recorded.float())
    assert (found.rows, found.columns) == ([str(one) for one in inputs.tokens], [hex(one) for one in inputs.source])
    keys = read_table(model, inputs, "decoder.blocks.1.cross_attention.keys", head=2)
    assert keys.rows == found.columns
    assert keys.columns is None
    with pytest.raises(AddressError, match=r"Did you mean decoder\.norm"):
        read_table(model, inputs, "decoder.nrom")
