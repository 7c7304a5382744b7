"""Rows with a common beginning are copied: the same texts to the last bit, from fewer computed tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from cells import VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import END, varied_model

from chumoku.decoding import prefix_cache
from chumoku.decoding import scheduler as scheduler_module
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.prefix_cache import Prefix, count_common, find_prefix
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler

CAPACITY = 47
ENGINES = {"torch": TorchEngine, "native": NativeEngine}
MODEL = copy.deepcopy(varied_model("decoder", "rotary")).float()


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MIN_COMMON_TOKENS", 3)


class Counter:
    """An engine that counts the tokens it prefills."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tokens = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def prefill(self, prompts: Any, *, first: int = 0) -> Any:
        self.tokens += sum(map(len, prompts))
        return self.engine.prefill(prompts, first=first)


def run(
    kind: str, prompts: list[list[int]], arrivals: list[int], *, rows: int, chunk: int, reuse: bool, clients: int = 1
) -> tuple[list[list[tuple[int, float]]], int, list[int]]:
    """Tokens with their log probabilities, how many tokens were prefilled, and how many each request saved."""
    counter = Counter(ENGINES[kind](MODEL, rows=rows, capacity=CAPACITY))
    scheduler = Scheduler(counter, chunk=chunk, reuse=reuse)  # type: ignore[arg-type]
    texts: list[list[tuple[int, float]]] = [[] for _ in prompts]
    places: dict[int, int] = {}
    saved = [0] * len(prompts)
    step = 0
    while len(places) < len(prompts) or not scheduler.idle:
        for place, arrival in enumerate(arrivals):
            if arrival == step:
                sampling = SamplingOptions(temperature=(0.0, 0.9)[place % 2], seed=place)
                request = Request(prompts[place], 3 + place % 5, sampling, (END,), logprobs=0)
                places[scheduler.submit(request, (place % clients, place))] = place
        for event in scheduler.step():
            place = places[event.number]
            saved[place] = event.cached
            if event.token is not None and event.likelihood is not None:
                texts[place].append((event.token, event.likelihood.logprob))
        step += 1
    assert scheduler.engine.live <= rows
    return texts, counter.tokens, saved


