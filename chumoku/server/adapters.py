"""LoRA adapters that are served beside their model. Their files are untrusted and are checked before they are read."""

from __future__ import annotations

from pathlib import Path

from chumoku import lora
from chumoku.errors import DamagedError, UsageError
from chumoku.models.model import DecoderModel, Model
from chumoku.nn.lora import Adapter
from chumoku.weights.families import all_transformers_rows

LARGEST_RANK = 512


def open_adapter(model: Model, folder: Path | str) -> Adapter:
    """Read an adapter of this model into memory; raises an error if it cannot share a batch with other adapters."""
    if not isinstance(model, DecoderModel):
        raise UsageError(f"This model is of kind '{model.config.kind}'; only a decoder can be served with adapters.")
    config = lora.read_adapter_config(folder)
    if config.dora:
        raise UsageError(
            f"{folder} is a DoRA adapter, which cannot share a batch with other adapters. Serve it merged into its "
            f"model, as a model of its own: chumoku serve {folder}."
        )
    rank = max(config.rank, *config.ranks.values(), 0)
    if rank > LARGEST_RANK:
        raise UsageError(f"{folder} has the rank {rank:,}; the server accepts at most {LARGEST_RANK}.")
    tables = all_transformers_rows(model.config)
    rows = tables[0] if tables else None
    adapter = lora.read_adapter(model, folder, config, rows=rows, other_rows=tables[1:])
    for address, matrix in adapter.items():
        if not all(tensor.isfinite().all() for tensor in matrix.parameters()):
            raise DamagedError(f"{folder} has a number that is not finite (NaN or infinity), for {address}.")
    return adapter
