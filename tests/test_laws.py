"""The laws of models, in every cell, in float64; and for each law a broken twin that must be caught."""

from __future__ import annotations

import copy

import laws
import pytest
import torch
from cells import CELLS, KINDS, Cell, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import tokens

from chumoku.nn import attention, cache, masks, positions, tap
from chumoku.nn.attention import attend

EXACT = 1e-10
BROKEN = 1e-4

lengths = st.sampled_from([5, 7, 11, 13])
seeds = st.integers(0, 2**16)
# Two random cases a cell, new ones in every run; a failure prints how to repeat it.
few = settings(max_examples=2, deadline=None, derandomize=False, database=None, print_blob=True)


def every(cells: list[Cell]) -> pytest.MarkDecorator:
    """One test for each kind, position, norm and placement; it goes through every feed-forward and both groupings."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault("-".join(cell[:4]), []).append(cell)
    return pytest.mark.parametrize("cells", rows.values(), ids=rows.keys())


DECODERS = every([cell for cell in CELLS if cell.kind != "encoder"])
WITHOUT_POSITION = every([cell for cell in CELLS if cell.kind != "decoder" and cell.position == "none"])
SINGLE_STACK = every([cell for cell in CELLS if cell.kind != "encoder-decoder"])
ALL = every(CELLS)


@DECODERS
@few
@given(length=lengths, seed=seeds)
def test_no_future_leaks(cells: list[Cell], length: int, seed: int) -> None:
    for cell in cells:
        assert laws.future_leak(model_of(cell), length, seed) < EXACT, str(cell)


@WITHOUT_POSITION
@few
@given(length=lengths, seed=seeds)
def test_without_positions_order_is_invisible(cells: list[Cell], length: int, seed: int) -> None:
    for cell in cells:
        assert laws.order_matters(model_of(cell), length, seed) < EXACT, str(cell)


@ALL
@few
@given(length=lengths, seed=seeds)
def test_padding_and_batch_mates_change_nothing(cells: list[Cell], length: int, seed: int) -> None:
    for cell in cells:
        assert laws.padding_noticed(model_of(cell), length, seed) < EXACT, str(cell)


@SINGLE_STACK
@few
@given(length=lengths, seed=seeds)
def test_packed_equals_separate(cells: list[Cell], length: int, seed: int) -> None:
    for cell in cells:
        assert laws.packing_noticed(model_of(cell), length, seed) < EXACT, str(cell)


@DECODERS
@few
@given(length=lengths, seed=seeds)
def test_cached_equals_the_whole_pass(cells: list[Cell], length: int, seed: int) -> None:
    for cell in cells:
        assert laws.cache_noticed(model_of(cell), length, seed) < EXACT, str(cell)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary", "none"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_cached_equals_the_whole_pass_in_float32(kind: str, position: str) -> None:
    assert laws.cache_noticed(model_of(Cell(kind, position, kv_heads=1), torch.float32), 13, seed=1) < 1e-5


@ALL
def test_every_parameter_learns(cells: list[Cell]) -> None:
    """Forward and backward: every parameter gets a finite gradient that is not zero."""
    for cell in cells:
        model = copy.deepcopy(model_of(cell)).train()
        laws.logits_of(model, tokens(3, 11)).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.isfinite().all(), f"{cell} {name}"
            assert forgotten(cell, name) or parameter.grad.abs().max() > 0, f"{cell} {name}"


def forgotten(cell: Cell, name: str) -> bool:
    """A key's bias adds the same to every score of a query, which softmax forgets, unless keys are rotated."""
    return name.endswith("attention.key.bias") and ("cross" in name or cell.position != "rotary")


# Broken twins.


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_mask_shifted_by_one_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(query, key, value, *, mask=None, bias=None, causal=False, dropout=0.0):
        if causal:
            length = query.shape[2]
            later = torch.ones(length, key.shape[2], dtype=torch.bool).tril(key.shape[2] - length + 1)
            mask = later if mask is None else mask & later
        return attend(query, key, value, mask=mask, bias=bias)[0]

    monkeypatch.setattr(attention, "attend_fused", shifted)
    assert laws.future_leak(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary"])
def test_positions_make_order_visible(kind: str, position: str) -> None:
    assert laws.order_matters(model_of(Cell(kind, position)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_a_forgotten_padding_mask_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "padding", lambda real: torch.ones_like(real)[:, None, None, :])
    assert laws.padding_noticed(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_documents_that_see_each_other_are_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "packed", lambda documents: torch.ones(1, *documents.shape[1:] * 2, dtype=torch.bool))
    assert laws.packing_noticed(model_of(Cell(kind)), 7, seed=2) > BROKEN


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "relative", "rotary", "none"])
def test_a_cache_off_by_one_is_caught(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cache.Cache.positions

    def late(self: cache.Cache, new: int) -> torch.Tensor:
        # Only while decoding: the prompt is right, every step after it stands one place too far.
        return whole(self, new) + (1 if self.used else 0)

    monkeypatch.setattr(cache.Cache, "positions", late)
    monkeypatch.setattr(cache.Cache, "check", lambda *_, **__: None)
    model = model_of(Cell("decoder", position))
    original = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda batch, capacity: original(batch, capacity + 9))
    assert laws.cache_noticed(model, 7, seed=2) > BROKEN


def test_rotary_scores_move_with_the_shift_only() -> None:
    query, key = torch.randn(2, 1, 5, 14, dtype=torch.float64), torch.randn(2, 1, 7, 14, dtype=torch.float64)

    def scores(shift: int, *, turn_keys: bool = True) -> torch.Tensor:
        for pairing in ("half", "interleaved"):
            rotary = positions.Rotary(14, pairing=pairing)
            turned = positions.rotate(query, rotary(torch.arange(5) + shift, torch.float64))
            keys = positions.rotate(key, rotary(torch.arange(7) + (shift if turn_keys else 0), torch.float64))
            yield turned @ keys.transpose(-2, -1)

    for here, there in zip(scores(0), scores(1009), strict=True):
        assert laws.distance(here, there) < EXACT
    for here, there in zip(scores(0), scores(1009, turn_keys=False), strict=True):
        assert laws.distance(here, there) > BROKEN


@pytest.mark.parametrize("kind", KINDS)
def test_a_tape_that_changes_what_it_sees_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: tap.Tape, module: torch.nn.Module, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(1.001)

    model = model_of(Cell(kind))
    given_tokens = tokens(2, 7)
    with torch.no_grad():
        unseen = laws.logits_of(model, given_tokens)
        monkeypatch.setattr(tap.Tape, "keep", careless)
        with tap.record(model, "**.output"):
            assert not torch.equal(unseen, laws.logits_of(model, given_tokens))
