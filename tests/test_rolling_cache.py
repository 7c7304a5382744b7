"""Layers with an attention window keep only as many positions as they can need: the same results from less memory."""

from __future__ import annotations

import pytest
import test_prefix_cache
import torch
from cells import POSITIONS, Cell, model_of, tokens
from engines import check_engine
from laws import cache_error, distance

from chumoku.decoding import prefix_cache
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.speculative import speculate
from chumoku.errors import LengthError
from chumoku.models import config as config_module
from chumoku.models.count import count

WINDOW, ROLLBACK = 3, 5
KEPT = WINDOW - 1 + ROLLBACK
FULL_LAYER = {"layers": 3, "full_attention_every": 2}  # the second of three


@pytest.fixture(autouse=True)
def short_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "ROLLBACK", ROLLBACK)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("position", POSITIONS)
def test_cached_equals_whole(kind: str, position: str) -> None:
    """Prompts longer than what is kept, shorter ones beside them, and steps of several sizes."""
    model = model_of(Cell(kind, position, kv_heads=1, window=WINDOW), **FULL_LAYER)
    for length in (KEPT + 6, WINDOW, KEPT - 1):
        assert cache_error(model, length, seed=length) < 1e-10


def test_memory_of_layers_with_a_window_does_not_grow() -> None:
    model = model_of(Cell("decoder", window=WINDOW), **FULL_LAYER)
    position = 2 * 2 * 3 * 10 * 8  # keys and values of 2 rows, 3 heads of 10, in float64
    assert model.new_cache(2, 23).nbytes == position * (23 + 2 * KEPT)
    assert model.new_cache(2, KEPT).nbytes == position * 3 * KEPT
    for length in (23, KEPT):
        assert count(model.config, length=length, batch=2).cache_bytes * 2 == model.new_cache(2, length).nbytes
    everywhere = model_of(Cell("decoder", window=WINDOW))
    assert everywhere.new_cache(2, 23).nbytes == position * 2 * KEPT


def test_a_cache_goes_back_as_far_as_it_keeps() -> None:
    model = model_of(Cell("decoder", window=WINDOW), **FULL_LAYER)
    text, other = tokens(2, 11), tokens(2, 4, seed=1)
    with torch.no_grad():
        cache = model(text, cache=model.new_cache(2, 23)).cache
        longer = model(tokens(2, ROLLBACK, seed=2), cache=cache).cache
        again = model(other, cache=cache).logits
        assert distance(model(torch.cat([text, other], 1)).logits[:, 11:], again) < 1e-10
        model(tokens(2, 1), cache=longer)
        with pytest.raises(LengthError, match=r"6 tokens older .* can go back by at most 5. Compute the text again"):
            model(other, cache=cache)


def test_padding_overwrites_nothing() -> None:
    """A row of one token beside a long one: the padding must not reach its earlier keys."""
    model = model_of(Cell("decoder", window=WINDOW), **FULL_LAYER)
    text, more, last = tokens(2, 7), tokens(2, 9, seed=1), tokens(2, 2, seed=2)
    with torch.no_grad():
        cache = model(text, cache=model.new_cache(2, 23)).cache
        cache = model(more, cache=cache, lengths=torch.tensor([9, 1])).cache
        stepped = model(last, cache=cache).logits[1]
        whole = model(torch.cat([text[1], more[1, :1], last[1]])[None]).logits[0, -2:]
    assert distance(whole, stepped) < 1e-10


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
@pytest.mark.parametrize(("kind", "seeds"), [("decoder", (1, 2)), ("encoder-decoder", (3,))])
def test_every_engine_equals_the_model(engine: type[Engine], kind: str, seeds: tuple[int, ...]) -> None:
    """Rows that grow, shrink, move and are copied, in random order."""
    model = model_of(Cell(kind, kv_heads=1, window=WINDOW), torch.float32, **FULL_LAYER)
    for seed in seeds:
        check_engine(engine, model, seed=seed, turns=60, tolerance=2e-4)


