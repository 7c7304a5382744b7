"""torch.export and torch.compile with dynamic batch size and length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cells import POSITIONS, WINDOW, Cell, model_of, tokens
from torch import Tensor, nn
from torch.export import Dim, export

from chumoku.models.model import Model
from chumoku.nn.cache import Cache

BATCH, TARGET, SOURCE = Dim("batch", max=61), Dim("target", max=23), Dim("source", max=23)
SIZES = ((1, 1, 1), (2, 11, 7), (5, 1, 3), (1, 17, 2), (3, 2, 19))  # batch, target, source


def call_arguments(kind: str, sizes: tuple[int, int, int], masked: bool) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    batch, target, source = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    ids = {"target": tokens(batch, target, 1), "source": tokens(batch, source, 2)}
    real = {name: torch.rand(table.shape, generator=generator) > 0.3 for name, table in ids.items()}
    if kind == "encoder-decoder":
        masks = {"source_mask": real["source"], "target_mask": real["target"]}
        return (ids["source"], ids["target"]), masks if masked else {}
    return (ids["target"],), {"mask": real["target"]} if masked else {}


def open_shapes(kind: str, masked: bool) -> dict[str, Any]:
    source, target = {0: BATCH, 1: SOURCE}, {0: BATCH, 1: TARGET}
    if kind == "encoder-decoder":
        masks = {"source_mask": source, "target_mask": target} if masked else {}
        return {"source": source, "target": target, **masks}
    return {"tokens": target, **({"mask": target} if masked else {})}


def answer(model: nn.Module, kind: str, sizes: tuple[int, int, int], masked: bool) -> Tensor:
    arguments, options = call_arguments(kind, sizes, masked)
    with torch.no_grad():
        output: Tensor = model(*arguments, **options).logits
    return output


def make_program(model: Model, masked: bool) -> torch.export.ExportedProgram:
    kind = model.config.kind
    arguments, options = call_arguments(kind, (3, 7, 5), masked)
    return export(model, arguments, options, dynamic_shapes=open_shapes(kind, masked), strict=False)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("cell", "masked"),
    [
        *((Cell("decoder", position, kv_heads=1), False) for position in POSITIONS),
        (Cell("decoder", "learned", "rms", "post", "swiglu"), True),
        (Cell("encoder", "sinusoidal", "batch"), False),
        (Cell("encoder", "relative"), True),
        (Cell("encoder", "alibi", window=WINDOW), True),
        (Cell("decoder", kv_heads=1, window=WINDOW), False),
        (Cell("encoder-decoder", "rotary", kv_heads=1), False),
        (Cell("encoder-decoder", "learned"), True),
    ],
    ids=str,
)
def test_exported_models_take_any_batch_and_length(cell: Cell, masked: bool) -> None:
    model = model_of(cell, layers=1)
    program = make_program(model, masked).module()
    for sizes in SIZES:
        torch.testing.assert_close(answer(program, cell.kind, sizes, masked), answer(model, cell.kind, sizes, masked))


def test_exported_decoder_uses_is_causal() -> None:
    program = make_program(model_of(Cell("decoder"), layers=1), masked=False)
    calls = [node for node in program.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert calls
    assert all(node.kwargs.get("is_causal") or True in node.args for node in calls)
    assert not [node for node in program.graph.nodes if "tril" in str(node.target)]


class Step(nn.Module):
    """One step with a cache, for torch.export: tensors → logits; the cache is changed in place."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, store: Tensor, lengths: Tensor) -> Tensor:
        cache = Cache(store, used=store.shape[4] - ids.shape[1], lengths=lengths)
        output: Tensor = self.model(ids, cache=cache).logits
        return output


@pytest.mark.sample(1)
@pytest.mark.parametrize("position", ["learned", "relative", "relative_bias", "alibi", "rotary"])
def test_cached_step_exports(position: str) -> None:
    """With lengths per row, no length is a constant of the program; batch and capacity are dynamic."""
    model = model_of(Cell("decoder", position, kv_heads=1), layers=1)
    capacity = Dim("capacity", min=2, max=23)
    store = model.new_cache(3, 13).store
    shapes = {"ids": {0: BATCH}, "store": {2: BATCH, 4: capacity}, "lengths": {0: BATCH}}
    arguments = (tokens(3, 1), store, torch.tensor([0, 4, 7]))
    with torch.no_grad():
        program = export(Step(model), arguments, dynamic_shapes=shapes, strict=False).module()
        ids = tokens(2, 11, seed=5)
        store, logits = model.new_cache(2, 11).store, []
        for place in range(11):
            logits.append(program(ids[:, place : place + 1], store, torch.tensor([place, place])))
        torch.testing.assert_close(torch.cat(logits, 1), model(ids).logits)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_dynamic_shapes_do_not_recompile(kind: str) -> None:
    model = model_of(Cell(kind, "rotary", kv_heads=1), layers=1)
    graphs = 0

    def count(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=count)
    for sizes in ((3, 7, 5), (2, 11, 13), (5, 3, 2), (7, 17, 19)):
        torch.testing.assert_close(answer(compiled, kind, sizes, False), answer(model, kind, sizes, False))
    assert graphs == 1
