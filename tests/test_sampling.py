"""Sampling: the batched version equals the formula for each row, and the formulas equal those of transformers."""

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
from chumoku.decoding.batch_sampling import INVALID, BatchSampler, SamplerState
from chumoku.decoding.sampling import (
    SamplingOptions,
    add_biases,
    apply_penalties,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    process_logits,
)
from chumoku.decoding.top_k import first_largest, largest, reached
from chumoku.errors import UsageError

VOCABULARY, END = 29, (3, 5)


def random_logits(rows: int, seed: int = 0, size: int = VOCABULARY) -> torch.Tensor:
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


choices = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 7, 100]),
    top_p=st.sampled_from([None, 1e-9, 0.4, 0.9, 1.0]),
    min_p=st.sampled_from([None, 0.02, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.9, -0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.9, -0.9]),
    bias=st.sampled_from([{}, {2: 4.0, 11: -math.inf}]),
    forbidden=st.sampled_from([(), (0, 28, 7)]),
    seed=st.integers(0, 5),
)


def by_the_formula(logits: list[torch.Tensor], choice: SamplingOptions, prompt: list[int], least: int) -> list[int]:
    """One row through all steps, every function as it stands in its docstring."""
    written: list[int] = []
    random = generator(choice.seed, choice.row)
    for output in logits:
        seen = torch.zeros(VOCABULARY, dtype=torch.bool)
        seen[[*prompt, *written]] = True
        counts = torch.bincount(torch.tensor(written, dtype=torch.int64), minlength=VOCABULARY)
        also_forbidden = END if len(written) < least else ()
        shares = process_logits(output, choice, seen=seen, counts=counts, also_forbidden=also_forbidden).softmax(-1)
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


def fast(
    logits: list[torch.Tensor], rows: list[SamplingOptions], prompts: list[list[int]], least: int
) -> list[list[int]]:
    sampler = BatchSampler(VOCABULARY, torch.device("cpu"))
    each = zip(rows, prompts, strict=True)
    sampler.add_rows(
        [SamplerState(one, vocabulary=VOCABULARY, prompt=prompt, end=END, min_new_tokens=least) for one, prompt in each]
    )
    return torch.stack([sampler.sample(output.clone()) for output in logits], 1).tolist()


def differs(rows: list[SamplingOptions], least: int, seed: int) -> bool:
    logits = [random_logits(len(rows), seed + step) for step in range(4)]
    prompts = [[(seed + row) % VOCABULARY, row] for row in range(len(rows))]
    expected = [
        by_the_formula([output[row] for output in logits], choice, prompts[row], least)
        for row, choice in enumerate(rows)
    ]
    return fast(logits, rows, prompts, least) != expected


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(choices, min_size=1, max_size=5), least=st.sampled_from([0, 2]), seed=st.integers(0, 99))
def test_batch_sampling_equals_the_formula_for_each_row(rows: list[SamplingOptions], least: int, seed: int) -> None:
    assert not differs(rows, least, seed)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(choices, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_sampling_widens_when_the_first_tokens_are_not_enough(rows: list[SamplingOptions], seed: int) -> None:
    """With few tokens looked at first, all have to be looked at often."""
    old, chosen_module.FIRST_WIDTH = chosen_module.FIRST_WIDTH, 2
    try:
        assert not differs(rows, 0, seed)
    finally:
        chosen_module.FIRST_WIDTH = old


BROKEN_WAYS = [
    (BatchSampler, "_record", lambda self, chosen: None),
    (SamplerState, "too_short", property(lambda voice: False)),
    (chosen_module, "filter_top", lambda values, logits, best, choice: (values, torch.ones(1))),
    (chosen_module, "penalize", lambda logits, **_: logits),
    (chosen_module, "reached", lambda shares, points: reached(shares.flip(-1), points)),
    (BatchSampler, "_index", lambda self, rows: None),
]


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    BROKEN_WAYS,
    ids=["forgets", "ends early", "keeps all", "no penalty", "wrong order", "rows mixed up"],
)
def test_broken_sampling_is_caught(owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        SamplingOptions(temperature=0.8, top_p=0.5, repetition_penalty=1.5, seed=1),
        SamplingOptions(temperature=1.5, min_p=0.3, presence_penalty=2.0, seed=2),
        SamplingOptions(temperature=0.0, repetition_penalty=3.0, forbidden=(7,)),
    ]
    assert not any(differs(rows, 2, seed) for seed in range(20))
    monkeypatch.setattr(owner, name, broken)
    assert any(differs(rows, 2, seed) for seed in range(20))


