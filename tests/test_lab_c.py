"""Experiments of the lab, second half: every experiment runs, and its verdict follows from its numbers."""

from __future__ import annotations

import copy
import importlib
import json
import math
from typing import Any

import pytest
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from chumoku.lab import sentence_data as corpus
from chumoku.lab import toy_models, translator
from chumoku.lab.claims import (
    contextual,
    dropout,
    ffn_memory,
    ffn_needed,
    gated,
    heads,
    kotatsu,
    layers,
    leak,
    lora,
    moe,
    pretrain_shift,
    self_cross,
    word_vectors,
)
from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, VERDICTS, Budget, Words, load_claims
from chumoku.nn import Attention, FeedForward
from chumoku.probe.plot_style import plot_style

IDS = (
    *("heads", "ffn-needed", "ffn-memory", "gated", "moe", "dropout", "lora", "word-vectors", "contextual"),
    *("kotatsu", "layers", "leak", "self-cross", "pretrain-shift"),
)


class Brief(Budget):
    """Enough steps to run, not to learn; `minimum` is ignored."""

    def steps(self, full: int, minimum: int = 1) -> int:
        return max(5, round(full * self.scale))


BRIEF = Brief(scale=0.02, seeds=2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("id", IDS)
def test_experiment_runs_and_draws(id: str) -> None:
    module = importlib.import_module(f"chumoku.lab.claims.{id.replace('-', '_')}")
    outcome = module.run(BRIEF)
    assert outcome.verdict in VERDICTS
    assert outcome.verdict == module.judge(json.loads(json.dumps(outcome.numbers)))
    words = [getattr(load_claims()[id], name) for name in ("title", "stated", "tried", "refutes", "rule", "reading")]
    for output in (*words, outcome.summary):
        assert isinstance(output, Words)
        assert output.en
        assert is_japanese(output.ja)
    assert (outcome.verdict == PARTLY) == (outcome.when is not None)
    with rc_context(plot_style()):
        figure = Figure(layout="constrained")
        module.draw(outcome, figure)
        assert figure.axes


def is_japanese(text: str) -> bool:
    from chumoku.text.japanese import share_of_japanese

    return share_of_japanese(text) > 0.1 or text == "Outputs (shifted right)"


@pytest.mark.slow
def test_random_state_and_threads_are_restored() -> None:
    torch.manual_seed(7)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    for module in (heads, ffn_memory, moe, self_cross):
        module.run(BRIEF)
    assert torch.equal(before, torch.random.get_rng_state())
    assert threads == torch.get_num_threads()


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert heads.run_trial(2, 3, 5) == heads.run_trial(2, 3, 5)
    assert heads.run_trial(2, 3, 5) != heads.run_trial(2, 4, 5)


# Rules: artificial numbers that must change the verdict.


def test_heads_rule() -> None:
    clear = {"right": [1.0] * 4, "mass": [[0.9 * (row == column) for column in range(4)] for row in range(8)]}
    blurred = {"right": [1.0] * 4, "mass": [[0.25] * 4 for _ in range(8)]}
    one = {"right": [0.3] * 4, "mass": [[0.25] * 4]}
    assert heads.judge({"heads": {"1": [one, one], "8": [clear, clear]}}) == HOLDS
    assert heads.judge({"heads": {"1": [one, one], "8": [clear, blurred]}}) == PARTLY
    assert heads.judge({"heads": {"1": [one, one], "8": [blurred, blurred]}}) == FAILS
    assert heads.judge({"heads": {"1": [{**one, "right": [1.0] * 4}], "8": [clear]}}) == FAILS  # one head is as good
    shared = copy.deepcopy(clear)
    shared["mass"][0][1], shared["mass"][1][1] = 0.9, 0.0
    assert not heads.has_own_heads(shared["mass"])


def test_heads_answer_positions() -> None:
    tokens, star = heads.sample_batch(torch.Generator().manual_seed(0), 3)
    model = heads.QuestionModel(2)
    _, right = heads.predict(model, tokens, star)
    for row in range(3):
        for place in range(1, heads.LENGTH):
            wanted = [tokens[row, place - 1], tokens[row, 0], tokens[row, -1], tokens[row, star[row]]]
            assert right[row, place - 1].tolist() == [int(token) for token in wanted]


def test_ffn_needed_rule() -> None:
    def numbers(*lost: float, spread: float = 0.1) -> dict[str, Any]:
        found = {}
        for task, share in zip(ffn_needed.TASKS, lost, strict=True):
            loss = {"with": [1.0, 1.0], "without": [1 + 2 * (share - spread), 1 + 2 * (share + spread)]}
            found[task] = {"lost": share, "loss": loss, "guessing": 3.0}
        return found

    assert ffn_needed.judge(numbers(0.9, 0.8, 0.7)) == HOLDS
    assert ffn_needed.judge(numbers(0.9, 0.1, 0.1)) == PARTLY
    assert ffn_needed.judge(numbers(0.1, 0.1, 0.1, spread=0.01)) == FAILS
    assert ffn_needed.judge(numbers(0.1, 0.1, 0.45)) == NOT_JUDGED
    assert ffn_needed.lost_share({"with": [1.0], "without": [2.0]}, 3.0) == 0.5


def test_attention_over_one_vector_is_linear() -> None:
    """Attention with one key is linear; a feed-forward layer is not."""
    model = ffn_needed.build_reader("without", 3, 0)
    block = model.blocks[0]
    value = block.attention(torch.randn(2, 1, ffn_needed.WIDTH))
    x, y = torch.randn(2, 5, 1, ffn_needed.WIDTH).unbind(0)
    added = block.attention(x) + block.attention(y) - block.attention(torch.zeros_like(x))
    torch.testing.assert_close(block.attention(x + y), added, atol=1e-5, rtol=1e-4)
    assert value.shape == (2, 1, ffn_needed.WIDTH)
    nonlinear = FeedForward(ffn_needed.WIDTH, 8)
    added = nonlinear(x) + nonlinear(y) - nonlinear(torch.zeros_like(x))
    assert not torch.allclose(nonlinear(x + y), added, atol=1e-5)


def test_ffn_memory_rule() -> None:
    def seed(*recalled: int, off: int) -> list[dict[str, int]]:
        return [{"recalled": count, "switched_off": off} for count in recalled]

    good = seed(100, 200, 300, 900, off=100)
    assert ffn_memory.judge({"runs": [good, good]}) == HOLDS
    assert ffn_memory.judge({"runs": [good, seed(100, 90, 300, 900, off=100)]}) == PARTLY
    assert ffn_memory.judge({"runs": [seed(100, 200, 300, 900, off=800)]}) == FAILS


def test_fact_model_trains_only_its_block() -> None:
    known = toy_models.make_facts(3, subjects=5, relations=3, objects=7)
    assert len(known.answer) == 15
    assert torch.equal(known.answer, toy_models.make_facts(3, subjects=5, relations=3, objects=7).answer)
    model = toy_models.FactModel(known, FeedForward(toy_models.WIDTH, 11), 0)
    assert all(name.startswith(("block.", "norm.")) for name, _ in model.named_parameters())


def test_gated_rule() -> None:
    def numbers(*held: float) -> dict[str, Any]:
        gates = [{"held": loss, "other_held": 9.0, "nothing": 9.0} for loss in held]
        return {"gates": gates, "loss": {"geglu": [1.0] * len(held)}}

    assert gated.judge(numbers(1.5, 1.2)) == HOLDS
    assert gated.judge(numbers(1.5, 1.05)) == PARTLY
    assert gated.judge(numbers(1.05, 0.9)) == NOT_JUDGED
    assert gated.judge(numbers(1.01, 1.0)) == FAILS
    assert 2 * gated.WIDTHS["gelu"] == 3 * gated.WIDTHS["geglu"] == 3 * gated.WIDTHS["swiglu"]  # equal compute


def test_factor_fixed_at_its_own_value_changes_nothing() -> None:
    torch.manual_seed(0)
    inner, x = FeedForward(5, 7, kind="geglu"), torch.randn(1, 5)
    activated, gates = gated.factors(inner, x)
    assert torch.equal(gates, inner.up(x)), "the gate of the note is the factor without GELU"
    for name, own in (("gates", gates[0]), ("activated", activated[0])):
        torch.testing.assert_close(gated.FixedFactor(inner, **{name: own})(x), inner(x))
        assert not torch.allclose(gated.FixedFactor(inner, **{name: own + 1})(x), inner(x))


def test_moe_rule() -> None:
    size = {"mixture": 400, "same compute": 100}
    cost = {"mixture": 105, "same compute": 100}
    own = {"bits": {"relation": 1.2, "subject": 0.1}, "before": {"relation": 0.8, "subject": 0.1}, "most_bits": 2.0}
    shared = {**own, "bits": {"relation": 0.9, "subject": 0.9}}
    unlearned = {**own, "before": {"relation": 1.6, "subject": 0.1}}

    def verdict(*tasks: dict[str, Any], recalled: int = 8, **changes: Any) -> str:
        runs = {"mixture": [{"recalled": recalled, **one} for one in tasks], "same compute": [{"recalled": 5}] * 2}
        return moe.judge({"size": size, "products": cost, "runs": runs, **changes})

    assert verdict(own, own) == HOLDS
    assert verdict(own, shared) == verdict(own, unlearned) == PARTLY
    assert verdict(own, own, recalled=5) == PARTLY
    for bad in ({"products": {**cost, "mixture": 200}}, {"size": {**size, "mixture": 200}}, {"recalled": 5}):
        assert verdict(own, shared, **bad) == FAILS


def test_mutual_information_extremes() -> None:
    part, chosen = torch.arange(4).repeat(3), torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7]]).repeat(3, 1)
    table = moe.count_choices(part, chosen)
    assert table.sum() == 24
    assert moe.mutual_information(table) == pytest.approx(math.log2(moe.EXPERTS) - math.log2(moe.CHOSEN))
    assert moe.mutual_information(torch.ones(4, moe.EXPERTS)) == pytest.approx(0.0, abs=1e-6)


