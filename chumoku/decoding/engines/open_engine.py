"""Choose the engine for a model: the fastest that computes exactly what the model computes.

    native    the C++ library of engines/native, on a CPU
    GPU       CUDA graphs of our own kernels (engines/gpu)
    PyTorch   the model itself, for everything else: models with hooks, replaced or subclassed modules, adapters,
              edits; and under chumoku.plain()

While tensors are recorded, the PyTorch model runs beside the same engine (engines/recorded.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from chumoku.decoding.engines import gpu
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.native import call
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.recorded import RecordedEngine
from chumoku.decoding.engines.unmodified import modification
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.lora import Adapter
from chumoku.nn.plain import plain_formulas
from chumoku.nn.tap import is_editing, is_recording


def open_engine(
    model: DecoderModel | EncoderDecoderModel,
    *,
    rows: int,
    capacity: int,
    adapters: Mapping[str, Adapter] | None = None,
) -> Engine:
    """The fastest engine for this model, with memory for at most `rows` sequences of `capacity` tokens.

    adapters    by name: each row can have one of them, or none
    """
    if not model.config.predicts_tokens:
        raise UsageError(f"This model has the head '{model.config.head}' and cannot generate tokens. Use classify.")
    slow = is_editing() or plain_formulas()
    fast = None if slow else _fast_engine(model, rows=rows, capacity=capacity, adapters=adapters)
    if fast is None:
        return TorchEngine(model, rows=rows, capacity=capacity, adapters=adapters)
    return RecordedEngine(fast) if is_recording() else fast


def _fast_engine(
    model: DecoderModel | EncoderDecoderModel, *, rows: int, capacity: int, adapters: Mapping[str, Adapter] | None
) -> Engine | None:
    native, graphs = call.unsupported(model) is None, gpu.available(model)
    if not native and not graphs:
        return None
    if changed := modification(model):
        warnings.warn(
            f"This model differs from its config: {changed}. It is decoded in PyTorch, which is several times slower "
            "than the engine for unmodified models.",
            stacklevel=3,
        )
        return None
    if native:
        return NativeEngine(model, rows=rows, capacity=capacity, adapters=adapters)
    from chumoku.decoding.engines.gpu.engine import GpuEngine  # imports Triton, which may not be installed

    return GpuEngine(model, rows=rows, capacity=capacity, adapters=adapters)
