"""Continuous batching: a request gives the same text, whichever requests arrive, finish or are cancelled meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cells import VOCABULARY, Cell, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import BEGIN, END, LENGTHS, prompts, sources, varied_model

from chumoku.data.order import generator
from chumoku.decoding import batch_sampling as chosen_module
from chumoku.decoding import scheduler as scheduler_module
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.generate import generate
from chumoku.decoding.sampling import SamplingOptions, process_logits
from chumoku.decoding.scheduler import Event, Request, Scheduler
from chumoku.errors import BusyError, ChumokuError, LengthError, UsageError
from chumoku.models.build import build
from chumoku.models.model import Model

CAPACITY = 29


def requests(kind: str) -> list[Request]:
    """13 of different lengths, choices and limits."""
    source, _ = sources()
    requests = []
    for row, (prompt, length) in enumerate(zip(prompts(), LENGTHS, strict=True)):
        choice = SamplingOptions(
            temperature=(0.0, 0.8, 1.5)[row % 3], top_k=(None, 7)[row % 2], repetition_penalty=1.2, seed=row
        )
        if kind == "decoder":
            requests.append(Request(prompt, 5 + row, choice, (END,), min_new_tokens=row % 4))
        else:
            requests.append(
                Request([BEGIN], 5 + row, choice, (END,), min_new_tokens=row % 4, source=source[row, :length].tolist())
            )
    return requests


def alone(model: Model, request: Request) -> list[int]:
    """The plain way: every prefix computed anew, every formula as it stands."""
    written, random = list(request.prompt), generator(request.sampling.seed, request.sampling.row)
    for step in range(request.max_new_tokens):
        with torch.no_grad():
            target = torch.tensor([written])
            given = (target,) if request.source is None else (torch.tensor([request.source]), target)
            logits = model(*given).logits[0, -1]
        seen = torch.zeros(VOCABULARY, dtype=torch.bool)
        seen[written] = True
        also = request.end if step < request.min_new_tokens else ()
        shares = process_logits(logits, request.sampling, seen=seen, also_forbidden=also).softmax(-1)
        point = 0.0 if request.sampling.greedy else random.random()
        token = int((shares.cumsum(-1) > point).nonzero()[0, 0])
        if token in request.end:
            break
        written.append(token)
    return written[len(request.prompt) :]


def served(
    model: Model, asked: list[Request], *, rows: int, chunk: int, arrivals: list[int], cancelled: dict[int, int]
) -> tuple[list[list[int]], list[str | None]]:
    """Requests that arrive at the steps given, some cancelled at some step: their tokens, and how they ended."""
    scheduler = Scheduler(TorchEngine(model, rows=rows, capacity=CAPACITY), chunk=chunk)
    texts: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    ends: dict[int, str] = {}
    step = 0
    while len(numbers) < len(asked) or not scheduler.idle:
        for index, arrival in enumerate(arrivals):
            if arrival == step:
                numbers[index] = scheduler.submit(asked[index])
                texts[numbers[index]] = []
        for index, when in cancelled.items():
            if when == step and index in numbers:
                scheduler.cancel(numbers[index])
        for number, token, finished, *_ in scheduler.step():
            assert number not in ends, "a finished request was heard of again"
            if token is not None:
                texts[number].append(token)
            if finished:
                ends[number] = finished
        step += 1
    return [texts[numbers[i]] for i in range(len(asked))], [ends[numbers[i]] for i in range(len(asked))]


def wrong(kind: str, position: str = "rotary", *, rows: int = 5, chunk: int = 7, **changes: object) -> bool:
    model, asked = varied_model(kind, position, **changes), requests(kind)
    arrivals = [0, 0, 1, 1, 3, 3, 3, 4, 7, 9, 9, 12, 20]
    cancelled = {2: 5, 6: 4, 9: 9, 11: 15}
    try:
        texts, ends = served(model, asked, rows=rows, chunk=chunk, arrivals=arrivals, cancelled=cancelled)
    except (AssertionError, RuntimeError, ChumokuError, IndexError, ValueError):
        return True
    for index, (request, text, end) in enumerate(zip(asked, texts, ends, strict=True)):
        expected = alone(model, request)
        if end == "cancelled":
            if index not in cancelled or text != expected[: len(text)]:
                return True
        elif text != expected or (end == "length") != (len(expected) == request.max_new_tokens):
            return True
    return "cancelled" not in ends


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("position", ["learned", "rotary", "relative", "relative_bias", "alibi"])
def test_arrivals_at_odd_steps_change_no_text(kind: str, position: str) -> None:
    assert not wrong(kind, position)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_arrivals_at_odd_steps_change_no_text_with_a_window(kind: str) -> None:
    assert not wrong(kind, "alibi", attention_window=3)


@pytest.mark.parametrize(("rows", "chunk"), [(1, 3), (2, 100), (13, 1)])
def test_any_size_of_batch_and_chunk(rows: int, chunk: int) -> None:
    assert not wrong("decoder", rows=rows, chunk=chunk)


@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 6),
    chunk=st.integers(1, 30),
    arrivals=st.lists(st.integers(0, 25), min_size=13, max_size=13),
    cancelled=st.dictionaries(st.integers(0, 12), st.integers(0, 40), max_size=5),
)
def test_any_order_of_arrivals(rows: int, chunk: int, arrivals: list[int], cancelled: dict[int, int]) -> None:
    model, request = varied_model("decoder", "none"), requests("decoder")
    texts, ends = served(model, request, rows=rows, chunk=chunk, arrivals=arrivals, cancelled=cancelled)
    for index, text in enumerate(texts):
        expected = ALONE.setdefault(index, alone(model, request[index]))
        assert text == (expected[: len(text)] if ends[index] == "cancelled" else expected)


ALONE: dict[int, list[int]] = {}


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (scheduler_module, "compact_rows", lambda staying: list(range(len(staying)))),
        (
            chosen_module.BatchSampler,
            "select_rows",
            lambda self, rows: self.__dict__.update(states=self.states[: len(rows)]),
        ),
        (Scheduler, "_remove_before_step", lambda self: None),
        (chosen_module, "generator", lambda *key: generator(5)),
    ],
    ids=["wrong rows leave", "options stay", "cancelled rows stay", "one seed for all"],
)
def test_broken_schedulers_are_caught(
    owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert wrong("decoder")


def test_tokens_that_arrive_late_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the next step is under way before the tokens are known."""
    monkeypatch.setattr(scheduler_module, "arrive_later", lambda tokens: True)
    for kind in ("decoder", "encoder-decoder"):
        assert not wrong(kind)