def test_moe_counts_products() -> None:
    for kind in ("same compute", "same size"):
        assert moe.count_products(kind) == sum(
            p.numel() for p in moe.build_feedforward(kind).parameters()
        )  # each parameter is one multiplication
    mixture = sum(p.numel() for p in moe.build_feedforward("mixture").parameters())
    idle = 2 * toy_models.WIDTH * moe.HIDDEN * (moe.EXPERTS - moe.CHOSEN)
    assert moe.count_products("mixture") == mixture - idle


def test_dropout_rule() -> None:
    def numbers(*, beside: float = 0.15, train: float = 1.0, **gaps: float) -> dict[str, Any]:
        kinds = {"none": 0.5, "all": 0.1, **gaps, **{f"all but {place}": beside for place in dropout.PLACES}}
        runs = {kind: [{"train": 1.0, "validation": 1.0 + gap}] * 2 for kind, gap in kinds.items()}
        runs["sublayer"] = [{"train": train, "validation": train + gaps["sublayer"]}] * 2
        return {"runs": runs}

    assert dropout.judge(numbers(embedding=0.4, attention=0.3, sublayer=0.2)) == HOLDS
    partly = numbers(embedding=0.6, attention=0.3, sublayer=0.2)
    assert dropout.judge(partly) == PARTLY
    assert dropout.helpful_alone(partly) == dropout.helpful_beside_others(partly) == ["attention", "sublayer"]
    spoilt = numbers(embedding=0.4, attention=0.3, sublayer=0.2, train=1.4)  # a smaller gap with a worse loss
    assert dropout.judge(spoilt) == PARTLY
    assert dropout.helpful_alone(spoilt) == ["embedding", "attention"]
    replaceable = numbers(embedding=0.4, attention=0.3, sublayer=0.2, beside=0.05)
    assert dropout.judge(replaceable) == PARTLY
    assert dropout.helpful_beside_others(replaceable) == []
    assert dropout.judge(numbers(embedding=0.6, attention=0.7, sublayer=0.8)) == FAILS