def test_formulas_agree_with_transformers() -> None:
    logits = random_logits(7)
    for p in (1e-9, 0.3, 0.8, 1.0):
        expected = transformers.TopPLogitsWarper(p)(None, logits)
        assert (keep_top_p(logits, p=p).isfinite() == expected.isfinite()).all()
    assert torch.equal(keep_top_k(logits, k=5), transformers.TopKLogitsWarper(5)(None, logits))
    assert torch.equal(keep_top_k(logits, k=100), logits)
    for p in (1e-9, 0.1, 1.0):
        assert torch.equal(keep_min_p(logits, p=p), transformers.MinPLogitsWarper(p)(None, logits))
    assert torch.equal(
        apply_temperature(logits, temperature=0.7), transformers.TemperatureLogitsWarper(0.7)(None, logits)
    )
    ids = torch.randint(VOCABULARY, (7, 11), generator=torch.Generator().manual_seed(1))
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    repetition = transformers.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits)
    torch.testing.assert_close(apply_penalties(logits, seen, repetition_penalty=1.3, presence_penalty=0.0), repetition)
    theirs = transformers.SuppressTokensLogitsProcessor([2, 5])(None, logits)
    assert torch.equal(add_biases(logits, {2: -math.inf, 5: -math.inf}), theirs)
    theirs = transformers.SequenceBiasLogitsProcessor({(2,): 1.5})(ids, logits.float())
    torch.testing.assert_close(add_biases(logits.float(), {2: 1.5}), theirs)


def test_presence_counts_once() -> None:
    seen = torch.tensor([True, False])
    found = apply_penalties(torch.tensor([2.0, 2.0]), seen, repetition_penalty=1.0, presence_penalty=0.5)
    assert found.tolist() == [1.5, 2.0]


def test_frequency_penalty_counts_every_generated_token_and_no_prompt() -> None:
    """OpenAI's definition: the penalty times the number of times the token was generated."""
    options = SamplingOptions(temperature=0, frequency_penalty=0.75)
    for split in (0, 2):  # from the start, or added again with what was generated so far, as after a pause
        sampler = BatchSampler(3, torch.device("cpu"))
        state = SamplerState(options, vocabulary=3, prompt=[0, 0, 0])
        sampler.add_rows([SamplerState(SamplingOptions(temperature=0), vocabulary=3), state])
        generated: list[int] = []
        for step in range(5):
            if split and step == split:
                sampler.select_rows([0])
                state.prompt = [0, 0, 0, *generated]
                sampler.add_rows([state])
            plain, penalized = sampler.sample(torch.tensor([[2.0, 1.0, 0.0]] * 2)).tolist()
            assert plain == 0
            generated.append(penalized)
        # 2, 1.25, 0.5 / 1, 0.25 / 0 …
        assert generated == [0, 0, 1, 0, 1]


@settings(max_examples=100, deadline=None)
@given(
    size=st.sampled_from([1, 63, 4095, 4096, 4097, 5000]),
    seed=st.integers(0, 2**32),
    zeros=st.sampled_from([0.0, 0.5, 0.999]),
    k=st.sampled_from([1, 3, 8, 16]),
)
def test_top_k_functions_equal_pytorch(size: int, seed: int, zeros: float, k: int) -> None:
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand(5, size, generator=random) * (torch.rand(5, size, generator=random) >= zeros)
    shares[:, seed % size] += 0.1
    values, places = largest(shares, min(k, size))
    assert torch.equal(values, shares.topk(min(k, size)).values)
    assert torch.equal(shares.gather(1, places), values)
    assert all(len(set(row)) == len(row) for row in places.tolist())
    for rows in (shares, shares.bfloat16()):
        values, places = first_largest(rows)
        assert torch.equal(places, rows.argmax(-1))
        assert torch.equal(values, rows.amax(-1))
    points = torch.rand(5, generator=random, dtype=torch.float64)
    points[:2] = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    sums = shares.cumsum(-1, dtype=torch.float64)
    expected = torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True)[:, 0]
    assert torch.equal(reached(shares, points), expected)


