"""Decoding: fast equals plain, other rows change nothing, beam 1 is greedy; each property has a broken version."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import CONTEXT, POSITIONS, VOCABULARY, Cell, tokens
from foreign import ROPE, SCALINGS, gpt2, llama, make_twins, marian

from chumoku.data.order import generator
from chumoku.decoding import batch_sampling as chosen_module
from chumoku.decoding import beam as beam_module
from chumoku.decoding import generate as generate_module
from chumoku.decoding import scheduler as scheduler_module
from chumoku.decoding import translate as translate_module
from chumoku.decoding.batch import compact_rows
from chumoku.decoding.beam import cross_attention, run_search, search, search_continuations
from chumoku.decoding.beam_rules import Hypothesis, Numbers, Rules
from chumoku.decoding.engines import base as engine_module
from chumoku.decoding.engines import encoder_outputs as sources_module
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.generate import generate
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.translate import batches_by_length, translate
from chumoku.errors import ChumokuError, LengthError, UsageError
from chumoku.models.build import build
from chumoku.models.config import Dropout
from chumoku.models.model import Model, Output
from chumoku.text import Tokenizer, train

PAD, BEGIN, END = 0, 1, 3
FORBIDDEN = (PAD, BEGIN)
LENGTHS = [2, 11, 5, 7, 3, 1, 7, 4, 9, 6, 8, 10, 3]


@functools.lru_cache
def varied_model(kind: str, position: str, **changes: object) -> Model:
    """A model whose next token depends on all tokens before it, and which sometimes ends a text."""
    values = {"output_bias": True, "tie_output": False, **changes}
    model = build(Cell(kind, position).config(**values), dtype=torch.float64)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 2.5 / parameter.shape[-1] ** 0.5, generator=random)
        model.head.weight.normal_(0, 0.6, generator=random)
        model.head.bias[END] = 3.0
    return model


def sources() -> tuple[torch.Tensor, torch.Tensor]:
    """13 rows of different lengths, and which of their tokens are real."""
    lengths = torch.tensor(LENGTHS)
    return tokens(13, 11), torch.arange(11) < lengths[:, None]


def plain_beam(
    model: Callable[..., Output],
    source: torch.Tensor,
    *,
    beam: int,
    penalty: float,
    limit: int,
    min_new_tokens: int = 0,
) -> list[Hypothesis]:
    """One sentence, every prefix computed anew, no early finish."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    found = []
    for length in range(1, limit + 1):
        target = torch.tensor([[BEGIN, *written] for _, written in live])
        with torch.no_grad():
            chances = model(source.expand(len(live), -1), target).logits[:, -1].log_softmax(-1).tolist()
        every = [
            (total + chances[row][token], [*written, token])
            for row, (total, written) in enumerate(live)
            for token in range(VOCABULARY)
            if token not in FORBIDDEN and (token != END or length > min_new_tokens)
        ]
        every.sort(reverse=True)
        for total, written in every[:beam]:
            if written[-1] == END or length == limit:
                body = written[:-1] if written[-1] == END else written
                found.append(Hypothesis(body, total / ((5 + length) / 6) ** penalty))
        live = [one for one in every if one[1][-1] != END][:beam]
        if len(found) >= beam:
            break
    return sorted(found, key=lambda one: -one.score)


def fast_beam(model: Model, *, beam: int, penalty: float, limit: int = 17, best: int = 1) -> list[list[Hypothesis]]:
    source, mask = sources()
    given = {"beam": beam, "length_penalty": penalty, "limit": limit, "best": best, "forbidden": FORBIDDEN}
    return search(model, source, source_mask=mask, begin=BEGIN, end=END, **given)