def test_lora_rule() -> None:
    def numbers(*losses: float) -> dict[str, Any]:
        ranks = dict(zip(map(str, lora.RANKS), losses, strict=True))
        trained = {str(rank): 10 * rank for rank in lora.RANKS}
        return {"runs": [{"before": 3.0, "whole": 2.0, "ranks": ranks, "trained": trained, "total": 400}] * 2}

    assert lora.judge(numbers(2.0, 2.0, 2.0, 2.0, 2.0)) == HOLDS
    some = numbers(2.5, 2.3, 2.2, 2.05, 2.0)
    assert lora.judge(some) == PARTLY
    assert lora.sufficient_ranks(some) == [8]
    bad = numbers(2.5, 2.5, 2.5, 2.5, 2.0)
    assert lora.judge(bad) == FAILS
    assert lora.judge({"runs": [bad["runs"][0], numbers(2.5, 2.5, 2.5, 2.1, 2.0)["runs"][0]]}) == NOT_JUDGED


def test_word_vectors_rule() -> None:
    groups = word_vectors.known_groups()
    owner = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    together = (owner[:, None] == owner).float()
    assert word_vectors.same_group_share(together) == 1.0
    assert word_vectors.same_group_share(-together) == 0.0
    assert word_vectors.judge({"alike_before": [0.5], "alike_after": [0.8]}) == HOLDS
    assert word_vectors.judge({"alike_before": [0.7, 0.7], "alike_after": [0.8, 0.8]}) == FAILS
    assert word_vectors.judge({"alike_before": [0.5, 0.7], "alike_after": [0.7, 0.8]}) == NOT_JUDGED
    assert word_vectors.judge({"alike_before": [0.5, 0.5], "alike_after": [0.8, 0.6]}) == PARTLY