def test_most_likely_tokens_of_the_engine_are_taken_where_no_rule_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    step, sample_rows, sampled = TorchEngine.step, chosen_module.sample_rows, []

    def with_argmax(engine: TorchEngine, tokens: torch.Tensor) -> torch.Tensor:
        logits = step(engine, tokens)
        engine.most_likely = logits.argmax(-1)
        return logits

    monkeypatch.setattr(TorchEngine, "step", with_argmax)
    monkeypatch.setattr(chosen_module, "sample_rows", lambda *given: (sampled.append(1), sample_rows(*given))[1])
    monkeypatch.setattr(scheduler_module, "arrive_later", lambda tokens: True)
    model, greedy = varied_model("decoder", "none"), SamplingOptions(temperature=0.0)
    free = [Request(prompt, 5 + row, greedy, (END,)) for row, prompt in enumerate(prompts()[:7])]
    texts = [alone(model, request) for request in free]
    ruled = [
        replace(request, sampling=greedy.forbid([text[-1]]) if text else greedy, min_new_tokens=len(text) + 1)
        for request, text in zip(free, texts, strict=True)
        if text
    ]
    for asked, expected in ((free, texts), (ruled, [alone(model, request) for request in ruled])):
        sampled.clear()
        found, _ = served(model, asked, rows=7, chunk=100, arrivals=[0] * len(asked), cancelled={0: 3})
        assert found[1:] == expected[1:]
        assert found[0] == expected[0][:3], "cancelled; another row takes its place"
        assert (len(sampled) == 1) == (asked is free), "rows are sampled only after the prefill"
    assert not any(text in texts for text in expected)


def test_a_long_prompt_does_not_make_the_others_wait() -> None:
    scheduler = Scheduler(TorchEngine(model_of(Cell("decoder")), rows=3, capacity=100), chunk=5)
    short = scheduler.submit(Request([5, 7], 30))
    scheduler.step()
    long = scheduler.submit(Request([3] * 41, 30))
    steps = [{event.number for event in scheduler.step()} for _ in range(12)]
    assert all(short in numbers for numbers in steps)
    assert [long in numbers for numbers in steps].index(True) == 8


def test_finished_rows_make_room_and_memory_is_bounded() -> None:
    engine = TorchEngine(model_of(Cell("decoder")), rows=2, capacity=11)
    scheduler = Scheduler(engine)
    for _ in range(9):
        scheduler.submit(Request([5, 7, 3], 4))
    most = 0
    while not scheduler.idle:
        scheduler.step()
        most = max(most, scheduler.nbytes)
        assert engine.live <= 2
    assert (engine.live, scheduler.waiting) == (0, 0)
    assert most == 2 * 2 * 2 * 11 * 30 * 8


def test_closing_frees_everything() -> None:
    engine = TorchEngine(model_of(Cell("decoder")), rows=2, capacity=11)
    scheduler = Scheduler(engine)
    for _ in range(5):
        scheduler.submit(Request([5, 7, 3], 4))
    scheduler.step()
    scheduler.close()
    assert scheduler.idle
    assert engine.live == 0
    assert scheduler.step() == []


