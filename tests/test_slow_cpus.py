"""CPUs without 16-bit instructions: no slow kernel, and no minutes of measuring."""

from __future__ import annotations

import time

import pytest
import torch

from chumoku.training import log
from chumoku.training.precision import fast_kernels


@pytest.mark.parametrize(("precision", "supported", "enabled"), [("fp16", False, False), ("fp16", True, True)])
def test_fp16_avoids_the_reference_kernel(
    precision: str, supported: bool, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: supported)
    with fast_kernels(precision):
        assert torch._C._get_mkldnn_enabled() is enabled
    assert torch._C._get_mkldnn_enabled()


def test_measuring_stops_at_the_first_slow_product(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))  # every product takes a second
    assert log.measure_matmul_flops(torch.device("cpu"), torch.float32) == 2 * 128**3
    assert next(times) == 2


def test_a_slow_first_product_does_not_stop_measuring_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads libraries. A device without memory stands for the GPU; only a CPU's slow product ends measuring."""
    times = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    assert log.measure_matmul_flops(torch.device("meta"), torch.float32) == 2 * 1024**3
