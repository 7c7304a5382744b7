"""A model with sums that wait for their norm is the model; the kernel for both is replaced by its formula here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from chumoku.models import stack
from chumoku.models.build import build
from chumoku.models.model import DecoderModel
from chumoku.models.presets import preset
from chumoku.models.stack import Stack
from chumoku.nn.attention import Attention
from chumoku.nn.block import Block
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.norms import BatchNorm, LayerNorm, RMSNorm, layer_norm, rms_norm
from chumoku.nn.residual import PendingSum

WIDTH = 12


class Call(NamedTuple):
    """What the kernel gets."""

    bias: Tensor | None
    seed: Tensor
    dropped: int


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Compute the kernel's formula, without dropout, and collect its calls."""
    found: list[Call] = []

    def add_norm_rows(
        x: Tensor, f: Tensor, bias: Tensor | None, gamma: Tensor, beta: Tensor | None, *options: Any
    ) -> tuple[Tensor, Tensor]:
        seed, dropped, epsilon, centered = options
        found.append(Call(bias, seed, dropped))
        total = x + f if bias is None else x + f + bias
        return total, layer_norm(total, gamma, beta, epsilon) if centered else rms_norm(total, gamma, epsilon)

    monkeypatch.setitem(sys.modules, "chumoku.nn.dropout_kernel", SimpleNamespace(STEPS=1 << 16))
    monkeypatch.setitem(sys.modules, "chumoku.nn.norm_kernel", SimpleNamespace(add_norm_rows=add_norm_rows))
    return found


def build_decoder(**changes: Any) -> DecoderModel:
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": 2, "feedforward_width": 29, "layers": 3, "context": 31}
    model = build(preset("gpt2", vocabulary=97, **sizes, **changes)).eval()
    assert isinstance(model, DecoderModel)
    with torch.no_grad():
        for parameter in model.parameters():  # biases are zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def model() -> DecoderModel:
    return build_decoder()


def assert_equal_with_deferred_sums(
    model: DecoderModel, reference: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = torch.randint(97, (2, 11))
    plain = reference(tokens).logits.detach()
    monkeypatch.setattr(Stack, "_defer_sums", lambda self, x: PendingSum(x))
    torch.testing.assert_close(model(tokens).logits.detach(), plain, atol=1e-5, rtol=1e-4)


def test_all_biases_are_added_by_the_kernel(
    model: DecoderModel, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_equal_with_deferred_sums(model, model, monkeypatch)
    assert len(calls) == 6
    assert all(call.bias is not None for call in calls)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_that_of_the_block(
    training: bool, model: DecoderModel, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in model.decoder.blocks:
        assert isinstance(block, Block)
        block.dropout = 0.25
    monkeypatch.setattr(Stack, "_defer_sums", lambda self, x: PendingSum(x))
    model.train(training)(torch.randint(97, (2, 11)))
    assert [call.dropped for call in calls] == 6 * [(1 << 14) * training]
    assert len({int(call.seed) for call in calls}) == 6


@pytest.mark.parametrize(
    ("changes", "deferred"),
    [
        *(({}, True), ({"norm": "rms"}, True), ({"parallel": True}, False)),
        *(({"placement": placement}, False) for placement in ("post", "output", "sandwich")),
    ],
)
def test_which_models_defer_sums(
    changes: dict[str, Any], deferred: bool, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in compiled training on a GPU, if each sum is followed by a norm of it."""
    model = build_decoder(**changes)
    assert_compiled_is_equal(model, calls, 6 * deferred, monkeypatch)


def test_a_model_without_its_last_norm_does_not_defer_sums(
    model: DecoderModel, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    model.decoder.norm = None
    assert_compiled_is_equal(model, calls, 0, monkeypatch)


def assert_compiled_is_equal(
    model: DecoderModel, calls: list[Call], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients the kernel is called so many times, without gradients never."""
    tokens = torch.randint(97, (2, 11))
    plain = model(tokens).logits
    monkeypatch.setattr(stack, "has_kernels", lambda x: True)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(tokens).logits, plain, atol=1e-5, rtol=1e-4)
    assert len(calls) == expected
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens).logits, plain, atol=1e-5, rtol=1e-4)
    assert len(calls) == expected


class ScaledNorm(LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "make",
    [nn.Identity, lambda: RMSNorm(WIDTH, unit_offset=True), lambda: BatchNorm(WIDTH), lambda: ScaledNorm(WIDTH)],
)
def test_norms_without_a_kernel(make: Any, model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    block = model.decoder.blocks[1]
    assert isinstance(block, Block)
    block.feedforward_norm = make()
    assert_equal_with_deferred_sums(model, model, monkeypatch)


class ScaledLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class ScaledFeedForward(FeedForward):
    def forward(self, x: Tensor, *, add_bias: bool = True) -> Tensor:
        return 2 * super().forward(x, add_bias=add_bias)


class ScaledAttention(Attention):
    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return 2 * super().forward(x, *arguments, **options)


def test_changed_sublayers_add_their_own_bias(
    model: DecoderModel, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = model.decoder.blocks
    assert isinstance(first, Block)
    assert isinstance(second, Block)
    assert isinstance(third, Block)
    assert isinstance(first.feedforward, FeedForward)
    first.feedforward.down.__class__ = ScaledLinear
    second.feedforward.__class__ = ScaledFeedForward
    third.attention.__class__ = ScaledAttention
    assert_equal_with_deferred_sums(model, model, monkeypatch)
    assert [call.bias is None for call in calls] == [False, True, False, True, True, False]


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_sharded_blocks_add_their_own_biases(
    model: DecoderModel, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a sharded block do not exist any more when the next block runs."""
    sharded = build(model.config).eval()
    assert isinstance(sharded, DecoderModel)
    sharded.load_state_dict(model.state_dict())
    mesh = dist.init_device_mesh("cpu", (1,))
    for block in sharded.decoder.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    assert_equal_with_deferred_sums(sharded, model, monkeypatch)
    assert [call.bias for call in calls] == 6 * [None]
