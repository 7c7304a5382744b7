"""The tensor at an address as a table with token names."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from chumoku.errors import AddressError, did_you_mean
from chumoku.models.model import Model
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.tap import addresses
from chumoku.probe.forward_pass import check_head, run_and_record
from chumoku.probe.snapshot import LookInput


class TensorTable(NamedTuple):
    shape: list[int]  # of the whole tensor, without the batch
    table: Tensor  # a matrix, on the CPU
    rows: list[str] | None  # token names
    columns: list[str] | None  # token names, if the columns are tokens too


def read_table(model: Model, inputs: LookInput, address: str, *, head: int = 0) -> TensorTable:
    """The tensor at an address in a forward pass; of tensors with a matrix for each head, the matrix of one head."""
    model = unwrap_compiled(model)
    check_address(model, address)
    _, tape = run_and_record(model, inputs.tokens, address, source=inputs.source)
    if address not in tape:
        raise AddressError(f"The forward pass of this prompt did not reach {address}.")
    values = tape[address][0].float().cpu()
    labels = (None, None) if values.ndim == 1 else _axis_labels(address, inputs)  # one vector for the whole text
    return TensorTable(list(values.shape), _to_matrix(model, values, address, head), *labels)


def check_address(model: Model, address: str) -> None:
    """Raise AddressError if the model has no such address."""
    known = addresses(model)
    if address not in known:
        hint = did_you_mean(address, known, f"It has {len(known)} addresses.", cutoff=0.3)
        raise AddressError(f"This model has no address {address}. {hint}")


def _to_matrix(model: Model, values: Tensor, address: str, head: int) -> Tensor:
    """A tensor of one to three axes as a matrix; with three axes, the matrix of the head."""
    if values.ndim == 1:
        return values[None]
    if values.ndim == 2:
        return values
    if "attention." not in address:  # mixture of experts: hidden values of each chosen expert
        return values.flatten(1)
    check_head(model.config, head)
    return values[head * len(values) // model.config.heads]  # several query heads may share a key head


def _axis_labels(address: str, inputs: LookInput) -> tuple[list[str], list[str] | None]:
    """Labels of the rows, and of the columns if they are tokens too."""
    own, source = inputs.names, inputs.source_names
    queries = source if source and address.startswith("encoder") else own
    keys = source if "cross_attention" in address else queries
    part = address.rpartition(".")[2]
    rows = keys if "attention." in address and part in ("keys", "values") else queries
    return rows, keys if part in ("scores", "masked_scores", "weights") and "attention." in address else None
