"""The result of a row does not depend on the number of rows, in any bit."""

from __future__ import annotations

import shutil

import pytest
import torch
from engines import check_rows
from gguf_weights import SIZES, with_blocks

from chumoku.decoding.engines.native.build import why_not
from chumoku.decoding.engines.native.call import unsupported
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.precision import to_precision

ROWS = 19  # more than the rows of one kernel call, of two, and of a tile


@pytest.mark.skipif(shutil.which("c++") is None, reason="There is no C++ compiler here.")
def test_the_library_compiles() -> None:
    """Without the library all tests of the native engine are skipped, so a mistake in its code would not be noticed."""
    assert why_not() is None


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8", "int4", "gguf"])
def test_number_of_rows_changes_no_bit(precision: str) -> None:
    sizes = SIZES if precision == "gguf" else {"width": 96, "heads": 6}
    model = build(ModelConfig(kind="decoder", vocabulary=307, layers=3, context=61, **sizes), seed=7).eval()
    model = with_blocks(model) if precision == "gguf" else to_precision(model, precision)
    if unsupported(model):
        pytest.skip("There is no native library here.")
    check_rows(NativeEngine, model, range(1, ROWS + 1))


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(("precision", "placement"), [("float32", "pre"), ("int4", "pre"), ("int4", "sandwich")])
def test_number_of_threads_changes_no_bit(
    kind: str, precision: str, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads share the attention of a key head if there are not as many key heads for each.

    With one token, each thread normalizes the inputs for itself, unless norms change x.
    """
    choices = {"placement": placement, "attention_window": 67}
    sizes = {"vocabulary": 307, "layers": 3, "context": 211, "width": 576, "heads": 9, "kv_heads": 3}
    model = to_precision(build(ModelConfig(kind=kind, **choices, **sizes), seed=7).eval(), precision)
    if unsupported(model):
        pytest.skip("There is no native library here.")
    found = []
    for threads in (1, 2, 5, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        engine = NativeEngine(model, rows=2, capacity=199)
        engine.add_rows(2, None if kind == "decoder" else [list(range(5, 18)), [7, 11, 2]])
        prompts = [[(7 * place + row) % 307 for place in range(length)] for row, length in enumerate((97, 73))]
        logits = [engine.prefill(prompts), engine.extend(torch.tensor([[3, 5], [2, 13]])).flatten(0, 1)]
        logits += [engine.step(torch.tensor([token, 11])) for token in (17, 19)]
        engine.select_rows([1])
        found.append(torch.cat([*logits, *(engine.step(torch.tensor([token])) for token in (23, 29, 31))]))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize(
    ("precision", "choices"),
    [
        *(("float32", choices) for choices in ({}, {"position": "alibi"}, {"attention_window": 17})),
        *(("float32", {"position": "relative"}), ("bf16", {}), ("int8", {}), ("int4", {"width": 96})),
    ],
)
def test_a_prompt_equals_its_tokens_one_by_one(precision: str, choices: dict[str, object]) -> None:
    """Several tokens together have the same products and attention in every bit as one token alone."""
    sizes = {"vocabulary": 307, "layers": 3, "context": 211, "width": 88, "heads": 4, "kv_heads": 2}
    model = to_precision(build(ModelConfig(kind="decoder", **sizes | choices), seed=7).eval(), precision)
    if unsupported(model):
        pytest.skip("There is no native library here.")
    prompts = [[(7 * place + row) % 307 for place in range(length)] for row, length in enumerate((131, 73))]
    together, alone = (NativeEngine(model, rows=2, capacity=199) for _ in range(2))
    together.add_rows(2)
    logits = together.prefill(prompts)
    for row, prompt in enumerate(prompts):
        alone.add_rows(1)
        for token in prompt:
            last = alone.step(torch.tensor([token]))
        assert torch.equal(logits[row], last[0])
        alone.select_rows([])
