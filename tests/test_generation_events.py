"""Log-probabilities of generated tokens, the tree of a beam search, and searches that are stopped early."""

from __future__ import annotations

import math

import pytest
import torch
from cells import VOCABULARY
from test_decoding import BEGIN, END, LENGTHS, prompts, sources, varied_model

from chumoku.decoding.beam import search
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.logprobs import Logprobs
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Event, Request, Scheduler
from chumoku.errors import UsageError


def plain(model: torch.nn.Module, written: list[int]) -> torch.Tensor:
    """log p of every token after these, by the whole model."""
    with torch.no_grad():
        return model(torch.tensor([written])).logits[0, -1].log_softmax(-1)


def test_tokens_come_with_their_likelihood() -> None:
    """Of the model's own distribution, whatever changes what is chosen; for those who ask, and for nobody else."""
    model = varied_model("decoder", "rotary")
    wanted = [None, 0, 3, None, 5, 29, 1]
    asked = [
        Request(
            prompt,
            7,
            SamplingOptions(temperature=0.9, top_k=11, repetition_penalty=1.4, bias={5: 2.0}, seed=row),
            logprobs=count,
        )
        for row, (prompt, count) in enumerate(zip(prompts(), wanted, strict=False))
    ]
    scheduler = Scheduler(TorchEngine(model, rows=3, capacity=29), chunk=5)
    numbers = [scheduler.submit(one) for one in asked]
    result: dict[int, list[Event]] = {number: [] for number in numbers}
    while not scheduler.idle:
        for event in scheduler.step():
            result[event.number].append(event)
    for request, number, count in zip(asked, numbers, wanted, strict=True):
        written = list(request.prompt)
        for event in result[number]:
            assert (event.likelihood is None) == (count is None)
            if event.likelihood is not None and event.token is not None and count is not None:
                shares = plain(model, written)
                assert event.likelihood.logprob == pytest.approx(float(shares[event.token]), abs=1e-4)
                expected = shares.topk(min(count, VOCABULARY))
                assert [share for _, share in event.likelihood.top] == pytest.approx(expected.values.tolist(), abs=1e-4)
                assert [token for token, _ in event.likelihood.top] == expected.indices.tolist()
            written += [] if event.token is None else [event.token]
    with pytest.raises(UsageError, match="logprobs must be 0 or more"):
        scheduler.submit(Request([5], 3, logprobs=-1))


def test_logprobs_are_computed_before_sampling() -> None:
    logits = torch.randn(3, 11)
    measured = Logprobs(logits, [2, None, 0])
    expected = logits[0].log_softmax(-1)
    logits.fill_(-math.inf)
    found = measured.of(torch.tensor([7, 1, 2]))
    assert found.keys() == {0, 2}
    assert found[0].logprob == pytest.approx(float(expected[7]))
    assert [token for token, _ in found[0].top] == expected.topk(2).indices.tolist()
    assert found[2].top == []
    assert Logprobs(logits, [None, None, None]).of(torch.tensor([1, 2, 3])) == {}


def searching(**options: object) -> list:
    model = varied_model("encoder-decoder", "rotary")
    source, mask = sources()
    words = {"begin": BEGIN, "end": END, "beam": 3, "best": 3, "limit": 9}
    return search(model, source, source_mask=mask, **{**words, **options})  # type: ignore[arg-type]


def test_hypotheses_come_with_their_likelihood() -> None:
    model = varied_model("encoder-decoder", "rotary")
    source, _ = sources()
    for row, (found, length) in enumerate(zip(searching(length_penalty=0.0), LENGTHS, strict=True)):
        for one in found:
            ended = len(one.logprobs) > len(one.tokens)
            assert ended or len(one.tokens) == 9
            assert sum(one.logprobs) == pytest.approx(one.score, abs=1e-4)
            target = torch.tensor([[BEGIN, *one.tokens]])
            with torch.no_grad():
                shares = model(source[row : row + 1, :length], target).logits[0].log_softmax(-1)
            tokens = [*one.tokens, *([END] if ended else [])]
            expected = [float(shares[place, token]) for place, token in enumerate(tokens)]
            assert list(one.logprobs) == pytest.approx(expected, abs=1e-4)


def test_dropping_a_row_of_a_search_leaves_the_others_unchanged() -> None:
    whole, steps = searching(), [0]

    def going(numbers: list[int]) -> list[bool]:
        steps[0] += 1
        return [not (number in (2, 7) and steps[0] >= 3) and number != 4 for number in numbers]

    found = searching(still_wanted=going)
    for number, (before, now) in enumerate(zip(whole, found, strict=True)):
        assert [one.tokens for one in now] == (
            [] if number in (2, 4, 7) and not now else [one.tokens for one in before]
        )
    assert found[4] == []
    assert sum(not row for row in found) >= 2, "those that were searched still were given up"
    steps[0] = 0
    assert searching(still_wanted=lambda numbers: [False] * len(numbers)) == [[] for _ in LENGTHS]


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("limit", [4, 11])
def test_the_tree_of_a_search(row: int, limit: int) -> None:
    model, tree, beam = varied_model("encoder-decoder", "rotary"), Tree(), 3
    source, _ = sources()
    one = source[row : row + 1, : LENGTHS[row]]
    found = search(model, one, begin=BEGIN, end=END, beam=beam, best=beam, limit=limit, tree=tree)[0]
    tree.finish(found[0].tokens, END)
    chosen = [node for node in tree.nodes if node.state == "chosen"]
    assert [node.token for node in chosen if node.token != END] == found[0].tokens
    assert [node.logprob for node in chosen] == pytest.approx(list(found[0].logprobs), abs=1e-4)
    assert [node.parent for node in chosen[1:]] == [tree.nodes.index(node) for node in chosen[:-1]]
    # Every hypothesis found is a way through the tree, and every step's best were looked at.
    ways = {tuple(token for token in tree._tokens(place) if token != END) for place in range(len(tree.nodes))}
    assert {tuple(each.tokens) for each in found} <= ways
    first = sorted((node.score for node in tree.nodes if node.step == 1), reverse=True)
    with torch.no_grad():
        shares = model(one, torch.tensor([[BEGIN]])).logits[0, -1].log_softmax(-1)
    assert first == pytest.approx(shares.topk(2 * beam).values.tolist(), abs=1e-4)
    assert {node.state for node in tree.nodes} <= {"live", "ended", "dropped", "chosen"}
