"""Products of bf16 weights by AMX tiles, which are emulated (tests/amx_emulated.h): few processors have them."""

from __future__ import annotations

import ctypes
import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from test_native import product

from chumoku.decoding.engines.native import build as build_module
from chumoku.decoding.engines.native import call, variants
from chumoku.nn.quantized import QuantizedLinear

BASE = next(variant for variant in variants.VARIANTS["x86_64"] if variant.name == "avx512-vnni")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BASE not in variants.find_suitable(), reason="The emulator needs AVX-512 with VNNI."),
    pytest.mark.skipif(build_module.library() is None, reason=build_module.why_not() or ""),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library of processors with AMX. It is not optimized, because it is compiled faster than it would run."""
    target = tmp_path_factory.mktemp("amx") / "emulated.so"
    flags = (*build_module.FLAGS, "-O0", *BASE.flags, "-include", Path(__file__).parent / "amx_emulated.h")
    subprocess.run(["c++", *flags, build_module.SOURCE, "-o", target], check=True)
    return ctypes.CDLL(str(target))


@pytest.mark.parametrize(("outputs", "inputs"), [(37, 23), (131, 257), (16, 32)])
def test_bf16_products_of_tiles_are_the_formula(
    outputs: int, inputs: int, emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tile of rows, several, and a part of one; and no bit of a row depends on how many are computed together."""
    monkeypatch.setattr(build_module, "library", lambda: emulated)
    monkeypatch.setattr(call, "_pool", None)
    monkeypatch.setattr(call, "_weights", weakref.WeakKeyDictionary())
    random = torch.Generator().manual_seed(outputs)
    weight, bias = (torch.randn(shape, generator=random) for shape in ((outputs, inputs), (outputs,)))
    module = QuantizedLinear(weight, bias, "bf16")
    x = torch.randn(53, inputs, generator=random) * 3
    expected = x.double() @ module.float_weight().double().T + bias
    together = product(module, x)
    torch.testing.assert_close(together.double(), expected, atol=2e-6 * inputs**0.5, rtol=2e-6)
    for rows in (1, 2, 15, 16, 17, 47, 48):
        assert torch.equal(product(module, x[:rows]), together[:rows])
    for odd in (torch.inf, torch.nan):
        x[1, 3] = odd
        found = product(module, x)
        expected = odd * module.float_weight()[:, 3].sign()
        torch.testing.assert_close(found[1], expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found[2:], together[2:])