def row_left_behind(engine: type[Engine]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of a row after a copy of it has grown by more than is kept, and those of the model."""
    model, text = model_of(Cell("decoder", window=WINDOW), torch.float32, **FULL_LAYER), tokens(1, 9)[0].tolist()
    opened = engine(model, rows=3, capacity=23)
    opened.add_rows(1)
    opened.prefill([text])
    opened.select_rows([0, 0])
    for _ in range(KEPT + 1):
        opened.step(torch.tensor([7]))
    with torch.no_grad():
        return opened.step(torch.tensor([7, 11]))[1], model(torch.tensor([[*text, 11]])).logits[0, -1]


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_a_row_that_grows_overwrites_no_key_of_its_copy(engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.testing.assert_close(*row_left_behind(engine), atol=2e-4, rtol=2e-4)
    if engine is NativeEngine:
        monkeypatch.setattr(NativeEngine, "_overwrites", lambda *_: False)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(*row_left_behind(engine), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_copied_beginnings_change_no_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beginning that a kept row has overwritten is computed again; one near its end is copied."""
    model = model_of(Cell("decoder", kv_heads=1, window=WINDOW), torch.float32, context=47, **FULL_LAYER)
    monkeypatch.setattr(test_prefix_cache, "MODEL", model)
    monkeypatch.setattr(prefix_cache, "MIN_COMMON_TOKENS", 3)
    long = test_prefix_cache.family(5)[-1]
    prompts, arrivals = [long, [*long[:7], 20, 21], long], [0, 13, 26]
    plain = test_prefix_cache.run(kind, prompts, arrivals, rows=5, chunk=7, reuse=False)[0]
    texts, _, saved = test_prefix_cache.run(kind, prompts, arrivals, rows=5, chunk=7, reuse=True)
    assert [[token for token, _ in text] for text in texts] == [[token for token, _ in text] for text in plain]
    assert saved == [0, 0, len(long) - 1]


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_speculation_goes_back(engine: type[Engine]) -> None:
    """A draft whose proposals are often rejected gives the text of the target alone."""
    target = model_of(Cell("decoder", kv_heads=1, window=WINDOW), torch.float32, **FULL_LAYER)
    draft = model_of(Cell("decoder", window=WINDOW), torch.float32)
    request = Request(tokens(1, 9)[0].tolist(), 13, SamplingOptions(temperature=0.0))
    engines = [engine(model, rows=1, capacity=23) for model in (target, draft)]
    found = list(speculate(request, target=engines[0], draft=engines[1], proposals=ROLLBACK - 1))
    assert len(found) == 13
    for number, token in enumerate(found):
        text = torch.tensor([[*request.prompt, *found[:number]]])
        with torch.no_grad():
            assert int(target(text).logits[0, -1].argmax()) == token


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_rows_are_not_truncated_too_far(engine: type[Engine]) -> None:
    opened = engine(model_of(Cell("decoder", window=WINDOW), torch.float32, **FULL_LAYER), rows=2, capacity=23)
    opened.add_rows(2)
    opened.prefill([tokens(1, 17)[0].tolist(), [5, 3]])
    assert opened.earliest == [17 - ROLLBACK, 0]
    opened.truncate([14, 1])
    opened.step(torch.tensor([2, 3]))
    assert opened.earliest == [17 - ROLLBACK, 0]
    with pytest.raises(LengthError, match=r"cannot be truncated to \[11, 1\] .* lengths are \[12, 0\]. Compute these"):
        opened.truncate([11, 1])


@pytest.mark.parametrize("engine", [TorchEngine, NativeEngine])
def test_memory_of_an_engine_does_not_grow_with_the_text(engine: type[Engine]) -> None:
    opened = engine(model_of(Cell("decoder", window=WINDOW), torch.float32), rows=1, capacity=23)
    opened.add_rows(1)
    opened.prefill([tokens(1, 23)[0].tolist()])
    assert opened.nbytes - (23 * 4 if engine is NativeEngine else 0) == 2 * 2 * KEPT * 30 * 4