def test_contextual_rule() -> None:
    sense = contextual.load_corpus().sense.float()
    parted = torch.stack([sense, 1 - sense], 1)
    assert contextual.compare_senses(parted) == {"within": 1.0, "across": 0.0, "told": 1.0}
    table, last = {"within": 1.0, "across": 1.0, "told": 0.5}, {"within": 0.8, "across": 0.3, "told": 0.9}

    def verdict(*layers: Any, before: float = 0.6) -> str:
        return contextual.judge({"layers": layers, "untrained": [{**last, "told": before}] * len(layers)})

    assert verdict([table, last]) == HOLDS
    assert verdict([table, last], before=0.9) == PARTLY  # an untrained encoder is as good
    assert verdict([table, {**last, "across": 0.9}]) == PARTLY
    assert verdict([table, {**last, "within": 0.95}]) == FAILS  # hardly different
    assert verdict([last, last]) == FAILS  # an embedding cannot depend on the context
    assert verdict([table, last], [table, table]) == PARTLY


def test_contextual_test_sentences_are_not_in_training() -> None:
    known = contextual.load_corpus()
    trained = {tuple(row) for row in known.train.tolist()}
    width = known.train.shape[1]
    assert not any(tuple(row[:width] + [0] * (width - len(row))) in trained for row in known.test.tolist())
    assert len(known.sense) == 2 * contextual.TEST_PER_SENSE == 2 * int(known.sense.sum())


def test_kotatsu_rule() -> None:
    def numbers(*said: str) -> dict[str, Any]:
        return {"runs": [{"translation": text} for text in said]}

    assert kotatsu.judge(numbers(kotatsu.EXPECTED, kotatsu.EXPECTED)) == HOLDS
    assert kotatsu.judge(numbers(kotatsu.EXPECTED, "I eat a mandarin.")) == PARTLY
    assert kotatsu.judge(numbers("I eat a mandarin.")) == FAILS
    run = {"units": ["こたつ", "みかん"], "steps": [{"word": "mandarin", "look": [0.3, 0.7]}]}
    assert kotatsu.alignment_cells(run) == {"みかん – mandarin": [0.7, 1]}


def test_layers_rule() -> None:
    assert layers.depth([0.9, 0.8, 0.7]) == 0.0
    assert layers.depth([0.2, 0.6, 0.6, 1.0]) == pytest.approx(2.0)
    fading, early, late = [1.0, 0.9, 0.8, 0.7], [0.2, 0.9, 0.9, 0.9], [0.2, 0.2, 0.2, 0.9]
    kept = [1.0, 0.9, 0.9, 0.9]  # less than the embedding, but no loss between the blocks
    assert layers.judge({"runs": [{"surface": fading, "grammar": early, "meaning": late}]}) == HOLDS
    assert layers.judge({"runs": [{"surface": fading, "grammar": late, "meaning": early}]}) == PARTLY
    assert layers.judge({"runs": [{"surface": kept, "grammar": early, "meaning": late}]}) == PARTLY
    assert layers.judge({"runs": [{"surface": kept, "grammar": late, "meaning": early}]}) == FAILS


