"""The loss kernel that reads rows of logits once equals PyTorch's formulas; it runs in an emulator of a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulated_kernel import COMPILER, EmulatedKernel

from chumoku.data.batches import IGNORE
from chumoku.training import loss_kernel_cuda

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="There is no C++ compiler here.")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


class Logits:
    """A tensor on the CPU that says it is on a GPU."""

    device = torch.device("cuda")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.dtype, self.shape, self.data_ptr = tensor, tensor.dtype, tensor.shape, tensor.data_ptr


GPU = {"major": 9, "multi_processor_count": 2}
GPU |= {"shared_memory_per_block_optin": 90_000, "shared_memory_per_multiprocessor": 100_000}


def pretend_a_gpu(monkeypatch: pytest.MonkeyPatch, properties: dict[str, int], *, compiles: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(loss_kernel_cuda, "can_compile", lambda: compiles)
    monkeypatch.setattr(loss_kernel_cuda, "open_kernel", loss_kernel_cuda.open_kernel.__wrapped__)


def replace_logits(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """The losses, on a GPU with 2 multiprocessors."""
    pretend_a_gpu(monkeypatch, GPU)
    monkeypatch.setattr(loss_kernel_cuda, "Kernel", EmulatedKernel)
    monkeypatch.setattr(loss_kernel_cuda, "WARPS", 4)
    monkeypatch.setattr(loss_kernel_cuda, "MIN_LOGITS", 2)
    losses = torch.full((len(labels),), torch.nan)
    assert loss_kernel_cuda.replace_logits(Logits(logits), labels.int(), losses, vocabulary, smoothing)  # type: ignore[arg-type]
    return losses


def assert_losses_and_gradients(
    losses: torch.Tensor, found: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> None:
    """Losses, and what has replaced the logits [N, V], equal PyTorch's in float64, up to the rounding of the result."""
    leaf = logits.double().requires_grad_()
    wanted = F.cross_entropy(leaf, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
    wanted.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(losses.double(), wanted.detach(), atol=2e-5, rtol=2e-5)
    assert leaf.grad is not None
    rounding = 2**-8 if found.dtype == torch.bfloat16 else 2**-11
    torch.testing.assert_close(found[:, : logits.shape[1]].double(), leaf.grad, atol=1e-7, rtol=1.02 * rounding)
    assert not found[:, logits.shape[1] :].any()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize(
    ("rows", "vocabulary"),
    [(11, 4099), (3, 2), (7, 33_013)],  # several rows for each of 4 blocks; fewer rows than blocks; 2 large blocks
)
def test_losses_and_gradients(
    rows: int, vocabulary: int, smoothing: float, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    torch.manual_seed(0)
    padded = vocabulary + -vocabulary % 64
    logits = (5 * torch.randn(rows, padded)).to(dtype)
    logits[1, vocabulary // 2] = 60.0  # far above the others
    labels = torch.randint(vocabulary, (rows,))
    labels[1], labels[2] = vocabulary - 1, IGNORE
    given = logits[:, :vocabulary].clone()
    losses = replace_logits(logits, labels, vocabulary, smoothing, monkeypatch)
    assert_losses_and_gradients(losses, logits, given, labels, smoothing)


@needs_compiler
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_of_what_is_not_finite(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    logits = torch.randn(2, 128).to(torch.bfloat16)
    logits[1, 71] = value
    losses = replace_logits(logits, torch.tensor([3, 5]), 113, 0.0, monkeypatch)
    assert losses[0].isfinite()
    assert not losses[1].isfinite()
    assert not logits[1, :113].isfinite().all()


@pytest.mark.parametrize(
    ("properties", "change"),
    [
        (GPU, {"dtype": torch.float32}),
        (GPU, {"vocabulary": 29_999}),
        (GPU, {"padded": 50_048}),  # a row needs too much shared memory
        (GPU | {"major": 8}, {}),
        ({"major": 9, "multi_processor_count": 2}, {}),  # as in PyTorch 2.6
        (GPU, {"compiles": False}),
    ],
)
def test_logits_without_a_kernel_are_left_alone(
    properties: dict[str, int], change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_a_gpu(monkeypatch, properties, compiles=change.get("compiles", True))
    monkeypatch.setattr(loss_kernel_cuda, "Kernel", SimpleNamespace)
    values = {"dtype": torch.bfloat16, "vocabulary": 30_011, "padded": 30_016, **change}
    logits = Logits(torch.ones(3, values["padded"], dtype=values["dtype"]))
    asked = (logits, torch.zeros(3).long(), torch.zeros(3), values["vocabulary"], 0.0)
    assert not loss_kernel_cuda.replace_logits(*asked)  # type: ignore[arg-type]
    assert (logits.tensor == 1).all()


@pytest.mark.skipif(not HOPPER, reason="This kernel needs a GPU of Hopper or later; the emulator stands for one.")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.13])
@pytest.mark.parametrize("vocabulary", [30_011, 70_001])  # two blocks on each multiprocessor, and one
def test_the_kernel_on_a_gpu_and_in_a_graph(vocabulary: int, smoothing: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, padded = 997, vocabulary + -vocabulary % 64
    given = (5 * torch.randn(rows, padded, device="cuda")).to(dtype)
    labels, losses = torch.randint(vocabulary, (rows,), device="cuda"), torch.empty(rows, device="cuda")
    labels[3] = IGNORE
    logits = given.clone()
    assert loss_kernel_cuda.replace_logits(logits, labels, losses, vocabulary, smoothing)
    assert_losses_and_gradients(losses, logits, given[:, :vocabulary], labels, smoothing)
    graph, again = torch.cuda.CUDAGraph(), torch.empty_like(losses)
    with torch.cuda.graph(graph):
        loss_kernel_cuda.replace_logits(logits, labels, again, vocabulary, smoothing)
    logits.copy_(given)
    graph.replay()
    assert torch.equal(again, losses)
