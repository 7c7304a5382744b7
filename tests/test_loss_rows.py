"""The loss kernel that reads rows of logits once equals PyTorch's formulas; it runs in an emulator of a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from emulated_kernel import COMPILER, EmulatedKernel

from chumoku.data.batches import IGNORE
from chumoku.training import loss_rows

pytestmark = pytest.mark.skipif(COMPILER is None, reason="There is no C++ compiler here.")


class Logits:
    """A tensor on the CPU that says it is on a GPU."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.dtype, self.shape, self.data_ptr = tensor, tensor.dtype, tensor.shape, tensor.data_ptr


def replace_rows(
    logits: torch.Tensor, labels: torch.Tensor, vocabulary: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """The losses, on a GPU with 2 multiprocessors."""
    gpu = {"major": 9, "multi_processor_count": 2, "shared_memory_per_block_optin": 90_000}
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(**gpu, shared_memory_per_multiprocessor=100_000),
    )
    monkeypatch.setattr(loss_rows, "Kernel", EmulatedKernel)
    monkeypatch.setattr(loss_rows, "can_compile", lambda: True)
    monkeypatch.setattr(loss_rows, "WARPS", 4)
    monkeypatch.setattr(loss_rows, "LEAST", 2)
    monkeypatch.setattr(loss_rows, "open_kernel", loss_rows.open_kernel.__wrapped__)
    losses = torch.full((len(labels),), torch.nan)
    assert loss_rows.replace_rows(Logits(logits), labels, losses, vocabulary, smoothing)  # type: ignore[arg-type]
    return losses


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
    leaf = logits[:, :vocabulary].double().requires_grad_()
    wanted = F.cross_entropy(leaf, labels, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
    wanted.sum().backward()  # type: ignore[no-untyped-call]
    found = replace_rows(logits, labels, vocabulary, smoothing, monkeypatch)
    torch.testing.assert_close(found.double(), wanted.detach(), atol=2e-5, rtol=2e-5)
    assert leaf.grad is not None
    rounding = 2**-8 if dtype == torch.bfloat16 else 2**-11
    torch.testing.assert_close(logits[:, :vocabulary].double(), leaf.grad, atol=1e-7, rtol=1.01 * rounding)
    assert not logits[:, vocabulary:].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_loss_of_what_is_not_finite(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    logits = torch.randn(2, 128).to(torch.bfloat16)
    logits[1, 71] = value
    losses = replace_rows(logits, torch.tensor([3, 5]), 113, 0.0, monkeypatch)
    assert losses[0].isfinite()
    assert not losses[1].isfinite()
    assert not logits[1, :113].isfinite().all()
