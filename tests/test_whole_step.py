"""The kernel that computes a whole step equals the model; it runs in an emulator of a GPU with 5 or 9 multiprocessors.

Its sizes are multiples of what a matrix instruction multiplies, so they are no primes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated_kernel import COMPILER, EmulatedKernel
from torch import Tensor

import chumoku
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.gpu import whole_step
from chumoku.decoding.engines.gpu.tables import Tables
from chumoku.decoding.engines.gpu.weights import read_layers, read_logits, read_norm
from chumoku.decoding.engines.gpu.whole_step import GpuSizes, WholeStep, kernel_constants
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel
from chumoku.models.precision import to_precision

VOCABULARY, CAPACITY = 211, 149
LONG_PAST = 139  # more keys than the block reads at once
LLAMA = {"norm": "rms", "feedforward": "swiglu", "bias": False, "pairing": "half", "kv_heads": 1}
CELLS = {
    "llama": (LLAMA, "int4", 5),
    "parts": ({**LLAMA, "heads": 4, "kv_heads": 2, "head_width": 64}, "int8", 9),
    "gpt2": ({"position": "learned", "feedforward": "gelu_tanh", "output_bias": True}, "bf16", 5),
    "tied": ({"feedforward": "relu", "tie_output": True, "scale_embedding": True}, "int4", 5),
    "interleaved": ({"feedforward": "geglu", "attention_scale": 0.2, "layers": 1}, "int8", 5),
    "float16": ({**LLAMA, "feedforward": "relu"}, "float16", 5),
    "wide": ({**LLAMA, "width": 768}, "int4", 5),  # rows of all matrices have a whole part and a shorter one
    "float logits": ({**LLAMA, "width": 768, "feedforward_width": 512}, "int8", 5),  # the output matrix has 16 bits
}
TOLERANCE = {"bf16": 0.02, "int8": 0.02, "int4": 0.02, "float16": 0.003}  # activations are rounded to 16 bits


def build(changes: Mapping[str, object], precision: str) -> DecoderModel:
    torch.manual_seed(3)
    sizes = {"vocabulary": VOCABULARY, "width": 256, "layers": 2, "heads": 2, "head_width": 128, "context": CAPACITY}
    settings = {**sizes, "kind": "decoder", "feedforward_width": 768, "tie_output": False, **changes}
    model = chumoku.build(ModelConfig(**settings), dtype=torch.float16 if precision == "float16" else torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms, biases and scores matter
            parameter.add_(0.3 * torch.randn_like(parameter)) if parameter.ndim == 1 else parameter.mul_(2)
    return to_precision(model, precision) if precision.startswith("int") else model


def store_for(model: DecoderModel, dtype: torch.dtype) -> Tensor:
    config = model.config
    return torch.zeros(config.decoder_depth, 2, 1, config.key_heads, CAPACITY, config.key_width, dtype=dtype)


def parts_of(model: DecoderModel, store: Any) -> Any:
    """The arguments of `WholeStep`."""
    embedding = deepcopy(model.decoder.embedding).to(store.dtype)  # on a CPU, that of a quantized model has 32 bits
    logits, norm = read_logits(model.head, model.decoder.embedding.table), read_norm(model.decoder.norm)
    if isinstance(logits.weight, Tensor):
        logits = logits._replace(weight=logits.weight.to(store.dtype))
    return embedding, read_layers(model), norm, logits, model.config, store, Tables.of(model, CAPACITY)


@pytest.mark.skipif(COMPILER is None, reason="There is no C++ compiler here.")
@pytest.mark.parametrize(("cell", "buffers"), [*product(CELLS, [8]), ("llama", 2), ("parts", 1), ("wide", 2)])
def test_steps_equal_the_model(cell: str, buffers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one or two buffers, the keys that all warps read at once do not fit into them."""
    changes, precision, blocks = CELLS[cell]
    monkeypatch.setattr(whole_step, "MOST_STAGES", buffers)
    monkeypatch.setattr(whole_step, "COPY_BYTES", 384)  # of int4, three rows; of the others, one
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    monkeypatch.setattr(whole_step, "Kernel", EmulatedKernel)
    monkeypatch.setattr(GpuSizes, "of", lambda device: GpuSizes(blocks, 90_000, warps=4))
    monkeypatch.setattr(whole_step, "ALONE", 1 if cell == "parts" else 512)
    model = build(changes, precision)
    if cell == "float logits":
        model.head = build(changes, "bf16").head.float()
    store = store_for(model, torch.float16 if precision == "float16" else torch.bfloat16)
    step = WholeStep(*parts_of(model, store))
    for past in (0, LONG_PAST):
        engine = TorchEngine(model, rows=1, capacity=CAPACITY)
        engine.add_rows(1)
        if past:
            engine.prefill([torch.randint(VOCABULARY, (past,)).tolist()])
            store[..., :past, :] = engine._store[..., :past, :]
        lengths = torch.tensor([past])
        with torch.inference_mode():
            for position, token in enumerate((5, 101, 7), start=past):
                wanted = engine.prefill([[token]]) if position == 0 else engine.step(torch.tensor([token]))
                found, most_likely = step.run(torch.tensor([token]), lengths)
                assert int(lengths) == position + 1
                assert int(most_likely) == int(found.argmax())
                difference = (found.float() - wanted.float()).norm() / wanted.float().norm()
                assert difference < TOLERANCE[precision], (position, float(difference))


