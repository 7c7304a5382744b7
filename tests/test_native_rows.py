"""The result of a row does not depend on the number of rows, in any bit."""

from __future__ import annotations

import pytest
import torch
from gguf_weights import SIZES, with_blocks

from chumoku.decoding.engines.native.call import unsupported
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.precision import to_precision

ROWS = 19  # more than the rows of one kernel call, of two, and of a tile


@pytest.mark.parametrize("precision", ["float32", "bf16", "int8", "int4", "gguf"])
def test_number_of_rows_changes_no_bit(precision: str) -> None:
    sizes = SIZES if precision == "gguf" else {"width": 96, "heads": 6}
    model = build(ModelConfig(kind="decoder", vocabulary=307, layers=3, context=61, **sizes), seed=7).eval()
    model = with_blocks(model) if precision == "gguf" else to_precision(model, precision)
    if unsupported(model):
        pytest.skip("There is no native library here.")
    prompts = [[3 + row, 7, 11 * row + 1] for row in range(ROWS)]
    engine, step = NativeEngine(model, rows=ROWS, capacity=61), torch.full((ROWS,), 9)
    alone = []
    for prompt in prompts:
        engine.select_rows([])
        engine.add_rows(1)
        alone.append((engine.prefill([prompt])[0].clone(), engine.step(step[:1])[0].clone()))
    for count in range(1, ROWS + 1):
        engine.select_rows([])
        engine.add_rows(count)
        read = engine.prefill(prompts[:count]).clone()
        written = engine.step(step[:count])
        for row in range(count):
            assert torch.equal(read[row], alone[row][0]), (count, row)
            assert torch.equal(written[row], alone[row][1]), (count, row)
