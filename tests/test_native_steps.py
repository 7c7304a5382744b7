"""What the library computes around the layers: embeddings before them, the most likely token after them."""

from __future__ import annotations

import math

import pytest
import torch

from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.native.call import unsupported
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.native.pack import embedding_table
from chumoku.errors import LengthError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("numbers", "token"),
    [
        ({}, 0),
        ({5: 2.0, 97: 3.0, 301: 3.0}, 97),
        ({306: 1.0}, 306),
        ({0: -math.inf, 1: -1.0}, 2),
        ({5: 2.0, 305: math.nan}, -1),
        ({2: math.nan, 5: 2.0}, -1),
        ({7: math.inf}, -1),
        (dict.fromkeys(range(307), -math.inf), -1),
        (dict.fromkeys(range(306), -math.inf), 306),
    ],
)
def test_the_most_likely_token_is_the_first_of_the_largest_if_all_are_numbers(
    numbers: dict[int, float], token: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits are the biases, because the output matrix is zero."""
    sizes = {"vocabulary": 307, "layers": 2, "width": 44, "heads": 2, "tie_output": False, "output_bias": True}
    model = build(ModelConfig(kind="decoder", context=13, **sizes), seed=7).eval()
    model.head.weight.data.zero_()
    model.head.bias.data.zero_()
    for place, number in numbers.items():
        model.head.bias.data[place] = number
    if unsupported(model):
        pytest.skip("There is no native library here.")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    engine = NativeEngine(model, rows=3, capacity=11)
    engine.add_rows(3)
    engine.step(torch.tensor([5, 7, 11]))
    assert engine.most_likely.tolist() == [token] * 3


def test_capped_logits_have_no_most_likely_token() -> None:
    """Different logits may be equal after the cap."""
    for choices in ({"logit_cap": 30.0}, {"scale_logits": True}):
        model = build(ModelConfig(kind="decoder", vocabulary=307, width=44, heads=2, **choices), seed=7).eval()
        if unsupported(model):
            pytest.skip("There is no native library here.")
        engine = NativeEngine(model, rows=1, capacity=11)
        engine.add_rows(1)
        engine.step(torch.tensor([5]))
        assert engine.most_likely is None


def test_embeddings_are_read_by_the_library_only_if_they_are_rows_of_the_table() -> None:
    sizes = {"vocabulary": 307, "layers": 2, "width": 44, "heads": 2, "context": 13}
    for choices in ({}, {"scale_embedding": True}, {"position": "learned"}, {"embedding_norm": True}):
        model = build(ModelConfig(kind="decoder", **sizes, **choices), seed=7).eval()
        if unsupported(model):
            pytest.skip("There is no native library here.")
        assert (embedding_table(model.decoder) is None) == bool(choices)
        engines = [NativeEngine(model, rows=1, capacity=11), TorchEngine(model, rows=1, capacity=11)]
        for engine in engines:
            engine.add_rows(1)
        torch.testing.assert_close(*(engine.prefill([[5, 7, 306]]) for engine in engines), atol=1e-4, rtol=1e-4)
        with pytest.raises(LengthError, match="There is no token 307: this table has 307, numbered 0 to 306"):
            engines[0].step(torch.tensor([307]))