def test_probe_finds_only_encoded_information() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = torch.randn(400, 1, 13, generator=generator)
    there = [(n, 0, int(layer[n, 0, 5] > 0)) for n in range(400)]
    nowhere = [(n, 0, int(torch.randint(2, (1,), generator=generator))) for n in range(400)]
    assert layers.probe(layer, there, 400) > 0.9
    assert layers.probe(layer, nowhere, 400) < 0.7


def test_leak_rule() -> None:
    good, cheat = {"own": 2.0, "honest": 2.0}, {"own": 0.1, "honest": 5.0}
    assert leak.judge({"runs": {"with": [good], "without": [cheat]}}) == HOLDS
    for key, value in (("own", 1.5), ("honest", 1.9)):
        against = {**cheat, key: value}
        assert leak.judge({"runs": {"with": [good] * 2, "without": [against] * 2}}) == FAILS
        assert leak.judge({"runs": {"with": [good], "without": [against]}}) == NOT_JUDGED
    assert leak.judge({"runs": {"with": [good, good], "without": [cheat, good]}}) == PARTLY


def test_self_cross_detects_mixed_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_cross.judge({"comparisons": [self_cross.compare_uses(0)]}) == HOLDS
    forward = Attention.forward

    def mixed(self: Attention, x: torch.Tensor, source: Any = None, **rest: Any) -> torch.Tensor:
        return forward(self, x if source is None else x + source.mean(1, keepdim=True), source, **rest)

    monkeypatch.setattr(Attention, "forward", mixed)
    assert self_cross.judge({"comparisons": [self_cross.compare_uses(0)]}) == FAILS


def test_pretrain_shift_detects_unshifted_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = translator.train_translator(0, BRIEF.steps(translator.STEPS))
    assert pretrain_shift.compare_modes(taught)["fed_is_output_shifted"]

    def unmoved(self: translator.Translator, chosen: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.data.target.encode(corpus.split_english(one.target)) for one in chosen]
        return corpus.pad_rows(rows, after=corpus.END), corpus.pad_rows(rows, after=corpus.END, filler=corpus.IGNORE)

    monkeypatch.setattr(translator.Translator, "encode_targets", unmoved)
    assert not pretrain_shift.compare_modes(taught)["fed_is_output_shifted"]
    exact = {"fed_is_output_shifted": True, "one_pass_repeats": 5, "sentences": 5}
    assert pretrain_shift.judge({"runs": [exact]}) == HOLDS
    assert pretrain_shift.judge({"runs": [{**exact, "one_pass_repeats": 4}]}) == FAILS


# Shared code.


def test_split_and_join_english() -> None:
    for one in corpus.load_sentences().train[:500]:
        assert corpus.join_words(corpus.split_english(one.target)) == one.target
    assert corpus.split_english("Mr. Tanaka's dog isn't here.") == ["Mr.", "Tanaka's", "dog", "isn't", "here", "."]


def test_example_is_not_in_training() -> None:
    data = corpus.load_sentences()
    assert data.test[0].units == corpus.EXAMPLE
    assert all(one.combination != data.test[0].combination for one in data.train)
    learned, tested = ({one.combination for one in part} for part in (data.train, data.test))
    assert not learned & tested


def test_unigram_loss_is_the_entropy() -> None:
    output = torch.tensor([[5, 6, corpus.IGNORE], [5, 6, corpus.IGNORE]])
    assert toy_models.unigram_loss(toy_models.Lines(output, output)) == pytest.approx(math.log(2))


def test_format_seeds() -> None:
    assert toy_models.format_seeds([1.0, 2.0, 3.0]) == "2.00 (1.00–3.00)"


def test_translators_are_cached_per_seed() -> None:
    budget = Brief(scale=0.02, seeds=2)
    first, second = translator.get_translators(budget), translator.get_translators(budget)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert first[0].model is not first[1].model