def alike(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    same = [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
    return same and all(math.isclose(a.score, b.score, rel_tol=1e-9) for a, b in zip(one, other, strict=True))


def beam_noticed(model: Model, *, beam: int, penalty: float, best: int = 1) -> bool:
    """Whether search over the whole batch differs anywhere from the plain one, row by row."""
    try:
        fast = fast_beam(model, beam=beam, penalty=penalty, best=best)
    except (ChumokuError, IndexError):
        return True
    rows = zip(fast, sources()[0], LENGTHS, strict=True)
    return not all(
        alike(found, plain_beam(model, source[:length], beam=beam, penalty=penalty, limit=17)[:best])
        for found, source, length in rows
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("beam", "penalty", "best"), [(1, 1.0, 1), (3, 0.0, 2), (5, 1.0, 1)])
def test_beam_search_equals_the_plain_one(
    position: str, beam: int, penalty: float, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources_module, "SPARE", 2)
    for window in (None, 3):
        model = varied_model("encoder-decoder", position, attention_window=window)
        assert not beam_noticed(model, beam=beam, penalty=penalty, best=best)


@pytest.mark.parametrize("penalty", [2.0, -1.0, 0.6])
def test_early_finish_changes_nothing_under_any_penalty(penalty: float) -> None:
    model = varied_model("encoder-decoder", "none")
    assert not beam_noticed(model, beam=3, penalty=penalty, best=3)
    lengths = {len(found[0].tokens) for found in fast_beam(model, beam=3, penalty=penalty)}
    assert len(lengths) > 3, "a test in which all rows end together shows little"


def test_early_stop_bound_is_the_best_reachable_score() -> None:
    """log p = -4 after 3 tokens, of at most 13: at penalty 1 it may still reach -4 / 3, at -1 only -4 · 9 / 6."""
    for penalty, bound in ((1.0, -4 / 3), (0.0, -4.0), (-1.0, -6.0)):
        rules = Rules(END, 5, 2, penalty, [], [13])
        for change, done in ((1e-9, True), (-1e-9, False)):
            # The second sentence has one hypothesis less.
            scores = np.array([[bound + change, bound + 1e-9], [bound + 1e-9, math.nan]])
            found = rules.done(scores, np.array([-4.0, -4.0]), np.array([0, 0]), length=3)
            assert found.tolist() == [done, False]
    assert rules.done(scores, np.array([-math.inf, -4.0]), np.array([0, 0]), length=3).tolist() == [True, False]


def unmoved(parts: object, moves: object) -> None:
    pass


def hasty(rules: Rules, scores: Numbers, live: Numbers, numbers: Numbers, *, length: int) -> Numbers:
    return ~np.isnan(scores).all(1) | (length >= rules.limit_array[numbers])


def mistaken(rules: Rules, scores: Numbers, live: Numbers, numbers: Numbers, *, length: int) -> Numbers:
    """A bound that takes a live hypothesis at its present length."""
    reached = (scores >= (live / rules.divisor(length))[:, None]).any(1)
    return DONE(rules, scores, live, numbers, length=length) | reached


DONE = Rules.done


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (engine_module, "move", unmoved),
        (sources_module, "move", unmoved),
        (Rules, "done", hasty),
        (Rules, "done", mistaken),
        (beam_module, "compact_rows", lambda staying: list(range(len(staying)))),
        (Rules, "divisor", lambda rules, length: ((6 + length) / 6) ** rules.length_penalty),
    ],
    ids=["beams stay", "sources stay", "first finished wins", "bound too low", "wrong rows leave", "end not counted"],
)
def test_broken_searches_are_caught(owner: object, name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert beam_noticed(varied_model("encoder-decoder", "none"), beam=5, penalty=2.0, best=2)


def test_finished_rows_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder runs once, cross-attention keys are made once, and rows leave the batch when they are done."""
    model = varied_model("encoder-decoder", "rotary")
    rows, encoded, projected = [], [], []
    decode, encode, project = model.decoder.forward, model.encode, model.decoder.project
    monkeypatch.setattr(
        model.decoder, "forward", lambda target, **rest: (rows.append(len(target)), decode(target, **rest))[1]
    )
    monkeypatch.setattr(
        model, "encode", lambda source, **rest: (encoded.append(len(source)), encode(source, **rest))[1]
    )
    monkeypatch.setattr(model.decoder, "project", lambda states: (projected.append(len(states)), project(states))[1])
    together = fast_beam(model, beam=3, penalty=1.0)
    assert (encoded, projected) == ([13], [13])
    all_rows, longest = sum(rows), len(rows)
    assert all_rows < 3 * 13 * longest
    rows.clear()
    for found, source, length in zip(together, sources()[0], LENGTHS, strict=True):
        alone = search(model, source[None, :length], begin=BEGIN, end=END, beam=3, limit=17, forbidden=FORBIDDEN)
        assert alike(found, alone[0])
    assert sum(rows) == all_rows


class FixedEngine:
    """An engine whose rows always have the same logits."""

    device = torch.device("cpu")
    logits = torch.randn(3 * 31, VOCABULARY, generator=torch.Generator().manual_seed(5))

    def prefill(self, prompts: list[list[int]]) -> torch.Tensor:
        return self.logits[: len(prompts)]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits[: len(tokens)]

    def select_rows(self, rows: list[int]) -> None: ...

    def add_rows(self, count: int, sources: object) -> None: ...


def test_calls_of_a_step_do_not_depend_on_the_number_of_sentences() -> None:
    """Sentences and beams are handled together, in arrays: a batch of 1,024 rows must not keep a GPU waiting."""

    def calls(sentences: int, length: int) -> int:
        seen: list[str] = []
        rules = Rules(END, 3, 1, 1.0, [], [length] * sentences, length - 1)
        engine: Any = FixedEngine()
        sys.setprofile(lambda frame, event, _: seen.append(event) if event.endswith("call") else None)
        try:
            run_search(engine, [[BEGIN]] * sentences, None, rules, still_wanted=lambda rows: [True] * len(rows))
        finally:
            sys.setprofile(None)
        return len(seen)

    calls(2, 3)
    assert calls(31, 13) - calls(31, 7) == calls(2, 13) - calls(2, 7)


def test_a_beam_of_one_is_greedy() -> None:
    model = varied_model("encoder-decoder", "sinusoidal")
    for found, source, length in zip(fast_beam(model, beam=1, penalty=1.0), sources()[0], LENGTHS, strict=True):
        written = [BEGIN]
        while len(written) <= 17 and written[-1] != END:
            with torch.no_grad():
                logits = model(source[None, :length], torch.tensor([written])).logits[0, -1]
            logits[list(FORBIDDEN)] = -math.inf
            written.append(int(logits.argmax()))
        assert found[0].tokens == [token for token in written[1:] if token != END]


def test_each_row_has_its_own_limit() -> None:
    model = varied_model("encoder-decoder", "none")
    source, mask = sources()
    limits = [1 + row for row in range(13)]
    found = search(model, source, source_mask=mask, begin=BEGIN, end=END, beam=3, limit=limits, forbidden=FORBIDDEN)
    for row, limit in enumerate(limits):
        assert alike(found[row], fast_beam(model, beam=3, penalty=1.0, limit=limit)[row])
    with torch.no_grad():
        endless = varied_model("encoder-decoder", "learned", layers=1)
        endless.head.bias[END] = -99.0
    assert {len(row[0].tokens) for row in fast_beam(endless, beam=2, penalty=1.0, limit=10**9)} == {CONTEXT}


def test_a_small_vocabulary_and_a_large_beam() -> None:
    """More beams than there are tokens: the impossible ones never come out."""
    model = varied_model("encoder-decoder", "none", vocabulary=5)
    source = tokens(2, 7) % 5
    found = search(model, source, begin=BEGIN, end=END, beam=7, limit=2, best=7, forbidden=FORBIDDEN)
    for row in found:
        assert len({tuple(one.tokens) for one in row}) == len(row) == 7
        assert all(math.isfinite(one.score) and not {*one.tokens} & {*FORBIDDEN, END} for one in row)


def test_training_mode_is_restored_after_search() -> None:
    config = Cell("encoder-decoder").config(dropout=Dropout(sublayer=0.5))
    model = build(config).train()
    model.encoder.eval()
    one, two = (search(model, tokens(2, 7), begin=BEGIN, end=END, limit=11) for _ in range(2))
    assert one == two
    assert model.training
    assert model.decoder.blocks[0].training
    assert not model.encoder.training
    model(tokens(2, 7), tokens(2, 3)).logits.sum().backward()


def test_engine_capacity_limits_a_search() -> None:
    model, source = varied_model("encoder-decoder", "none"), tokens(2, 7)
    options = {"begin": BEGIN, "end": END, "beam": 2, "forbidden": FORBIDDEN}
    small = TorchEngine(model, rows=4, capacity=2)
    assert search(model, source, limit=11, engine=small, **options) == search(model, source, limit=2, **options)


def test_invalid_searches_are_refused() -> None:
    model, source = varied_model("encoder-decoder", "none"), tokens(2, 7)
    for options, message in (
        ({"beam": 2, "best": 3}, r"best must be from 1 to beam \(2\), not 3"),
        ({"length_penalty": 1e300}, "length_penalty must be a number from −10 to 10"),
        ({"length_penalty": -1e300}, "length_penalty must be a number from −10 to 10"),
        ({"limit": 0}, "limit must be 1 or more"),
        ({"limit": [3]}, "for each of the 2"),
        ({"min_new_tokens": 11, "limit": 11}, "min_new_tokens is 11, but a row may have only 11 tokens"),
        ({"forbidden": (PAD, END)}, "Token 3 is the end token"),
        ({"forbidden": (VOCABULARY,)}, "is not in the vocabulary of 29"),
    ):
        with pytest.raises(UsageError, match=message):
            search(model, source, begin=BEGIN, end=END, **options)
    with pytest.raises(UsageError, match="needs a model of kind 'encoder-decoder'"):
        search(varied_model("decoder", "none"), source, begin=BEGIN, end=END)
    broken = build(Cell("encoder-decoder").config())
    with torch.no_grad():
        broken.decoder.embedding.table.fill_(math.nan)
    with pytest.raises(ChumokuError, match="not finite numbers"):
        search(broken, source, begin=BEGIN, end=END, limit=3)


def test_compact_rows() -> None:
    assert compact_rows([0, 2, 4, 5]) == [0, 5, 2, 4]
    assert compact_rows([0, 1]) == [0, 1]
    assert compact_rows([6]) == [6]


@pytest.mark.parametrize("beam", [1, 4])
def test_marian_beam_search_equals_transformers(beam: int, tmp_path: Path) -> None:
    theirs = marian(vocab_size=29, eos_token_id=END, activation_function="gelu")
    ours, theirs = (model.double() for model in make_twins(theirs, tmp_path))
    source, mask = sources()
    options = {"num_beams": beam, "max_new_tokens": 13, "do_sample": False, "bad_words_ids": [[PAD], [BEGIN]]}
    if beam > 1:
        options |= {"length_penalty": 0.0, "early_stopping": True, "output_scores": True}
    expected = theirs.generate(source, attention_mask=mask.long(), return_dict_in_generate=True, **options)
    found = search(
        ours, source, source_mask=mask, begin=BEGIN, end=END, beam=beam, limit=13, length_penalty=0.0,
        forbidden=FORBIDDEN,
    )  # fmt: skip
    texts = [[token for token in row if token not in (PAD, BEGIN, END)] for row in expected.sequences.tolist()]
    assert [row[0].tokens for row in found] == texts
    if beam > 1:
        scores = torch.tensor([row[0].score for row in found], dtype=torch.float64)
        torch.testing.assert_close(scores, expected.sequences_scores.double(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoder_generation_equals_transformers(name: str, beam: int, tmp_path: Path) -> None:
    rope = {**ROPE, **SCALINGS["llama3"]}
    theirs = gpt2(vocab_size=29, n_positions=23) if name == "gpt2" else llama(vocab_size=29, rope_parameters=rope)
    ours, theirs = (model.double() for model in make_twins(theirs, tmp_path))
    given = [prompt[:9] for prompt in prompts()]
    options = {"num_beams": beam, "max_new_tokens": 11, "do_sample": False, "eos_token_id": END, "pad_token_id": PAD}
    if beam > 1:
        options |= {"length_penalty": 0.0, "early_stopping": True}
    texts = []
    for prompt in given:
        output = theirs.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(), **options)
        texts.append([token for token in output[0, len(prompt) :].tolist() if token != END])
    if beam == 1:
        assert generate(ours, given, max_new_tokens=11, temperature=0, end=END) == texts
    found = search_continuations(ours, given, max_new_tokens=11, end=END, beam=beam, length_penalty=0.0)
    assert [row[0].tokens for row in found] == texts
    assert len({tuple(text) for text in texts}) > 3


def test_decoder_beam_search_equals_the_plain_one() -> None:
    """A prompt of the target is a source that is read as one."""
    model = varied_model("decoder", "rotary")
    found = search_continuations(
        model, prompts(), max_new_tokens=7, end=END, beam=3, best=2, min_new_tokens=2, forbidden=FORBIDDEN
    )
    for prompt, row in zip(prompts(), found, strict=True):
        expected = plain_beam(
            lambda source, target: model(torch.cat([source, target[:, 1:]], 1)),
            torch.tensor(prompt), beam=3, penalty=1.0, limit=7, min_new_tokens=2,
        )  # fmt: skip
        assert alike(row, expected[:2])


def test_min_new_tokens_in_beam_search() -> None:
    model = varied_model("encoder-decoder", "none")
    source, mask = sources()
    found = search(
        model, source, source_mask=mask, begin=BEGIN, end=END, beam=3, limit=17, min_new_tokens=5, forbidden=FORBIDDEN
    )
    freely = fast_beam(model, beam=3, penalty=1.0)
    assert min(len(row[0].tokens) for row in found) == 5 > min(len(row[0].tokens) for row in freely)
    for row, given, length in zip(found, source, LENGTHS, strict=True):
        assert alike(row, plain_beam(model, given[:length], beam=3, penalty=1.0, limit=17, min_new_tokens=5)[:1])


def test_cross_attention_of_the_best_hypothesis() -> None:
    model = varied_model("encoder-decoder", "rotary")
    source, mask = sources()
    found = search(
        model, source, source_mask=mask, begin=BEGIN, end=END, beam=3, limit=17, best=2, return_attention=True
    )
    for row, given, length in zip(found, source, LENGTHS, strict=True):
        for one in row:
            assert one.attention.shape == (2, 3, len(one.tokens) + 1, length)
            torch.testing.assert_close(one.attention.sum(-1), torch.ones(2, 3, len(one.tokens) + 1).double())
        assert torch.equal(row[0].attention, cross_attention(model, given[:length].tolist(), row[0].tokens, BEGIN))
    assert fast_beam(model, beam=3, penalty=1.0)[0][0].attention is None


def plain_sample(model: Model, prompt: list[int], choose: Callable[[torch.Tensor], int], new: int) -> list[int]:
    """One row, every prefix computed anew."""
    written = list(prompt)
    while len(written) < len(prompt) + new:
        with torch.no_grad():
            token = choose(model(torch.tensor([written])).logits[0, -1])
        if token == END:
            break
        written.append(token)
    return written[len(prompt) :]


def prompts() -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(*(sources()[0], LENGTHS), strict=True)]


@pytest.mark.parametrize("position", POSITIONS)
def test_generation_equals_the_plain_one(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "SPARE", 2)
    model = varied_model("decoder", position)
    greedy = [plain_sample(model, prompt, lambda logits: int(logits.argmax()), 12) for prompt in prompts()]
    assert generate(model, prompts(), max_new_tokens=12, temperature=0, end=END) == greedy
    drawn = generate(model, prompts(), max_new_tokens=12, temperature=0.7, top_k=11, top_p=0.9, seed=5, end=END)
    for row, prompt in enumerate(prompts()):
        random = generator(5, row)

        def choose(logits: torch.Tensor, random: object = random) -> int:
            chances = dict(enumerate((logits / 0.7).softmax(-1).tolist()))
            likely = sorted(chances, key=lambda token: -chances[token])[:11]
            total = sum(chances[token] for token in likely)
            fewest = next(n for n in range(1, 12) if sum(chances[t] for t in likely[:n]) >= 0.9 * total)
            kept = sorted(likely[:fewest])
            point = random.random() * sum(chances[token] for token in kept)
            return next(t for i, t in enumerate(kept) if sum(chances[k] for k in kept[: i + 1]) > point)

        assert drawn[row] == plain_sample(model, prompt, choose, 12)


def test_text_does_not_depend_on_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = varied_model("decoder", "rotary")

    def noticed() -> bool:
        mates = [prompt if row % 2 else [7, 5] for row, prompt in enumerate(prompts())]
        one, two = (
            generate(model, given, max_new_tokens=12, temperature=1.0, seed=5, end=END) for given in (prompts(), mates)
        )
        return one[1::2] != two[1::2]

    assert not noticed()
    shared = generator(5)
    monkeypatch.setattr(chosen_module, "generator", lambda *key: shared)
    assert noticed(), "one generator for all was not caught"
    monkeypatch.undo()
    monkeypatch.setattr(scheduler_module, "compact_rows", lambda staying: list(range(len(staying))))
    assert noticed(), "wrong rows that leave were not caught"


def test_seeds_and_rows_differ_and_frequencies_are_right() -> None:
    model = varied_model("decoder", "none")
    free = {"max_new_tokens": 1, "temperature": 1.0, "top_p": None}
    many = generate(model, [[5]] * 2000, **free)
    with torch.no_grad():
        chances = model(torch.tensor([[5]])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([row[0] for row in many]), minlength=VOCABULARY)
    assert float((counts / 2000 - chances).abs().max()) < 0.04
    assert many == generate(model, [[5]] * 2000, **free)
    assert many != generate(model, [[5]] * 2000, **free, seed=1)


def test_learned_positions_end_at_the_context() -> None:
    model = varied_model("decoder", "learned")
    given = [[5] * (CONTEXT - 2), [5] * CONTEXT, [5]]
    assert [len(row) for row in generate(model, given, max_new_tokens=100)] == [2, 0, CONTEXT - 1]
    with pytest.raises(LengthError, match="A prompt has 24 tokens, but the learned positions of this model end at 23"):
        generate(model, [[5] * (CONTEXT + 1)], max_new_tokens=1)


def test_invalid_generations_are_refused() -> None:
    model = varied_model("decoder", "none")
    assert generate(model, [], max_new_tokens=3) == []
    assert generate(model, [[5], [7]], max_new_tokens=0) == [[], []]
    for options, message in (
        ({"temperature": -1.0}, "temperature must be a number from 0"),
        ({"top_k": 0}, "top_k must be 1 or more"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"sampling": [SamplingOptions()] * 2}, "2 sampling options were given for 1 prompts"),
        ({"end": VOCABULARY}, "is not in the vocabulary of 29"),
        ({"min_new_tokens": -1}, "must be 0 or more; they are 1 and -1"),
        ({"max_new_tokens": -1}, "must be 0 or more; it is -1"),
    ):
        with pytest.raises(UsageError, match=message):
            generate(model, [[5]], **{"max_new_tokens": 1, **options})
    with pytest.raises(UsageError, match="A prompt needs 1 token or more"):
        generate(model, [[5], []], max_new_tokens=1)
    with pytest.raises(UsageError, match="needs a model of kind 'decoder'"):
        generate(varied_model("encoder-decoder", "none"), [[5]], max_new_tokens=1)
    broken = build(Cell("decoder").config())
    with torch.no_grad():
        broken.decoder.embedding.table.fill_(math.nan)
    with pytest.raises(ChumokuError, match="not finite numbers"):
        generate(broken, [[5]], max_new_tokens=1)


TEXTS = ["abc de", "", "f", "the lazy dog", "a", " ", "quick", "jumps over", "x y z", "brown fox", "", "dog", "lazy"]


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train(["the quick brown fox jumps over the lazy dog"] * 3, kind="character", vocabulary=40)


def translator(tokenizer: Tokenizer, position: str = "rotary") -> Model:
    assert tokenizer.roles.end is not None
    model = varied_model("encoder-decoder", position, vocabulary=tokenizer.size + 6)
    with torch.no_grad():
        model.head.bias.zero_()
        model.head.bias[tokenizer.roles.end] = 3.0
        # What has no text would be the likeliest of all.
        model.head.bias[tokenizer.size :] = 5.0
    return model


def test_translation_keeps_the_order(letters: Tokenizer) -> None:
    model = translator(letters)
    options = {"source_tokenizer": letters, "tokenizer": letters, "beam": 3}
    together = translate(model, TEXTS, batch_tokens=60, **options)
    assert together == [translate(model, [text], **options)[0] for text in TEXTS]
    assert together == translate(model, TEXTS, **options)
    assert len(set(together)) > 7
    assert [text for text, given in zip(together, TEXTS, strict=True) if not given] == ["", ""]
    assert translate(model, [], **options) == []


def test_engines_stay_small_for_different_lengths(letters: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short texts and a long one: neither all rows are as long as that one, nor a prompt's batch mates."""
    sizes: list[int] = []

    def opened(model: Model, *, rows: int, capacity: int) -> TorchEngine:
        sizes.append(rows * capacity)
        return TorchEngine(model, rows=rows, capacity=capacity)

    for module in (beam_module, translate_module, generate_module):
        monkeypatch.setattr(module, "open_engine", opened)
    texts = [*TEXTS, "lazy? fox!", "a" * 20]
    options = {"source_tokenizer": letters, "tokenizer": letters, "beam": 3, "batch_tokens": 60}
    model = translator(letters)
    reports: list[tuple[int | None, int | None]] = []
    whole = translate(model, texts, **options, progress=lambda _, done, total, unit: reports.append((done, total)))
    assert len(sizes) == 1, "usually one engine does"
    assert {total for _, total in reports} == {len(texts)}, "texts, though some have two sentences"
    assert len(reports) > 1
    assert reports == sorted(reports)
    assert reports[-1] == (len(texts), len(texts))
    sizes.clear()
    monkeypatch.setattr(translate_module, "SPARE_FACTOR", 4)
    assert translate(model, texts, **options) == whole
    assert max(sizes) <= 2 * 60 + 3 * 20 * 10, "a batch's own tokens and limits"
    sizes.clear()
    model, prompts = varied_model("decoder", "none"), [[5]] * 12 + [[7] * 90]
    written = generate(model, prompts, max_new_tokens=2)
    config = model.config
    position = 2 * 4 * config.decoder_depth * config.key_heads * config.key_width
    monkeypatch.setattr(generate_module, "MEMORY", 5 * 92 * position)
    assert generate(model, prompts, max_new_tokens=2) == written
    assert sizes == [13 * 92, 5 * 92]


def test_translation_is_search_as_in_training(letters: Tokenizer) -> None:
    """Source + end, from begin to end, and 2 × source + 20 tokens at the most."""
    model, roles = translator(letters), letters.roles
    ids = [*letters.encode("jumps over"), roles.end]
    wordless = range(letters.size, model.config.vocabulary)
    found = search(
        model, torch.tensor([ids]), begin=roles.begin, end=roles.end, beam=3, limit=2 * len(ids) + 20,
        forbidden=(roles.pad, roles.begin, *wordless),
    )  # fmt: skip
    options = {"source_tokenizer": letters, "tokenizer": letters, "beam": 3}
    assert translate(model, ["jumps over"], **options) == [letters.decode(found[0][0].tokens)]
    with torch.no_grad():
        model.head.bias[roles.end] = -99.0
    assert len(letters.encode(translate(model, ["jumps over"], max_new_tokens=3, **options)[0])) == 3
    assert len(letters.encode(translate(model, ["jumps over"], **options)[0])) == 2 * 11 + 20


def test_translation_with_language_and_own_engine() -> None:
    words = train(["the quick brown fox"] * 3, kind="character", vocabulary=40, languages=["en", "fr"])
    model = translator(words)
    options = {"source_tokenizer": words, "tokenizer": words, "beam": 2}
    into = {code: translate(model, ["fox", ""], into=code, **options) for code in ("en", "fr")}
    assert into["en"] != into["fr"] != translate(model, ["fox", ""], **options)
    assert into["en"][1] == ""
    with pytest.raises(UsageError, match=r"has no language 'de'\. Its languages: en, fr"):
        translate(model, ["fox"], into="de", **options)
    engine = TorchEngine(model, rows=4, capacity=99)
    texts = ["fox", "the", "quick brown", "x", "ox"]
    assert translate(model, texts, engine=engine, **options) == translate(model, texts, **options)
    assert engine.live == 0
    least = translate(model, ["fox"], min_new_tokens=9, **options)
    assert len(words.encode(least[0])) >= 9


def test_invalid_translations_are_refused(letters: Tokenizer) -> None:
    options = {"source_tokenizer": letters, "tokenizer": letters}
    with pytest.raises(LengthError, match=r"Text 2: a sentence has 31 tokens with the end token.* reads 23 at most"):
        translate(translator(letters, "learned"), ["a", "a" * 30], **options)
    with pytest.raises(LengthError, match=r"Text 1: a sentence has 14 tokens with the end token.* reads 13 at most"):
        translate(translator(letters, "rotary"), ["a" * 13], within=13, **options)
    with pytest.raises(LengthError, match=r"Text 1: a sentence has 31 tokens with the end token.* reads 23 at most"):
        translate(translator(letters, "rotary"), ["a" * 30], **options)
    assert len(translate(translator(letters, "rotary"), ["a" * 30], within=31, **options)) == 1
    with pytest.raises(UsageError, match=r"has no language 'fr'\. Its languages: none"):
        translate(translator(letters), ["a"], into="fr", **options)
    with pytest.raises(UsageError, match="texts must be a list"):
        translate(translator(letters), "abc", **options)


def test_batches_hold_a_budget() -> None:
    lengths = [5, 0, 3, 30, 7, 1, 2]
    batches = list(batches_by_length(lengths, most=14))
    assert sorted(number for batch in batches for number in batch) == [0, 2, 3, 4, 5, 6]
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= 14 for batch in batches)
    assert batches == [[3], [4, 0], [2, 6, 5]]
    assert list(batches_by_length(lengths, most=14, rows=2)) == [[3], [4, 0], [2, 6], [5]]
