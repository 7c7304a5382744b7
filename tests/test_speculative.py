"""Speculative decoding has exactly the distribution of the target model; wrong versions are caught."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from cells import VOCABULARY
from test_decoding import BEGIN, END, prompts, sources, varied_model

from chumoku.decoding import speculative
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.generate import generate
from chumoku.decoding.sampling import SamplingOptions, process_logits
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.decoding.speculative import remainder, speculate
from chumoku.errors import UsageError

SMALL, LENGTH = 5, 3
SAMPLES = 503  # as many as it takes to catch each of the broken versions


class Table:
    """An engine that has its answers by heart: random logits for every text, shifted from those of others."""

    rows, capacity, vocabulary, device = 1, 99, SMALL, torch.device("cpu")

    def __init__(self, seed: int) -> None:
        self.seed, self.text = seed, []
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def lengths(self) -> list[int]:
        return [len(self.text)]

    def after(self, text: Sequence[int]) -> torch.Tensor:
        key = tuple(text)
        if key not in self.known:
            random = torch.Generator().manual_seed(sum((7**i) * (token + 1) for i, token in enumerate(key)))
            shared = torch.randn(SMALL, generator=random)
            own = torch.randn(SMALL, generator=random.manual_seed(self.seed + int(1e6 * shared[0].abs())))
            self.known[key] = 1.5 * shared + 0.7 * own
        return self.known[key]

    def add_rows(self, count: int, sources: object = None) -> None:
        self.text = []

    def select_rows(self, rows: Sequence[int]) -> None:
        self.text = []

    def prefill(self, pieces: list[list[int]], *, first: int = 0) -> torch.Tensor:
        self.text += pieces[0]
        return self.after(self.text)[None]

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        answers = []
        for token in tokens[0].tolist():
            self.text.append(token)
            answers.append(self.after(self.text))
        return torch.stack(answers)[None]

    def truncate(self, lengths: Sequence[int]) -> None:
        self.text = self.text[: lengths[0]]


def exact(target: Table, choice: SamplingOptions, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """P of every text of three tokens, by the chain rule."""
    found = {}
    for text in itertools.product(range(SMALL), repeat=LENGTH):
        chance = 1.0
        for place, token in enumerate(text):
            seen = torch.zeros(SMALL, dtype=torch.bool)
            seen[[*prompt, *text[:place]]] = True
            logits = target.after([*prompt, *text[:place]]).double()
            counts = torch.bincount(torch.tensor(text[:place], dtype=torch.int64), minlength=SMALL)
            chance *= float(process_logits(logits, choice, seen=seen, counts=counts).softmax(-1)[token])
        found[text] = chance
    return found


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Pearson's χ²: how likely so large a distance is if the counts are of this distribution."""
    if any(expected[text] == 0 for text in counts):
        return 0.0
    total = sum(counts.values())
    common = [text for text, chance in expected.items() if chance * total >= 5]
    pairs = [(counts[text], expected[text] * total) for text in common]
    rest = (total - sum(count for count, _ in pairs), total - sum(mean for _, mean in pairs))
    pairs += [rest] if rest[1] > 1 else []
    distance = sum((count - mean) ** 2 / mean for count, mean in pairs)
    return float(torch.special.gammaincc(torch.tensor((len(pairs) - 1) / 2), torch.tensor(distance / 2)))


def sampled(choice: SamplingOptions) -> float:
    target, draft, prompt = Table(1), Table(2), [3]
    counts: Counter[tuple[int, ...]] = Counter()
    for one in choice.for_rows(SAMPLES):
        # A text longer than what is counted, so that proposals go beyond it.
        written = speculate(Request(prompt, LENGTH + 2, one), target=target, draft=draft, proposals=4)
        counts[tuple(itertools.islice(written, LENGTH))] += 1
    return p_value(counts, exact(target, choice, prompt))


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        SamplingOptions(temperature=1.0, top_p=None, seed=1),
        SamplingOptions(temperature=0.6, top_k=3, top_p=None, repetition_penalty=1.4, seed=2),
        SamplingOptions(temperature=1.0, top_p=0.8, presence_penalty=0.5, seed=3),
        SamplingOptions(temperature=1.0, top_p=None, frequency_penalty=1.5, seed=4),
    ],
    ids=["plain", "top-k and repetition", "top-p and presence", "frequency"],
)
def test_the_distribution_equals_the_targets(choice: SamplingOptions) -> None:
    assert sampled(choice) > 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("accepts", lambda expected, drafted, token, point: True),
        ("accepts", lambda expected, drafted, token, point: point * float(expected[token]) < float(drafted[token])),
        ("remainder", lambda expected, drafted: expected),
        ("remainder", lambda expected, drafted: (drafted - expected).clamp(min=0)),
    ],
    ids=["all accepted", "the ratio turned over", "refused ones drawn again", "the wrong rest"],
)
def test_broken_speculations_are_caught(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, name, broken)
    assert sampled(SamplingOptions(temperature=1.0, top_p=None, seed=1)) < 1e-6


