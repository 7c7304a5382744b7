"""Build a model from another library's tensors: first on the meta device, then tensor by tensor.

The quantized matrices of GGUF files may stay quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from chumoku.errors import UsageError
from chumoku.models.build import build, check_memory
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.weights.assign import assign_tensors
from chumoku.weights.bundle_weights import tensors_of
from chumoku.weights.families.table import Row, Source, check_tensors, import_tensors, select_rows

MAX_ROWS_PER_TENSOR = 100  # a table also has rows for optional biases and norms, but never this many


def build_from_source(
    config: ModelConfig,
    rows: Sequence[Row],
    source: Source,
    *,
    ignored: Mapping[str, str],
    device: torch.device | str = "cpu",
    dequantize: bool = True,
) -> Model:
    """Build the model that `config` describes, with the source's weights; `rows` maps our tensor names to theirs.

    ignored     patterns of the source's tensor names that may be skipped, with the reason
    dequantize  convert quantized matrices to floats
    """
    if len(rows) > MAX_ROWS_PER_TENSOR * len(source.shapes) + MAX_ROWS_PER_TENSOR:
        raise UsageError(
            f"{source.path} has only {len(source.shapes):,} tensors; its config needs many more. Is the file complete?"
        )
    model = build(config, device="meta")
    like = tensors_of(model)
    rows = select_rows(rows, like)
    check_tensors(rows, like, source, ignored)
    check_memory(config, bytes_each=2 if dequantize else 1, device=torch.device(device))
    assign_tensors(model, import_tensors(rows, like, source, dequantize=dequantize), device)
    return model.eval()
