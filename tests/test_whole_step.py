"""The kernel that computes a whole step equals the model; it runs in an emulator of a GPU with 5 or 9 multiprocessors.

Its sizes are multiples of what a matrix instruction multiplies, so they are no primes.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import chumoku
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.gpu import whole_step
from chumoku.decoding.engines.gpu.tables import Tables
from chumoku.decoding.engines.gpu.weights import read_layers, read_logits, read_norm
from chumoku.decoding.engines.gpu.whole_step import GpuSizes, WholeStep
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel
from chumoku.models.precision import to_precision

HERE = Path(__file__).parent
VOCABULARY, CAPACITY = 211, 149
LONG_PAST = 139  # more keys than the block reads at once
LLAMA = {"norm": "rms", "feedforward": "swiglu", "bias": False, "pairing": "half", "kv_heads": 1}
CELLS = {
    "llama": (LLAMA, "int4", 5),
    "parts": ({**LLAMA, "heads": 4, "kv_heads": 2, "head_width": 64}, "int8", 9),
    "gpt2": ({"position": "learned", "feedforward": "gelu_tanh", "output_bias": True}, "bf16", 5),
    "tied": ({"feedforward": "relu", "tie_output": True}, "int4", 5),
    "interleaved": ({"feedforward": "geglu", "attention_scale": 0.2}, "int8", 5),
    "float16": ({**LLAMA, "feedforward": "relu"}, "float16", 5),
}
TOLERANCE = {"bf16": 0.02, "int8": 0.02, "int4": 0.02, "float16": 0.003}  # activations are rounded to 16 bits


class EmulatedKernel:
    """Stands for `cuda.Kernel`."""

    folder: Path

    def __init__(self, sources: Sequence[Path], name: str, constants: Mapping[str, int], *, shared_bytes: int) -> None:
        files = [HERE / "cuda_emulator.h", *sources[1:], HERE / "cuda_emulator_run.h"]
        source, library = self.folder / "step.cpp", self.folder / "step.so"
        source.write_text("".join(f'#include "{file}"\n' for file in files))
        defined = [f"-D{key}={value}" for key, value in constants.items()]
        subprocess.run(
            ["c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", *defined, "-o", library, source], check=True
        )
        self._run = ctypes.CDLL(str(library)).emulate

    def launch(self, blocks: int, threads: int, argument: ctypes.Structure) -> None:
        self._run(ctypes.byref(argument))


def build(changes: Mapping[str, object], precision: str) -> DecoderModel:
    torch.manual_seed(3)
    sizes = {"vocabulary": VOCABULARY, "width": 256, "layers": 2, "heads": 2, "head_width": 128, "context": CAPACITY}
    settings = {**sizes, "kind": "decoder", "feedforward_width": 768, "tie_output": False, **changes}
    model = chumoku.build(ModelConfig(**settings), dtype=torch.float16 if precision == "float16" else torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms, biases and scores matter
            parameter.add_(0.3 * torch.randn_like(parameter)) if parameter.ndim == 1 else parameter.mul_(2)
    return to_precision(model, precision) if precision.startswith("int") else model


def embed(model: DecoderModel, tables: Tables, token: int, position: int, dtype: torch.dtype) -> Tensor:
    embedding = model.decoder.embedding
    x = embedding.table[token].float() * embedding.factor
    return (x if tables.places is None else x + tables.places[position].float()).to(dtype)[None]


@pytest.mark.skipif(shutil.which("c++") is None, reason="There is no C++ compiler here.")
@pytest.mark.parametrize("past", [0, LONG_PAST])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_equal_the_model(cell: str, past: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, precision, blocks = CELLS[cell]
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    monkeypatch.setattr(whole_step, "Kernel", EmulatedKernel)
    monkeypatch.setattr(GpuSizes, "of", lambda device: GpuSizes(blocks, 90_000, warps=4))
    monkeypatch.setattr(whole_step, "ALONE", 1 if cell == "parts" else 512)
    model = build(changes, precision)
    config, dtype = model.config, torch.float16 if precision == "float16" else torch.bfloat16
    engine = TorchEngine(model, rows=1, capacity=CAPACITY)
    engine.add_rows(1)
    store = torch.zeros(config.decoder_depth, 2, 1, config.key_heads, CAPACITY, config.key_width, dtype=dtype)
    if past:
        engine.prefill([torch.randint(VOCABULARY, (past,)).tolist()])
        store[..., :past, :] = engine._store[..., :past, :]
    tables = Tables.of(model, CAPACITY)
    logits, norm = read_logits(model.head, model.decoder.embedding.table), read_norm(model.decoder.norm)
    step = WholeStep(read_layers(model), logits, norm, config, store, tables)
    with torch.inference_mode():
        for position, token in enumerate((5, 101, 7), start=past):
            wanted = engine.prefill([[token]]) if position == 0 else engine.step(torch.tensor([token]))
            found = torch.full((1, VOCABULARY), torch.nan, dtype=dtype)
            step.run(embed(model, tables, token, position, dtype), torch.tensor([position]), found)
            difference = (found.float() - wanted.float()).norm() / wanted.float().norm()
            assert difference < TOLERANCE[precision], (position, float(difference))


@pytest.mark.parametrize(("precision", "one_kernel"), [("bf16", False), ("int8", True), ("int4", True)])
def test_float_weights_run_as_several_kernels(
    precision: str, one_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_step, "can_compile", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(GpuSizes, "of", lambda device: GpuSizes(132, 232_448))
    model = build(LLAMA, precision)
    store = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    logits, norm = read_logits(model.head, model.decoder.embedding.table), read_norm(model.decoder.norm)
    assert whole_step.can_run(read_layers(model), logits, norm, model.config, store) == one_kernel
