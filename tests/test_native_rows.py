"""The result of a row does not depend on the number of rows, in any bit."""

from __future__ import annotations

import pytest
from engines import check_rows
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
    check_rows(NativeEngine, model, range(1, ROWS + 1))