@pytest.mark.skipif(COMPILER is None, reason="There is no C++ compiler here.")
def test_the_most_likely_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the first of the largest logits, and −1 if one is NaN or the largest is not finite."""
    monkeypatch.setattr(EmulatedKernel, "folder", tmp_path, raising=False)
    monkeypatch.setattr(whole_step, "Kernel", EmulatedKernel)
    monkeypatch.setattr(GpuSizes, "of", lambda device: GpuSizes(5, 90_000, warps=4))
    model = build(*CELLS["gpt2"][:2])
    step = WholeStep(*parts_of(model, store_for(model, torch.bfloat16)))
    bias = next(tensor for tensor in step._kept if tensor.shape == (VOCABULARY,))
    lengths = torch.tensor([0])
    cases = {(13, 101): 1e9, (7, 173, 210): 0.0, (): -1e9, (3,): math.nan, (9,): -math.nan, (5, 6): math.inf}
    with torch.inference_mode():
        for places, value in cases.items():
            bias.fill_(-1e9)
            bias[list(places)] = value
            logits, found = step.run(torch.tensor([5]), lengths)
            finite = bool(logits.isfinite().all())
            assert int(found) == (int(logits.argmax()) if finite else -1), (places, value)
        bias.fill_(-math.inf)
        assert int(step.run(torch.tensor([5]), lengths).most_likely) == -1
        bias.zero_()
        first, invalid = (step.run(torch.tensor([token]), torch.tensor([0])).logits for token in (0, -1))
        assert torch.equal(first, invalid)


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("width", [512, 768])
def test_copies_are_unrolled_for_wide_int4_layers(width: int, precision: str) -> None:
    """With 4 warps instead of 16, a part of a row has 512 inputs instead of 2,048."""
    model = build({**LLAMA, "width": width}, precision)
    _, layers, _, logits, config, _, tables = parts_of(model, store_for(model, torch.bfloat16))
    constants = kernel_constants(layers, logits, config, torch.bfloat16, tables, GpuSizes(132, 232_448, warps=4))
    assert constants["COPIES_UNROLLED"] == (4 if (width, precision) == (768, "int4") else 1)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU with 132 multiprocessors."""
    monkeypatch.setattr(whole_step, "can_compile", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(GpuSizes, "of", lambda device: GpuSizes(132, 232_448))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("hidden", "one"), [(1000, False), (1024, True)])
def test_weights_that_are_stored_with_more_inputs_run_as_several_kernels(hidden: int, one: bool) -> None:
    model = build({**LLAMA, "width": 512, "feedforward_width": hidden}, "int8")
    parts = parts_of(model, SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16))
    assert (whole_step.prepare(*parts) is not None) == one


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"embedding_norm": True}, {"score_cap": 30.0}, {"query_key_norm": "head"}, {"width": 256}, {"heads": 67}],
)
@pytest.mark.usefixtures("hopper")
def test_which_models_run_as_one_kernel(
    changes: dict[str, object], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build({**LLAMA, "width": 512, **changes}, precision)
    embedding, *others = parts_of(model, SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16))
    assert (whole_step.prepare(embedding, *others) is not None) == (not changes)
    assert whole_step.prepare(deepcopy(embedding).float(), *others) is None
    with monkeypatch.context() as patch:
        patch.setattr(whole_step, "MOST_HIDDEN", 5)  # the model has 768 elements of h, and the GPU 132 blocks
        assert whole_step.prepare(embedding, *others) is None
    layers = [
        *others[0][:1],
        *read_layers(build({**LLAMA, "width": 512}, "int8" if precision == "int4" else "int4"))[1:],
    ]
    assert whole_step.prepare(embedding, layers, *others[1:]) is None
