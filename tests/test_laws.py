"""The laws of models, in every cell, in float64; and for each law a broken model that must be detected."""

from __future__ import annotations

import copy

import laws
import pytest
import torch
from cells import COVERING, KINDS, POSITIONS, PRODUCT, WINDOW, Cell, model_of, triples_of
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import tokens

from chumoku.nn import attention, cache, masks, positions, tap
from chumoku.nn.attention import attend

EXACT = 1e-10
BROKEN = 1e-4

lengths = st.sampled_from([5, 7, 11, 13])
seeds = st.integers(0, 2**16)
# A random case per cell, a new one in every run; a failure prints how to repeat it.
one = settings(max_examples=1, deadline=None, derandomize=False, database=None, print_blob=True)


DECODERS = [cell for cell in COVERING if cell.kind != "encoder"]
LAWS = {
    laws.future_leak: DECODERS,
    laws.cache_error: DECODERS,
    laws.padding_error: COVERING,
    laws.packing_error: [cell for cell in COVERING if cell.kind != "encoder-decoder"],
    laws.order_error: [c for c in COVERING if c.kind != "decoder" and c.position == "none" and not c.window],
}


@pytest.mark.sample(31)
@pytest.mark.parametrize("cell", COVERING, ids=str)
@one
@given(length=lengths, seed=seeds)
def test_laws(cell: Cell, length: int, seed: int) -> None:
    """A token sees no later one; cache, padding, other rows, packing and (without positions) order change nothing.

    Forward and backward: every parameter gets a finite gradient that is not zero.
    """
    for law in (law for law, holds_for in LAWS.items() if cell in holds_for):
        assert law(model_of(cell), length, seed) < EXACT, law.__name__
    check_gradients(cell)


def test_any_three_values_are_tested_together() -> None:
    assert set().union(*map(triples_of, COVERING)) >= set().union(*map(triples_of, PRODUCT))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_cached_equals_uncached_in_float32(kind: str, position: str) -> None:
    assert laws.cache_error(model_of(Cell(kind, position, kv_heads=1), torch.float32), 13, seed=1) < 1e-5


def check_gradients(cell: Cell) -> None:
    model = copy.deepcopy(model_of(cell)).train()
    laws.logits_of(model, tokens(3, 11)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), f"{cell} {name}"
        assert has_no_effect(cell, name) or parameter.grad.abs().max() > 0, f"{cell} {name}"


def has_no_effect(cell: Cell, name: str) -> bool:
    """The bias of keys adds the same number to all scores of a query; softmax cancels it if keys are not rotated."""
    unrotated = "cross" in name or cell.position != "rotary" or (cell.extra == "no positions" and ".1." in name)
    return name.endswith("attention.key.bias") and unrotated


# Broken models.


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_mask_shifted_by_one_is_detected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(query, key, value, *, mask=None, bias=None, causal=False, dropout=0.0):
        if causal:
            length = query.shape[2]
            later = torch.ones(length, key.shape[2], dtype=torch.bool).tril(key.shape[2] - length + 1)
            mask = later if mask is None else mask & later
        return attend(query, key, value, mask=mask, bias=bias)[0]

    monkeypatch.setattr(attention, "attend_fused", shifted)
    assert laws.future_leak(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
@pytest.mark.parametrize("position", [position for position in POSITIONS if position != "none"])
def test_with_positions_order_has_an_effect(kind: str, position: str) -> None:
    assert laws.order_error(model_of(Cell(kind, position)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_missing_padding_mask_is_detected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "padding", lambda real: torch.ones_like(real)[:, None, None, :])
    assert laws.padding_error(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_attention_between_documents_is_detected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = lambda documents: torch.ones(1, *documents.shape[1:] * 2, dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(masks, "same_document", everything)
    assert laws.packing_error(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("position", POSITIONS)
def test_cache_off_by_one_is_detected(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original_positions = cache.Cache.positions

    def late(self: cache.Cache, new: int) -> torch.Tensor:
        # The positions of the prompt are right; those of every later step are one too large.
        return original_positions(self, new) + (1 if self.used else 0)

    monkeypatch.setattr(cache.Cache, "positions", late)
    monkeypatch.setattr(cache.Cache, "check", lambda *_, **__: None)
    model = model_of(Cell("decoder", position))
    original = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda batch, capacity: original(batch, capacity + 9))
    assert laws.cache_error(model, 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_tokens_outside_the_window_have_no_effect(kind: str) -> None:
    """Each of the two blocks lets information move by one token less than the window."""
    model, reach = model_of(Cell(kind, window=WINDOW)), 2 * (WINDOW - 1)
    before = tokens(2, 13)
    after = before.clone()
    after[:, 6] = (after[:, 6] + 1) % model.config.vocabulary
    changed = (laws.logits_of(model, before) - laws.logits_of(model, after)).abs().amax((0, 2)) > BROKEN
    first = 6 if kind == "decoder" else 6 - reach
    assert changed.tolist() == [first <= place <= 6 + reach for place in range(13)]


def test_rotary_scores_depend_only_on_distance() -> None:
    query, key = torch.randn(2, 1, 5, 14, dtype=torch.float64), torch.randn(2, 1, 7, 14, dtype=torch.float64)

    def scores(shift: int, *, rotate_keys: bool = True) -> torch.Tensor:
        for pairing in ("half", "interleaved"):
            rotary = positions.RotaryPositions(14, pairing=pairing)
            queries = positions.rotate(query, rotary(torch.arange(5) + shift, torch.float64))
            keys = positions.rotate(key, rotary(torch.arange(7) + (shift if rotate_keys else 0), torch.float64))
            yield queries @ keys.transpose(-2, -1)

    for one, shifted in zip(scores(0), scores(1009), strict=True):
        assert laws.distance(one, shifted) < EXACT
    for one, shifted in zip(scores(0), scores(1009, rotate_keys=False), strict=True):
        assert laws.distance(one, shifted) > BROKEN


@pytest.mark.parametrize("kind", KINDS)
def test_tape_that_changes_tensors_is_detected(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: tap.Tape, module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(1.001)

    model = model_of(Cell(kind))
    given_tokens = tokens(2, 7)
    with torch.no_grad():
        expected = laws.logits_of(model, given_tokens)
        monkeypatch.setattr(tap.Tape, "process", careless)
        with tap.record(model, "**.output"):
            assert not torch.equal(expected, laws.logits_of(model, given_tokens))
