"""diff: a model equals itself, transplants give the other model, and a planted change is found where it is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer

import chumoku
from chumoku.model_diff.diff import diff
from chumoku.model_diff.transplant import REST, assemble, block_paths
from chumoku.models.config import ModelConfig
from chumoku.pipeline import Pipeline

LINE = "the best of times was an age of wisdom in a spring of hope, going direct to heaven"
TEXTS = [LINE[start : start + 13] for start in range(0, 66, 7)]
PAIRS = [(text, text[::-1]) for text in TEXTS]
KINDS = {"decoder": TEXTS, "encoder": TEXTS, "encoder-decoder": PAIRS, "vector": PAIRS}


def make(kind: str, *, seed: int = 7, **changes: Any) -> Pipeline:
    """A small model; its weights are larger than a new model's, so that its output depends on its input."""
    tokenizer = byte_tokenizer()
    head = {"kind": "encoder", "head": "vector"} if kind == "vector" else {"kind": kind}
    sizes = {"width": 64, "heads": 4, "kv_heads": 2, "layers": 3, "context": 61, "vocabulary": tokenizer.size}
    model = chumoku.build(ModelConfig(**{**sizes, **head, **changes}), seed=seed).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.ndim > 1 else 1)
    return Pipeline(model, tokenizer, tokenizer)


def inputs(kind: str) -> Sequence[torch.Tensor]:
    ids = torch.arange(5, 5 + 2 * 11).view(2, 11)
    return (ids, ids[:, :7]) if kind == "encoder-decoder" else (ids,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_equals_itself(kind: str) -> None:
    pipeline = make(kind)
    found = diff(pipeline, Pipeline(copy.deepcopy(pipeline.model), pipeline.tokenizer, pipeline.tokenizer), KINDS[kind])
    assert found.better is None
    for measure in found.measures:
        assert (measure.interval.low, measure.interval.difference, measure.interval.high) == (0, 0, 0)
        assert set(measure.by_text) == {0.0}
    assert (found.changed, found.changed_count) == ([], 0)
    assert found.inside is not None
    assert {block.weights for block in found.inside.blocks} == {0.0}
    assert {block.stream for block in found.inside.blocks} == {0.0, None}
    assert {number for one in found.inside.heads for number in (*one.patterns, *one.weights)} == {0.0}
    effects = {bound for one in found.transplants for bound in (one.interval.low, one.interval.high)}
    assert effects == {0.0}
    assert found.decisive is None
    assert len(found.transplants) == 2 * (len(block_paths(pipeline.model)) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_all_parts_of_a_model_are_that_model(kind: str) -> None:
    a, b = make(kind).model, make(kind, seed=8).model
    parts = [*block_paths(a), REST]
    outputs = [
        (one.logits if one.logits is not None else one.vector)
        for one in (model(*inputs(kind)) for model in (a, b, assemble(b, a, parts), assemble(b, a, parts[:1])))
    ]
    assert torch.equal(outputs[2], outputs[0])
    assert not torch.equal(outputs[3], outputs[0])
    assert not torch.equal(outputs[3], outputs[1])
