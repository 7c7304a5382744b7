"""Engines: each row gives the logits of the PyTorch model, whatever the other rows do; broken engines are caught."""

from __future__ import annotations

import pytest
import torch
from cells import CONTEXT, POSITIONS, VOCABULARY, Cell, model_of, tokens
from engines import check_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from chumoku.decoding.engines import base as engine_module
from chumoku.decoding.engines import encoder_outputs as sources_module
from chumoku.decoding.engines.base import TorchEngine, runs
from chumoku.decoding.engines.encoder_outputs import EncoderOutputs
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import LengthError, UsageError
from chumoku.models.build import build
from chumoku.models.config import Dropout


@pytest.mark.sample(7)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("chunk", [512, 3])
def test_rows_are_independent(kind: str, position: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "AT_ONCE", chunk)
    monkeypatch.setattr(sources_module, "SPARE", 2)
    check_engine(TorchEngine, model_of(Cell(kind, position)), seed=chunk)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), grouped=st.booleans(), post=st.booleans(), kind=st.booleans())
def test_rows_added_and_removed_at_random(seed: int, grouped: bool, post: bool, kind: bool) -> None:
    cell = Cell(
        "encoder-decoder" if kind else "decoder",
        placement="post" if post else "pre",
        feedforward="experts" if post else "swiglu",
        kv_heads=1 if grouped else 3,
    )
    check_engine(TorchEngine, model_of(cell), seed=seed, turns=17)


def noticed(kind: str) -> bool:
    try:
        for seed in range(7):
            check_engine(TorchEngine, model_of(Cell(kind)), seed=seed)
    except (AssertionError, RuntimeError, IndexError):
        return True
    return False


def shifted(engine: TorchEngine) -> torch.Tensor:
    return torch.tensor(engine.lengths) + 1


def unmoved(parts: object, moves: object) -> None:
    pass


def one_by_one(parts: list[torch.Tensor], moves: list[tuple[int, int]]) -> None:
    """Rows that were overwritten already are read."""
    for part in parts:
        for place, row in moves:
            part[place] = part[row]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("owner", "name", "broken", "kind"),
    [
        (TorchEngine, "_device_lengths", shifted, "decoder"),
        (engine_module, "move", unmoved, "decoder"),
        (engine_module, "move", one_by_one, "decoder"),
        (sources_module, "move", unmoved, "encoder-decoder"),
        (EncoderOutputs, "select_rows", lambda sources, rows: None, "encoder-decoder"),
    ],
    ids=["one place late", "rows stay", "rows overwritten", "sources stay", "sources forgotten"],
)
def test_broken_engines_are_caught(
    owner: object, name: str, broken: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not noticed(kind)
    monkeypatch.setattr(owner, name, broken)
    assert noticed(kind)


def test_only_needed_positions_go_through_the_output_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("decoder"))
    seen, forward = [], model.head.forward
    monkeypatch.setattr(model.head, "forward", lambda x, table: (seen.append(x.shape[:-1]), forward(x, table))[1])
    engine = TorchEngine(model, rows=3, capacity=13)
    engine.add_rows(3)
    assert engine.prefill([[5] * 11, [7] * 2, [3]]).shape == (3, VOCABULARY)
    assert seen == [(3,)]


def test_sources_are_encoded_once_and_beams_share_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("encoder-decoder"))
    encoded, moved = [], []
    encode, move = model.encode, sources_module.move
    monkeypatch.setattr(model, "encode", lambda x, **rest: (encoded.append(tuple(x.shape)), encode(x, **rest))[1])
    monkeypatch.setattr(sources_module, "move", lambda parts, moves: (moved.append(moves), move(parts, moves))[1])
    engine = TorchEngine(model, rows=6, capacity=13)
    engine.add_rows(2, [[5, 7, 3], [2]])
    engine.select_rows([0, 0, 0, 1, 1, 1])
    moved.clear()
    engine.step(torch.tensor([1, 2, 3, 4, 5, 6]))
    engine.select_rows([2, 0, 0, 5, 5, 3])
    assert (encoded, moved) == ([(2, 3)], []), "the beams of a sentence changed places, and its source was copied"


def test_memory_is_bounded_and_counted() -> None:
    model = model_of(Cell("decoder"))
    engine = TorchEngine(model, rows=3, capacity=100)
    assert engine.nbytes == 0
    engine.add_rows(3)
    engine.prefill([[5]] * 3)
    small = engine.nbytes
    engine.prefill([[5] * 99] * 3)
    assert small < engine.nbytes == 2 * 2 * 3 * 100 * 30 * 8


def test_a_model_in_training_answers_without_dropout_and_goes_on_training() -> None:
    model = build(Cell("decoder").config(dropout=Dropout(sublayer=0.5))).train()
    model.decoder.blocks[0].eval()
    answers = []
    for _ in range(2):
        engine = open_engine(model, rows=1, capacity=9)
        engine.add_rows(1)
        engine.prefill([[5, 7]])
        answers.append(engine.step(torch.tensor([3])))
    assert torch.equal(*answers)
    assert model.training
    assert not model.decoder.blocks[0].training
    model(tokens(2, 3)).logits.sum().backward()


def test_invalid_engine_calls_are_refused() -> None:
    model = model_of(Cell("decoder", "learned"))
    with pytest.raises(UsageError, match="of kind 'decoder' or 'encoder-decoder'"):
        TorchEngine(model_of(Cell("encoder")), rows=1, capacity=1)
    with pytest.raises(LengthError, match="not 0 and 5"):
        TorchEngine(model, rows=0, capacity=5)
    engine = TorchEngine(model, rows=2, capacity=10**6)
    engine.add_rows(1)
    with pytest.raises(
        LengthError, match=f"A row would have {CONTEXT + 1} tokens, but there is room for only {CONTEXT}"
    ):
        engine.prefill([[5] * (CONTEXT + 1)])
    with pytest.raises(LengthError, match="Tokens for 2 rows were given, but there are 1"):
        engine.step(torch.tensor([5, 7]))
    with pytest.raises(LengthError, match="2 rows cannot be added: 1 of 2 are in use"):
        engine.add_rows(2)
    with pytest.raises(LengthError, match=r"Rows of \[0\] tokens cannot be truncated to \[1\]"):
        engine.truncate([1])
    with pytest.raises(LengthError, match=r"Rows \[0, 1\] cannot be selected: 1 exist"):
        engine.select_rows([0, 1])
    with pytest.raises(UsageError, match="one token or more"):
        engine.prefill([[5], []])
    with pytest.raises(UsageError, match="one token or more"):
        engine.prefill([])
    with pytest.raises(UsageError, match="has no encoder"):
        engine.add_rows(1, [[5]])
    both = TorchEngine(model_of(Cell("encoder-decoder")), rows=2, capacity=5)
    for sources in (None, [[5]], [[5], []]):
        with pytest.raises(UsageError, match="2 rows of an encoder-decoder need 2 sources"):
            both.add_rows(2, sources)


def test_runs_of_rows() -> None:
    assert list(runs([0, 1, 2, 5, 6, 9])) == [(0, 3), (5, 7), (9, 10)]
