"""Rows and prompt reading are shared fairly: a small request waits for a few steps at most, and texts do not change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bundles import chat_tokenizer, make_bundle
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import serving, until, wait_until_idle
from test_decoding import varied_model
from test_scheduler import alone, requests

from chumoku.decoding import scheduler as scheduler_module
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.fairness import split_by_owner, split_evenly
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.server.security.limits import Limits


def steps_until(scheduler: Scheduler, number: int, most: int = 100) -> int:
    """The step in which a request gets its first token."""
    for step in range(1, most):
        if any(event.number == number and event.token is not None for event in scheduler.step()):
            return step
    raise AssertionError(f"no token within {most} steps")


def greedy(prompt: list[int], new: int) -> Request:
    return Request(prompt, new, SamplingOptions(temperature=0))


def filled(rows: int, *, texts: int, owner: tuple[object, object], prompt: int = 2, chunk: int = 64) -> Scheduler:
    """A scheduler whose rows are all used by one request, with more of its texts waiting."""
    engine = TorchEngine(varied_model("decoder", "rotary"), rows=rows, capacity=211)
    scheduler = Scheduler(engine, chunk=chunk)
    for _ in range(texts):
        scheduler.submit(greedy([5] * prompt, 150), owner)
    for _ in range(7):
        scheduler.step()
    return scheduler


@pytest.mark.parametrize("client", ["a", "b"])
@pytest.mark.parametrize("rows", [2, 5])
def test_small_request_starts_at_once(rows: int, client: str) -> None:
    scheduler = filled(rows, texts=64, owner=("a", 1))
    assert scheduler.engine.live == rows
    small = scheduler.submit(greedy([7, 3], 3), (client, 2))
    assert steps_until(scheduler, small) <= 2
    if rows > 2:
        other = scheduler.submit(greedy([7, 3], 30), ("b", 3))
        assert steps_until(scheduler, other) <= 2


def test_small_request_does_not_wait_for_a_long_prompt() -> None:
    scheduler = filled(5, texts=2, owner=("a", 1))
    scheduler.submit(greedy([5] * 200, 3), ("a", 2))
    scheduler.chunk = 8
    scheduler.step()
    small = scheduler.submit(greedy([7, 3], 3), ("b", 3))
    assert steps_until(scheduler, small) == 1


def test_many_requests_of_one_client_leave_a_row_to_others() -> None:
    engine = TorchEngine(varied_model("decoder", "rotary"), rows=3, capacity=101)
    scheduler = Scheduler(engine)
    for number in range(20):
        scheduler.submit(greedy([5, 7], 90), ("a", number))
    for _ in range(5):
        scheduler.step()
    small = scheduler.submit(greedy([7, 3], 3), ("b", 0))
    assert steps_until(scheduler, small) <= 2


def test_rows_are_shared_evenly_between_clients() -> None:
    scheduler = filled(7, texts=20, owner=("a", 1))
    for number in range(20):
        scheduler.submit(greedy([7, number % 20], 150), ("b", number))
    for _ in range(30):
        scheduler.step()
    owners = [text.owner[0] for text in scheduler._decoding]
    assert (owners.count("a"), owners.count("b")) == (4, 3)


KNOWN: dict[tuple[str, int], list[int]] = {}


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@settings(max_examples=8, deadline=None)
@given(
    late=st.booleans(),
    rows=st.integers(1, 5),
    chunk=st.integers(1, 30),
    arrivals=st.lists(st.integers(0, 15), min_size=13, max_size=13),
    owners=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=13, max_size=13),
    cancelled=st.dictionaries(st.integers(0, 12), st.integers(0, 20), max_size=3),
)
def test_paused_texts_do_not_change(
    kind: str,
    late: bool,
    rows: int,
    chunk: int,
    arrivals: list[int],
    owners: list[tuple[int, int]],
    cancelled: dict[int, int],
) -> None:
    model, asked = varied_model(kind, "rotary"), requests(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_module, "arrive_later", lambda tokens: late)
        scheduler = Scheduler(TorchEngine(model, rows=rows, capacity=29), chunk=chunk)
        numbers: dict[int, int] = {}
        texts: dict[int, list[int]] = {}
        ends: dict[int, str] = {}
        step = 0
        while len(numbers) < len(asked) or not scheduler.idle:
            for index, arrival in enumerate(arrivals):
                if arrival == step:
                    numbers[scheduler.submit(asked[index], owners[index])] = index
                if cancelled.get(index) == step and index in numbers.values():
                    scheduler.cancel(next(number for number, one in numbers.items() if one == index))
            for number, token, finished, *_ in scheduler.step():
                assert numbers[number] not in ends
                texts.setdefault(numbers[number], []).extend([] if token is None else [token])
                if finished:
                    ends[numbers[number]] = finished
            step += 1
            assert step < 2000
    for index, request in enumerate(asked):
        if (kind, index) not in KNOWN:
            KNOWN[kind, index] = alone(model, request)
        expected, written = KNOWN[kind, index], texts.get(index, [])
        assert written == (expected[: len(written)] if ends[index] == "cancelled" else expected)
    assert scheduler.engine.live == 0


def test_texts_are_paused() -> None:
    """Otherwise the test above would prove nothing."""
    scheduler = filled(2, texts=3, owner=("a", 1))
    small = scheduler.submit(greedy([7, 3], 3), ("b", 2))
    steps_until(scheduler, small)
    paused = [text for text in scheduler._waiting if text.started]
    assert len(paused) == 1
    assert len(paused[0].tokens) > 2, "a paused text keeps its tokens"
    assert scheduler.started >= {paused[0].number, small}


def test_shares() -> None:
    assert split_evenly([100, 3, 100], 63) == [30, 3, 30]
    assert split_evenly([5, 5], 100) == [5, 5]
    assert split_evenly([9, 9, 9], 2) == [1, 1, 1]
    assert split_by_owner([("a", 1), ("a", 2), ("b", 1)], [90, 90, 90], 80) == [20, 20, 40]
    assert split_by_owner([], [], 5) == []


def test_request_with_many_texts_does_not_block_others(tmp_path: Path) -> None:
    model = make_bundle(tmp_path / "writer", "decoder", chat_tokenizer(), context=61)
    large = {"model": "writer", "prompt": ["a", "b", "c", "d"], "n": 16, "max_tokens": 37, "temperature": 0}
    large["logit_bias"] = {"256": -100}
    small = {"model": "writer", "prompt": "xyz", "max_tokens": 3, "temperature": 0}
    with serving({"writer": model}, limits=Limits(rows=5)) as server, ThreadPoolExecutor(1) as pool:
        expected = server.post("/v1/completions", **small).json()["choices"]
        worker = server.state.models["writer"].worker
        waiting = pool.submit(server.post, "/v1/completions", **large)
        until(lambda: worker.running == 5 and worker.cache_tokens > 30)
        for _ in range(3):
            answer = server.post("/v1/completions", **small)
            assert answer.json()["choices"] == expected
            assert not waiting.done()
            assert worker.queue > 30
        texts = [one["text"] for one in waiting.result().json()["choices"]]
        alone_ = [server.post("/v1/completions", **{**large, "prompt": one, "n": 1}).json() for one in "abcd"]
        assert [texts[16 * place] for place in range(4)] == [one["choices"][0]["text"] for one in alone_]
        assert all(len({*texts[16 * place : 16 * place + 16]}) == 1 for place in range(4))
        wait_until_idle(server.state)
