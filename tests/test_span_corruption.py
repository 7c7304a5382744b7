"""Span corruption: the masks, sources and targets of T5's published rule, and training an encoder-decoder on text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import recipe_for
from rich.console import Console

import chumoku
from chumoku import text
from chumoku.data.batches import WindowBatches
from chumoku.data.corpus import Corpus
from chumoku.data.shards import prepare_text
from chumoku.data.span_corruption import (
    SpanBatches,
    count_spans,
    find_sentinels,
    noise_mask,
    random_segments,
    replace_spans,
    window_length,
)
from chumoku.errors import ConfigError, UsageError
from chumoku.training.recipe import read_recipe

pytestmark = pytest.mark.usefixtures("quick_runs")


def published_lengths(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """Lengths of inputs and targets, each with an end token: `random_spans_helper` of T5, in plain Python."""
    noise = round(tokens * density)
    spans = round(noise / mean_span)
    return tokens - noise + spans + 1, noise + spans + 1


def published_window(inputs: int, density: float, mean_span: float) -> int:
    tokens = inputs
    while published_lengths(tokens + 1, density, mean_span)[0] <= inputs:
        tokens += 1
    return tokens


def published_corruption(tokens: list[int], mask: list[bool], sentinels: list[int]) -> tuple[list[int], list[int]]:
    """Source and target, token by token: each run of hidden tokens becomes the next sentinel."""
    sides = []
    for hidden in (True, False):
        out: list[int] = []
        number = 0
        for place, token in enumerate(tokens):
            if mask[place] != hidden:
                out.append(token)
            elif place == 0 or mask[place - 1] != hidden:
                out.append(sentinels[number])
                number += 1
        sides.append(out)
    return sides[0], sides[1]


def test_lengths_are_those_of_t5() -> None:
    """512 input tokens come from windows of 568, with targets of 114: the figures in T5's code."""
    assert published_window(512, 0.15, 3.0) == window_length(512, 0.15, 3.0) == 568
    assert published_lengths(568, 0.15, 3.0) == (512, 114)
    for inputs in (29, 61, 127, 251, 1021):
        for density, mean_span in ((0.15, 3.0), (0.15, 10.0), (0.3, 3.0), (0.5, 2.0)):
            if round(inputs * density) <= mean_span:
                continue  # the published lengths count no span, but its mask has one
            tokens = window_length(inputs, density, mean_span)
            assert tokens == published_window(inputs, density, mean_span)
            noise, spans = count_spans(tokens, density, mean_span)
            assert (tokens - noise + spans + 1, noise + spans + 1) == published_lengths(tokens, density, mean_span)


@pytest.mark.parametrize(
    ("length", "density", "mean_span"), [(568, 0.15, 3.0), (61, 0.3, 2.0), (13, 0.15, 3.0), (2, 0.15, 3.0)]
)
def test_masks_follow_the_rule(length: int, density: float, mean_span: float) -> None:
    random = np.random.default_rng(1)
    noise, spans = count_spans(length, density, mean_span)
    for _ in range(31):
        mask = noise_mask(length, density, mean_span, random)
        assert (len(mask), int(mask.sum())) == (length, noise)
        runs = int((mask & ~np.r_[False, mask[:-1]]).sum())
        assert runs == spans
        assert not mask[0]
        assert mask[-1], "kept and hidden spans alternate, and a hidden one is last"


def test_every_division_is_equally_likely() -> None:
    random = np.random.default_rng(3)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        parts = tuple(random_segments(5, 3, random).tolist())
        counts[parts] = counts.get(parts, 0) + 1
    assert len(counts) == 6, "the ways to write 5 as an ordered sum of three numbers"
    assert all(sum(parts) == 5 and min(parts) > 0 for parts in counts)
    assert max(counts.values()) - min(counts.values()) < 200


def test_spans_are_replaced_as_published() -> None:
    random = np.random.default_rng(7)
    sentinels = list(range(1000, 1060))
    for length in (2, 13, 127, 251):
        tokens = random.integers(0, 97, length)
        mask = noise_mask(length, 0.3, 2.0, random)
        expected = published_corruption(tokens.tolist(), mask.tolist(), sentinels)
        found = tuple(replace_spans(tokens, hidden, np.array(sentinels)).tolist() for hidden in (mask, ~mask))
        assert found == expected


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> SpanBatches:
    folder = tmp_path_factory.mktemp("spans")
    (folder / "text.txt").write_text("It was the best of times, it was the worst of times. " * 29, "utf-8")
    tokenizer = text.train(["a"], kind="byte", sentinels=11)
    shards = prepare_text(Corpus([folder / "text.txt"]), tokenizer, folder / "shards")
    windows = WindowBatches(shards, length=window_length(41, 0.15, 3.0), rows=5, seed=3)
    sentinels = find_sentinels(tokenizer)
    return SpanBatches(windows, roles=tokenizer.roles, sentinels=sentinels, density=0.15, mean_span=3.0)


def test_source_and_target_together_are_the_window(batches: SpanBatches) -> None:
    tokenizer = text.train(["a"], kind="byte", sentinels=11)
    sentinels, end, begin = set(find_sentinels(tokenizer)), tokenizer.roles.end, tokenizer.roles.begin
    batch, windows = batches.batch(2, 1), batches.windows.batch(2, 1)["tokens"]
    assert batch["source"].shape == (5, 41)
    assert torch.equal(batch["target"][:, 1:], batch["labels"][:, :-1])
    for source, target, labels, window in zip(*(batch[key] for key in batch), windows, strict=True):
        assert target[0] == begin
        assert source[-1] == labels[-1] == end
        hidden: dict[int, list[int]] = {}
        for token in labels[:-1].tolist():
            if token in sentinels:
                hidden[token] = []
            else:
                hidden[list(hidden)[-1]].append(token)
        filled = [part for token in source[:-1].tolist() for part in hidden.get(token, [token])]
        assert filled == window.tolist()
    assert torch.equal(batches.batch(2, 1)["source"], batch["source"])
    assert not torch.equal(batches.batch(3, 1)["source"], batch["source"])


def test_too_few_sentinels_are_refused(batches: SpanBatches) -> None:
    options: dict[str, Any] = {"roles": text.train(["a"], kind="byte").roles, "density": 0.15, "mean_span": 3.0}
    with pytest.raises(UsageError, match=r"have 2 spans, but this tokenizer has 0 sentinels"):
        SpanBatches(batches.windows, sentinels=[], **options)
    with pytest.raises(UsageError, match="too few for span corruption"):
        window_length(2, 0.15, 3.0)


def test_an_encoder_decoder_is_trained_on_text(corpora: Path, tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    tables = recipe_for("spans", corpora, tmp_path, train={"steps": 11}, model={"share_embeddings": True})
    trained = chumoku.train(tables, console=quiet)
    pipeline = chumoku.load(trained.last)
    assert len(find_sentinels(pipeline.tokenizer)) == 100
    assert pipeline.tokenizer.encode("<extra_id_0>") != find_sentinels(pipeline.tokenizer)[:1], "typed, it is text"
    tables["tokenizer"] = {"kind": "byte", "target_kind": "byte"}
    tables["data"] |= {"separate_documents": True}
    tables["train"] |= {"packing": True}
    with pytest.raises(ConfigError) as refused:
        read_recipe(tables)
    assert {problem.key for problem in refused.value.problems} == {
        "tokenizer.target_kind", "data.separate_documents", "train.packing",
    }  # fmt: skip
