"""Choosing: the fast way for a batch is the formula for each row, the formulas are transformers', and both can fail."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from chumoku.data.order import generator
from chumoku.decoding import batch_sampling as chosen_module
from chumoku.decoding import sampling
from chumoku.decoding.batch_sampling import BROKEN, Chooser, Voice
from chumoku.decoding.sampling import (
    Choice,
    edited,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalized,
    shaped,
    tempered,
)
from chumoku.decoding.top_k import first_largest, largest, reached
from chumoku.errors import UsageError

VOCABULARY, END = 29, (3, 5)


def random_logits(rows: int, seed: int = 0, size: int = VOCABULARY) -> torch.Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


choices = st.builds(
    Choice,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 7, 100]),
    top_p=st.sampled_from([None, 1e-9, 0.4, 0.9, 1.0]),
    min_p=st.sampled_from([None, 0.02, 0.5, 1.0]),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 0.9, -0.9]),
    bias=st.sampled_from([{}, {2: 4.0, 11: -math.inf}]),
    forbidden=st.sampled_from([(), (0, 28, 7)]),
    seed=st.integers(0, 5),
)


def by_the_formula(logits: list[torch.Tensor], choice: Choice, prompt: list[int], least: int) -> list[int]:
    """One row through all steps, every function as it stands in its docstring."""
    written: list[int] = []
    random = generator(choice.seed, choice.row)
    for said in logits:
        seen = torch.zeros(VOCABULARY, dtype=torch.bool)
        seen[[*prompt, *written]] = True
        shares = shaped(said, choice, seen=seen, also=END if len(written) < least else ()).softmax(-1)
        if choice.greedy:
            written.append(int(shares.argmax()))
            continue
        point, total = random.random() * float(shares.sum()), 0.0
        for token, share in enumerate(shares.tolist()):
            total += share
            if total > point:
                written.append(token)
                break
    return written


def fast(logits: list[torch.Tensor], rows: list[Choice], prompts: list[list[int]], least: int) -> list[list[int]]:
    chooser = Chooser(VOCABULARY, torch.device("cpu"))
    each = zip(rows, prompts, strict=True)
    chooser.enter([Voice(one, vocabulary=VOCABULARY, prompt=prompt, end=END, least=least) for one, prompt in each])
    return torch.stack([chooser.choose(said.clone()) for said in logits], 1).tolist()


def differs(rows: list[Choice], least: int, seed: int) -> bool:
    logits = [random_logits(len(rows), seed + step) for step in range(4)]
    prompts = [[(seed + row) % VOCABULARY, row] for row in range(len(rows))]
    expected = [
        by_the_formula([said[row] for said in logits], choice, prompts[row], least) for row, choice in enumerate(rows)
    ]
    return fast(logits, rows, prompts, least) != expected


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(choices, min_size=1, max_size=5), least=st.sampled_from([0, 2]), seed=st.integers(0, 99))
def test_a_batch_of_choices_is_the_formula_for_each(rows: list[Choice], least: int, seed: int) -> None:
    assert not differs(rows, least, seed)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(choices, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_when_a_few_are_not_enough(rows: list[Choice], seed: int) -> None:
    """With few tokens looked at first, all have to be looked at often."""
    old, chosen_module.HEAD = chosen_module.HEAD, 2
    try:
        assert not differs(rows, 0, seed)
    finally:
        chosen_module.HEAD = old


BROKEN_WAYS = [
    (Chooser, "_note", lambda self, chosen: None),
    (Voice, "short", property(lambda voice: False)),
    (chosen_module, "kept", lambda values, logits, best, choice: (values, torch.ones(1))),
    (chosen_module, "lessened", lambda logits, **_: logits),
    (chosen_module, "reached", lambda shares, points: reached(shares.flip(-1), points)),
    (Chooser, "_index", lambda self, rows: None),
]


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    BROKEN_WAYS,
    ids=["forgets", "ends early", "keeps all", "no penalty", "wrong order", "rows mixed up"],
)
def test_broken_choosers_are_caught(owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Choice(temperature=0.8, top_p=0.5, repetition=1.5, seed=1),
        Choice(temperature=1.5, min_p=0.3, presence=2.0, seed=2),
        Choice(temperature=0.0, repetition=3.0, forbidden=(7,)),
    ]
    assert not any(differs(rows, 2, seed) for seed in range(20))
    monkeypatch.setattr(owner, name, broken)
    assert any(differs(rows, 2, seed) for seed in range(20))


def test_choosers_agree_with_transformers() -> None:
    logits = random_logits(7)
    for p in (1e-9, 0.3, 0.8, 1.0):
        expected = transformers.TopPLogitsWarper(p)(None, logits)
        assert (keep_top_p(logits, p=p).isfinite() == expected.isfinite()).all()
    assert torch.equal(keep_top_k(logits, k=5), transformers.TopKLogitsWarper(5)(None, logits))
    assert torch.equal(keep_top_k(logits, k=100), logits)
    for p in (1e-9, 0.1, 1.0):
        assert torch.equal(keep_min_p(logits, p=p), transformers.MinPLogitsWarper(p)(None, logits))
    assert torch.equal(tempered(logits, temperature=0.7), transformers.TemperatureLogitsWarper(0.7)(None, logits))
    ids = torch.randint(VOCABULARY, (7, 11), generator=torch.Generator().manual_seed(1))
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    repetition = transformers.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits)
    torch.testing.assert_close(penalized(logits, seen, repetition=1.3, presence=0.0), repetition)
    theirs = transformers.SuppressTokensLogitsProcessor([2, 5])(None, logits)
    assert torch.equal(edited(logits, {2: -math.inf, 5: -math.inf}), theirs)
    theirs = transformers.SequenceBiasLogitsProcessor({(2,): 1.5})(ids, logits.float())
    torch.testing.assert_close(edited(logits.float(), {2: 1.5}), theirs)


def test_presence_counts_once() -> None:
    seen = torch.tensor([True, False])
    assert penalized(torch.tensor([2.0, 2.0]), seen, repetition=1.0, presence=0.5).tolist() == [1.5, 2.0]


@settings(max_examples=100, deadline=None)
@given(
    size=st.sampled_from([1, 63, 4095, 4096, 4097, 5000]),
    seed=st.integers(0, 2**32),
    zeros=st.sampled_from([0.0, 0.5, 0.999]),
    k=st.sampled_from([1, 3, 8, 16]),
)
def test_selections_are_pytorchs_own(size: int, seed: int, zeros: float, k: int) -> None:
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(5, size, generator=random) * (torch.rand(5, size, generator=random) >= zeros)
    shares[:, seed % size] += 0.1
    values, places = largest(shares, min(k, size))
    assert torch.equal(values, shares.topk(min(k, size)).values)
    assert torch.equal(shares.gather(1, places), values)
    assert all(len(set(row)) == len(row) for row in places.tolist())
    assert torch.equal(first_largest(shares), shares.argmax(-1))
    points = torch.rand(5, generator=random, dtype=torch.float64)
    points[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    sums = shares.cumsum(-1, dtype=torch.float64)
    expected = torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True)[:, 0]
    assert torch.equal(reached(shares, points), expected)


def test_the_impossible_is_never_drawn() -> None:
    """Not at either end of what a random number may be, in short rows as in long ones."""
    points = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for size in (5, 4099):
        shares = torch.zeros(2, size, dtype=torch.float64)
        shares[:, [size // 3, size // 2]] = torch.tensor([0.3, 0.7], dtype=torch.float64)
        assert reached(shares, points).tolist() == [size // 3, size // 2]


def test_plain_greedy_is_the_largest_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("largest", "reached", "lessened"):
        monkeypatch.setattr(chosen_module, name, None)
    assert fast([random_logits(3)], [Choice(temperature=0)] * 3, [[]] * 3, 0) == [
        [token] for token in random_logits(3).argmax(-1).tolist()
    ]


def test_top_k_looks_at_k_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    monkeypatch.setattr(
        chosen_module, "reached", lambda shares, u: (widths.append(shares.shape[-1]), reached(shares, u))[1]
    )
    fast([random_logits(3)], [Choice(top_k=4)] * 3, [[]] * 3, 0)
    assert widths == [4]


def test_rows_leave_with_what_they_have_seen() -> None:
    rows = [Choice(temperature=0, repetition=9.0, row=row) for row in range(3)]
    chooser = Chooser(VOCABULARY, torch.device("cpu"))
    chooser.enter([Voice(choice, vocabulary=VOCABULARY, prompt=[0]) for choice in rows])
    said = torch.zeros(3, VOCABULARY)
    said[torch.arange(3), torch.tensor([4, 6, 8])] = 1.0
    assert chooser.choose(said.clone()).tolist() == [4, 6, 8]
    chooser.take([2, 1])
    assert chooser.choose((said + 0.5)[[2, 1]]).tolist() == [1, 1], "each remembers its own"
    # What was written is less likely now, what another row wrote is not.
    assert chooser.choose((said + 0.5)[[1, 2]]).tolist() == [6, 8]
    chooser.enter([Voice(Choice(temperature=0), vocabulary=VOCABULARY)])
    assert chooser.choose((said + 0.5)[[1, 2, 0]]).tolist()[2] == 4


def test_rows_that_remember_come_behind_rows_that_do_not() -> None:
    chooser = Chooser(VOCABULARY, torch.device("cpu"))
    for choice in (Choice(temperature=0), Choice(temperature=0, repetition=9.0)):
        chooser.enter([Voice(choice, vocabulary=VOCABULARY, prompt=[4])])
    said = torch.zeros(2, VOCABULARY)
    said[:, 4], said[:, 6] = 2.0, 1.0
    assert chooser.choose(said).tolist() == [4, 6]


def test_numbers_that_are_none_are_told() -> None:
    for broken in (math.nan, math.inf):
        said = random_logits(2)
        said[1, 5] = broken
        for choice in (Choice(temperature=0), Choice(), Choice(top_k=3), Choice(top_p=0.5), Choice(min_p=0.1)):
            first, second = fast([said], [choice] * 2, [[]] * 2, 0)
            assert first != [BROKEN] == second


@pytest.mark.parametrize("vocabulary", [29, 5000])
@pytest.mark.parametrize("few", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_the_furthest_choices_are_still_numbers(vocabulary: int, few: dict[str, float]) -> None:
    """Whatever may be asked for, a token that there is is chosen; close to cold it is the likeliest."""
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(5))
    for options in (
        *({"temperature": t} for t in (1e-300, 1e-50, 1e-7, 1e-6, 1e6)),
        *({"repetition": r} for r in (1e-6, 1e6)),
        *({"presence": p} for p in (-1e6, 1e6)),
        {"bias": {7: 1e6}},
    ):
        choice = Choice(**options, **few, forbidden=(3,))  # type: ignore[arg-type]
        chooser = Chooser(vocabulary, torch.device("cpu"))
        chooser.enter([Voice(choice, vocabulary=vocabulary, prompt=[1])])
        (token,) = chooser.choose(logits.clone()).tolist()
        assert 0 <= token < vocabulary
        assert token != 3
        if choice.temperature < 1e-5:
            assert token == int(logits.argmax())


def test_choices_that_cannot_be() -> None:
    for options, message in (
        ({"temperature": -1.0}, "Temperature is a number of 0 or more, up to 1,000,000; -1.0 was given"),
        ({"temperature": math.nan}, "Temperature is a number of 0 or more, .*; nan was given"),
        ({"temperature": math.inf}, "Temperature is a number of 0 or more"),
        ({"temperature": 1e300}, "Temperature is a number of 0 or more, up to 1,000,000"),
        ({"top_k": 0}, "top_k is 1 or more; 0 was given"),
        ({"top_p": 0.0}, "top_p is above 0 and at most 1"),
        ({"top_p": math.nan}, "top_p is above 0"),
        ({"min_p": 1.5}, "min_p is above 0 and at most 1"),
        ({"repetition": 0.0}, "Repetition is a number from 0.000001 to 1,000,000"),
        ({"repetition": 1e-300}, "Repetition is a number"),
        ({"repetition": math.nan}, "Repetition is a number"),
        ({"presence": math.nan}, "Presence is a number from −1,000,000 to 1,000,000"),
        ({"presence": -1e300}, "Presence is a number"),
        ({"bias": {5: math.nan}}, "A bias is a number"),
        ({"bias": {5: 1e300}}, "A bias is a number"),
    ):
        with pytest.raises(UsageError, match=message):
            Choice(**options)
    with pytest.raises(UsageError, match="There is no token 29 to end with, to favor or to forbid; there are 29"):
        Voice(Choice(forbidden=(29,)), vocabulary=29)
    with pytest.raises(UsageError, match="Penalties are for tokens that were seen"):
        Voice(Choice(repetition=2.0), vocabulary=29)
    with pytest.raises(UsageError, match="All 29 tokens are forbidden"):
        Voice(Choice(forbidden=range(28)), vocabulary=29, end=(28,), least=1)


def test_rows_of_one_choice_differ() -> None:
    spread = Choice(seed=7).spread(5)
    assert len({tuple(row) for row in fast([random_logits(1).expand(5, -1)] * 9, spread, [[]] * 5, 0)}) == 5
    assert {dataclasses.replace(choice, row=0).seed for choice in spread} == {7}
    assert sampling.precise(torch.device("mps")) == torch.float32