def test_invalid_requests_are_refused() -> None:
    scheduler = Scheduler(TorchEngine(model_of(Cell("decoder")), rows=1, capacity=11), queue=2)
    for _ in range(2):
        scheduler.submit(Request([5], 3))
    with pytest.raises(BusyError, match="2 requests are waiting already"):
        scheduler.submit(Request([5], 3))
    scheduler.step()
    with pytest.raises(LengthError, match="A prompt has 12 tokens, but there is room for only 11"):
        scheduler.submit(Request([5] * 12, 3))
    with pytest.raises(UsageError, match="The tokens of a prompt must be numbers from 0 to 28"):
        scheduler.submit(Request([29], 3))
    with pytest.raises(UsageError, match="A prompt needs 1 token or more"):
        scheduler.submit(Request([], 3))
    assert not scheduler.cancel(99)
    nothing = scheduler.submit(Request([5] * 11, 3))
    assert Event(nothing, None, "length") in scheduler.step()


def test_sources_are_checked_on_submit() -> None:
    """Found only while others are being read, a wrong one would take them along."""
    translator = Scheduler(TorchEngine(varied_model("encoder-decoder", "learned"), rows=2, capacity=11))
    for source, message in (
        (None, "came with 0 source tokens to"),
        ([], "came with 0 source tokens to"),
        ([VOCABULARY], "The tokens of a source must be numbers from 0 to 28"),
        ([-1], "The tokens of a source must be numbers"),
        ([5] * 12, "A source has 12 tokens, but there is room for only 11"),
    ):
        with pytest.raises(UsageError, match=message):
            translator.submit(Request([BEGIN], 3, source=source))
    writer = Scheduler(TorchEngine(varied_model("decoder", "none"), rows=1, capacity=11))
    for source in ([5], []):
        with pytest.raises(UsageError, match="a decoder has no source"):
            writer.submit(Request([5], 3, source=source))
    for wrong in (Request([5], -1), Request([5], 1, min_new_tokens=-1)):
        with pytest.raises(UsageError, match="must be 0 or more; they are"):
            writer.submit(wrong)
    assert translator.idle
    assert writer.idle


def test_cancelling_during_prefill_frees_the_row() -> None:
    model = varied_model("decoder", "rotary")
    engine = TorchEngine(model, rows=2, capacity=29)
    scheduler = Scheduler(engine, chunk=3)
    first = scheduler.submit(Request([7, 5], 9, SamplingOptions(temperature=0)))
    long = scheduler.submit(Request([5] * 17, 2))
    text = [token for _ in range(3) for number, token, *_ in scheduler.step() if number == first]
    assert engine.lengths[1] < 17, "it is still being read"
    assert scheduler.cancel(long)
    assert not scheduler.cancel(long), "once is enough"
    later = scheduler.submit(Request([3, 4], 2, SamplingOptions(temperature=0)))
    events = [event for _ in range(12) for event in scheduler.step()]
    assert [event for event in events if event.number == long] == [Event(long, None, "cancelled")]
    text += [token for number, token, *_ in events if number == first]
    assert text == alone(model, Request([7, 5], 9, SamplingOptions(temperature=0)))
    assert [token for number, token, *_ in events if number == later] == alone(
        model, Request([3, 4], 2, SamplingOptions(temperature=0))
    )
    assert scheduler.idle
    assert engine.live == 0


@pytest.mark.parametrize("late", [False, True])
def test_logits_that_are_not_finite_fail_the_request(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """The row that meets them fails, and its mates go on."""
    monkeypatch.setattr(scheduler_module, "arrive_later", lambda tokens: late)
    model = build(Cell("decoder").config(tie_output=False))
    with torch.no_grad():
        model.decoder.embedding.table[7] = float("nan")
    greedy = {"max_new_tokens": 5, "sampling": SamplingOptions(temperature=0, forbidden=(7,))}
    alone = list(run_until_idle(Scheduler(TorchEngine(model, rows=1, capacity=11)), [Request([5, 3], **greedy)])[0])
    scheduler = Scheduler(TorchEngine(model, rows=3, capacity=11))
    found = run_until_idle(scheduler, [Request([5, 3], **greedy), Request([2, 7], **greedy), Request([5, 3], **greedy)])
    assert found == {0: alone, 1: ["failed"], 2: alone}
    assert alone[-1] == "length"
    assert scheduler.engine.live == 0
    with pytest.raises(ChumokuError, match="not finite numbers"):
        generate(model, [[5], [7]], max_new_tokens=3)


def run_until_idle(scheduler: Scheduler, requests: list[Request]) -> dict[int, list[object]]:
    """Tokens and reasons, by the request's number."""
    found: dict[int, list[object]] = {scheduler.submit(request): [] for request in requests}
    while not scheduler.idle:
        for number, token, finished, *_ in scheduler.step():
            found[number] += [part for part in (token, finished) if part is not None]
    return found