def test_tokens_of_zero_probability_are_never_drawn() -> None:
    """Not at either end of what a random number may be, in short rows as in long ones."""
    points = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for size in (5, 4099):
        shares = torch.zeros(2, size, dtype=torch.float64)
        shares[:, [size // 3, size // 2]] = torch.tensor([0.3, 0.7], dtype=torch.float64)
        assert reached(shares, points).tolist() == [size // 3, size // 2]


def test_greedy_is_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("largest", "reached", "penalize"):
        monkeypatch.setattr(chosen_module, name, None)
    assert fast([random_logits(3)], [SamplingOptions(temperature=0)] * 3, [[]] * 3, 0) == [
        [token] for token in random_logits(3).argmax(-1).tolist()
    ]


def test_top_k_looks_at_k_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    monkeypatch.setattr(
        chosen_module, "reached", lambda shares, u: (widths.append(shares.shape[-1]), reached(shares, u))[1]
    )
    fast([random_logits(3)], [SamplingOptions(top_k=4)] * 3, [[]] * 3, 0)
    assert widths == [4]


def test_seen_tokens_move_with_their_rows() -> None:
    rows = [SamplingOptions(temperature=0, repetition_penalty=9.0, row=row) for row in range(3)]
    sampler = BatchSampler(VOCABULARY, torch.device("cpu"))
    sampler.add_rows([SamplerState(choice, vocabulary=VOCABULARY, prompt=[0]) for choice in rows])
    output = torch.zeros(3, VOCABULARY)
    output[torch.arange(3), torch.tensor([4, 6, 8])] = 1.0
    assert sampler.sample(output.clone()).tolist() == [4, 6, 8]
    sampler.select_rows([2, 1])
    assert sampler.sample((output + 0.5)[[2, 1]]).tolist() == [1, 1], "each remembers its own"
    # What was written is less likely now, what another row wrote is not.
    assert sampler.sample((output + 0.5)[[1, 2]]).tolist() == [6, 8]
    sampler.add_rows([SamplerState(SamplingOptions(temperature=0), vocabulary=VOCABULARY)])
    assert sampler.sample((output + 0.5)[[1, 2, 0]]).tolist()[2] == 4


def test_penalized_rows_after_rows_without_penalty() -> None:
    sampler = BatchSampler(VOCABULARY, torch.device("cpu"))
    for choice in (SamplingOptions(temperature=0), SamplingOptions(temperature=0, repetition_penalty=9.0)):
        sampler.add_rows([SamplerState(choice, vocabulary=VOCABULARY, prompt=[4])])
    output = torch.zeros(2, VOCABULARY)
    output[:, 4], output[:, 6] = 2.0, 1.0
    assert sampler.sample(output).tolist() == [4, 6]


def test_logits_that_are_not_finite_give_invalid_tokens() -> None:
    for broken in (math.nan, math.inf):
        output = random_logits(2)
        output[1, 5] = broken
        for choice in (
            SamplingOptions(temperature=0),
            SamplingOptions(),
            SamplingOptions(top_k=3),
            SamplingOptions(top_p=0.5),
            SamplingOptions(min_p=0.1),
        ):
            first, second = fast([output], [choice] * 2, [[]] * 2, 0)
            assert first != [INVALID] == second


@pytest.mark.parametrize("vocabulary", [29, 5000])
@pytest.mark.parametrize("few", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_extreme_options_stay_finite(vocabulary: int, few: dict[str, float]) -> None:
    """Whatever may be asked for, a token that there is is chosen; close to cold it is the likeliest."""
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(5))
    for options in (
        *({"temperature": t} for t in (1e-300, 1e-50, 1e-7, 1e-6, 1e6)),
        *({"repetition_penalty": r} for r in (1e-6, 1e6)),
        *({"presence_penalty": p} for p in (-1e6, 1e6)),
        {"bias": {7: 1e6}},
    ):
        choice = SamplingOptions(**options, **few, forbidden=(3,))  # type: ignore[arg-type]
        sampler = BatchSampler(vocabulary, torch.device("cpu"))
        sampler.add_rows([SamplerState(choice, vocabulary=vocabulary, prompt=[1])])
        (token,) = sampler.sample(logits.clone()).tolist()
        assert 0 <= token < vocabulary
        assert token != 3
        if choice.temperature < 1e-5:
            assert token == int(logits.argmax())


def test_invalid_options_are_refused() -> None:
    for options, message in (
        ({"temperature": -1.0}, "temperature must be a number from 0 to 1,000,000, not -1.0"),
        ({"temperature": math.nan}, "temperature must be a number from 0 to .*, not nan"),
        ({"temperature": math.inf}, "temperature must be a number from 0"),
        ({"temperature": 1e300}, "temperature must be a number from 0 to 1,000,000"),
        ({"top_k": 0}, "top_k must be 1 or more, not 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": math.nan}, "top_p must be above 0"),
        ({"min_p": 1.5}, "min_p must be above 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number from 0.000001 to 1,000,000"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty must be a number"),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be a number"),
        ({"presence_penalty": math.nan}, "presence_penalty must be a number from −1,000,000 to 1,000,000"),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be a number from −1,000,000"),
        ({"presence_penalty": -1e300}, "presence_penalty must be a number"),
        ({"bias": {5: math.nan}}, "A bias must be a number"),
        ({"bias": {5: 1e300}}, "A bias must be a number"),
    ):
        with pytest.raises(UsageError, match=message):
            SamplingOptions(**options)
    with pytest.raises(UsageError, match=r"Token 29 .* is not in the vocabulary of 29"):
        SamplerState(SamplingOptions(forbidden=(29,)), vocabulary=29)
    with pytest.raises(UsageError, match="Penalties need a prompt"):
        SamplerState(SamplingOptions(repetition_penalty=2.0), vocabulary=29)
    with pytest.raises(UsageError, match="All 29 tokens are forbidden"):
        SamplerState(SamplingOptions(forbidden=range(28)), vocabulary=29, end=(28,), min_new_tokens=1)


def test_rows_with_the_same_options_differ() -> None:
    spread = SamplingOptions(seed=7).for_rows(5)
    assert len({tuple(row) for row in fast([random_logits(1).expand(5, -1)] * 9, spread, [[]] * 5, 0)}) == 5
    assert {dataclasses.replace(choice, row=0).seed for choice in spread} == {7}
    assert sampling.widest_float(torch.device("mps")) == torch.float32