@pytest.mark.parametrize(
    ("position", "window"),
    [("rotary", None), ("learned", None), ("relative", None), ("relative_bias", None), ("alibi", None), ("rotary", 3)],
)
def test_greedy_speculation_is_greedy(position: str, window: int | None) -> None:
    """Over real engines, with a draft that is often wrong: the cache must go back as far as it was wrong."""
    model, draft = varied_model("decoder", position, attention_window=window), varied_model("decoder", "none", layers=1)
    expected = generate(model, prompts(), max_new_tokens=11, temperature=0, end=END, min_new_tokens=3)
    engines = {"target": TorchEngine(model, rows=1, capacity=40), "draft": TorchEngine(draft, rows=1, capacity=40)}
    for prompt, text in zip(prompts(), expected, strict=True):
        request = Request(prompt, 11, SamplingOptions(temperature=0), (END,), min_new_tokens=3)
        assert list(speculate(request, **engines)) == text
    itself = {**engines, "draft": TorchEngine(model, rows=1, capacity=40)}
    steps = []
    extend = itself["target"].extend
    itself["target"].extend = lambda tokens: (steps.append(tokens.shape[1]), extend(tokens))[1]
    longest = max(range(len(expected)), key=lambda row: len(expected[row]))
    assert (
        list(
            speculate(
                Request(prompts()[longest], 11, SamplingOptions(temperature=0), (END,), min_new_tokens=3), **itself
            )
        )
        == (expected[longest])
    )
    assert steps[:3] == [2, 3, 5], "a draft that is always right is asked for more and more"


def test_a_translator_may_have_a_draft() -> None:
    model, draft = (varied_model("encoder-decoder", "rotary", layers=layers) for layers in (2, 1))
    source = sources()[0][3, :7].tolist()
    request = Request([BEGIN], 9, SamplingOptions(temperature=0), (END,), source=source)
    scheduler = Scheduler(TorchEngine(model, rows=1, capacity=19))
    scheduler.submit(request)
    expected = []
    while not scheduler.idle:
        expected += [event.token for event in scheduler.step() if event.token is not None]
    engines = {name: TorchEngine(one, rows=1, capacity=19) for name, one in (("target", model), ("draft", draft))}
    assert list(speculate(request, **engines)) == expected


def test_invalid_speculations_are_refused() -> None:
    model, other = (varied_model("decoder", "none"), varied_model("decoder", "none", vocabulary=31))
    target, draft, wrong = (TorchEngine(one, rows=1, capacity=9) for one in (model, model, other))
    with pytest.raises(UsageError, match="the draft has 31 tokens, the target 29"):
        speculate(Request([5], 3), target=target, draft=wrong)
    for proposals in (0, 257):
        with pytest.raises(UsageError, match="proposals 1 to 256"):
            speculate(Request([5], 3), target=target, draft=draft, proposals=proposals)
    with pytest.raises(UsageError, match=f"Token {VOCABULARY} "):
        speculate(Request([5], 3, end=(VOCABULARY,)), target=target, draft=draft)
    assert list(speculate(Request([5], 0), target=target, draft=draft)) == []
    assert len(list(speculate(Request([5, 7], 99), target=target, draft=draft))) == 7


def test_remainder_of_equal_distributions_can_be_sampled() -> None:
    agreed = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64)
    assert remainder(agreed, agreed).tolist() == agreed.tolist()
    assert remainder(agreed, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)).tolist() == [0.0, 0.5, 0.0]