def family(size: int) -> list[list[int]]:
    """Prompts that share beginnings of several lengths, some of them equal."""
    root = [5 + number % (VOCABULARY - 5) for number in range(0, 7 * 23, 7)]
    return [root[: 4 + 3 * (number % 5)] + [7 + number // 2] * (1 + number % 3) for number in range(size)]


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=7, deadline=None)
@given(
    rows=st.integers(1, 6),
    chunk=st.integers(1, 41),
    arrivals=st.lists(st.integers(0, 19), min_size=11, max_size=11),
    clients=st.integers(1, 3),
)
def test_copied_beginnings_change_no_text(kind: str, rows: int, chunk: int, arrivals: list[int], clients: int) -> None:
    prompts = family(11)
    plain, computed, none_saved = run(kind, prompts, arrivals, rows=rows, chunk=chunk, reuse=False)
    reused, fewer, _ = run(kind, prompts, arrivals, rows=rows, chunk=chunk, reuse=True, clients=clients)
    if kind == "native":
        assert reused == plain
    else:  # PyTorch's products differ in the last bits with the number of tokens at once
        assert [[token for token, _ in text] for text in reused] == [[token for token, _ in text] for text in plain]
    assert not any(none_saved)
    assert fewer <= computed


@pytest.mark.parametrize("kind", ENGINES)
def test_texts_of_one_prompt_compute_it_once(kind: str) -> None:
    prompt = family(5)[-1]
    texts, computed, saved = run(kind, [prompt] * 7, [0] * 7, rows=7, chunk=5, reuse=True)
    assert computed == len(prompt) + 6, "all but the last token are copied"
    assert saved == [0] + [len(prompt) - 1] * 6
    plain, every, _ = run(kind, [prompt] * 7, [0] * 7, rows=7, chunk=5, reuse=False)
    assert [[token for token, _ in text] for text in texts] == [[token for token, _ in text] for text in plain]
    assert every == 7 * len(prompt)


def test_a_conversation_is_continued_from_its_row() -> None:
    """Each prompt begins with the one before and some of its answer; the rows before are given up."""
    counter = Counter(NativeEngine(MODEL, rows=5, capacity=CAPACITY))
    scheduler = Scheduler(counter, reuse=True)  # type: ignore[arg-type]
    prompt = family(5)[-1][:13]
    for turn in range(3):
        counter.tokens = 0
        scheduler.submit(Request(prompt, 5, SamplingOptions(temperature=0.0)))
        while not scheduler.idle:
            prompt = [*prompt, *(event.token for event in scheduler.step() if event.token is not None)]
        assert counter.tokens == (13 if turn == 0 else 3)
        assert scheduler.engine.live == 1
        prompt = [*prompt, 9 + turn, 11]  # the last answer's last token is not in the cache yet


def test_copies_of_kept_rows_do_not_copy_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept row keeps its memory; only the new row's own tokens are written elsewhere."""
    copied: list[None] = []
    original = NativeEngine._copy_to_own_slots
    monkeypatch.setattr(NativeEngine, "_copy_to_own_slots", lambda self: (copied.append(None), original(self)))
    prompts = [[*family(5)[-1][:9], 20 + number, 21, 22] for number in range(5)]
    _, _, saved = run("native", prompts, [9 * number for number in range(5)], rows=13, chunk=31, reuse=True)
    assert saved == [0, 9, 9, 9, 9]
    assert not copied


@pytest.mark.parametrize("kind", ENGINES)
def test_a_copy_leaves_the_row_it_came_from_unchanged(kind: str) -> None:
    """The second prompt begins like the first and goes on differently; the third is the first again."""
    root = family(5)[-1][:9]
    first, second = [*root, 20, 21, 22, 23], [*root, 13, 12, 11, 10]
    prompts, arrivals = [first, second, first, second], [0, 9, 18, 27]
    plain, _, _ = run(kind, prompts, arrivals, rows=13, chunk=31, reuse=False)
    texts, _, saved = run(kind, prompts, arrivals, rows=13, chunk=31, reuse=True)
    assert saved == [0, 9, 12, 12]
    for text, expected in zip(texts, plain, strict=True):
        assert [token for token, _ in text] == [token for token, _ in expected]
        assert [logprob for _, logprob in text] == pytest.approx([logprob for _, logprob in expected], abs=1e-4)


def test_clients_share_nothing() -> None:
    prompt = family(5)[-1]
    arrivals = [0, 9, 18, 27]
    assert run("native", [prompt] * 4, arrivals, rows=5, chunk=31, reuse=True, clients=2)[2][1] == 0
    assert run("native", [prompt] * 4, arrivals, rows=5, chunk=31, reuse=True, clients=2)[2][2] == len(prompt) - 1
    assert run("native", [prompt] * 4, arrivals, rows=5, chunk=31, reuse=True, clients=4)[2] == [0] * 4


@pytest.mark.parametrize("broken", ["too long", "another row"])
def test_broken_caches_are_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(tokens: Any, client: Any, rows: Any, earliest: Any) -> Prefix | None:
        rows = list(rows)
        found = find_prefix(tokens, client, rows, earliest)
        if found is None or broken == "too long":
            return None if found is None else Prefix(found.row, min(len(tokens) - 1, found.length + 1))
        return Prefix(next((row for row, one in enumerate(rows) if len(one.tokens) >= found.length), 0), found.length)

    arrivals = [2 * place for place in range(11)]
    plain = run("native", family(11), arrivals, rows=3, chunk=7, reuse=False)[0]
    monkeypatch.setattr(scheduler_module, "find_prefix", find)
    assert run("native", family(11), arrivals, rows=3, chunk=7, reuse=True)[0] != plain


def test_tokens_that_arrive_late_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: a finished row has computed one step too many."""
    arrivals = [3 * place for place in range(11)]
    plain = run("native", family(11), arrivals, rows=4, chunk=7, reuse=False)[0]
    monkeypatch.setattr(scheduler_module, "arrive_later", lambda tokens: True)
    assert run("native", family(11), arrivals, rows=4, chunk=7, reuse=True)[0] == plain


@given(first=st.lists(st.integers(0, 2), max_size=13), second=st.lists(st.integers(0, 2), max_size=13))
def test_count_common_equals_the_loop(first: list[int], second: list[int]) -> None:
    expected = 0
    while expected < min(len(first), len(second)) and first[expected] == second[expected]:
        expected += 1
    assert count_common(first, second) == expected
