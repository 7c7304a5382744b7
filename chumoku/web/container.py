"""The container: a model's weights, config and tokenizers as the bytes that in_page/container.js reads.

    "CHMK" · u32 length of the header · header (UTF-8 JSON) · tensors, each at a multiple of 64 bytes; little-endian

    header    format, name, config, precision, tensors, tokenizer, source_tokenizer, generation, checks, card
    tensors   {name: {"kind": "float32", "shape": […], "at": bytes from the start of the file}}
              {name: {"kind": "int8", "shape": [N, K], "at": …, "scale_at": …}}

A name is the model's own, such as decoder.blocks.0.attention.query.weight. An int8 matrix is q, int8 [N, ⌈K/32⌉ · 32],
and its scales, float16 [N, ⌈K/32⌉] (`nn/quantized.py`). Two names of one tensor have one place. If the output matrix is
the embedding table, float32 containers have only the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from chumoku.decoding.engines.unmodified import modification
from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.nn.quantized import Int8, QuantizedEmbedding, QuantizedLinear, is_quantized
from chumoku.web.derived_settings import config_for_page
from chumoku.weights.dequantize import dequantize_model

MAGIC = b"CHMK"
FORMAT = 1
ALIGNMENT = 64
MAX_BYTES = (1 << 31) - 1  # browsers hold at most 2 GiB in one array
PRECISIONS = ("int8", "float32")


def prepare_model(model: Model, precision: str = "int8") -> Model:
    """The model with the weights that a page has, int8 or float32: what the page is compared with."""
    if precision not in PRECISIONS:
        raise UsageError(f"A web page has int8 or float32 weights, not '{precision[:60]}'. Choose one of these.")
    if difference := modification(model):
        raise UsageError(
            f"A web page computes what a model's config describes, and this model differs from it: {difference}. "
            "Merge adapters first (lora.merged_copy); other changes of a model's code cannot be part of a page."
        )
    return to_precision(dequantize_model(model), precision, tables=True)


def write_container(
    model: Model,
    *,
    name: str,
    tokenizer: Mapping[str, Any] | None = None,
    source_tokenizer: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    checks: Mapping[str, Any] | None = None,
    card: Mapping[str, Any] | None = None,
) -> bytes:
    """The bytes of a container.

    model       from `prepare_model`
    name        what the page calls the model
    The others become parts of the header as they are.
    """
    header = {
        **{"format": FORMAT, "name": name, "config": config_for_page(model.config)},
        **{"precision": "int8" if is_quantized(model) else "float32"},
        **{"tokenizer": tokenizer, "source_tokenizer": source_tokenizer},
        **{"generation": generation, "checks": checks, "card": card},
    }
    data = _Data()
    tensors = {name: data.add_tensor(tensor) for name, tensor in _stored_tensors(model).items()}
    start, text = _encode_header(header, tensors)
    if start + data.size > MAX_BYTES:
        raise UsageError(
            f"The weights are {data.size:,} bytes, and a web page can hold at most {MAX_BYTES:,}. "
            "Choose int8 weights or a smaller model."
        )
    opening = MAGIC + len(text).to_bytes(4, "little") + text
    return b"".join([opening, bytes(start - len(opening)), *data.pieces])


class _Stored(NamedTuple):
    """A tensor as it is written: a float32 tensor, or q with its scales."""

    shape: tuple[int, ...]
    values: Tensor
    scale: Tensor | None = None


class _Data:
    """The bytes of all tensors, each tensor once."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self._places: dict[tuple[int, tuple[int, ...]], int] = {}

    def add_tensor(self, stored: _Stored) -> dict[str, Any]:
        """The entry of a tensor in the header, with places from the start of the data."""
        kind = "float32" if stored.scale is None else "int8"
        entry = {"kind": kind, "shape": list(stored.shape), "at": self._add(stored.values)}
        return entry if stored.scale is None else {**entry, "scale_at": self._add(stored.scale)}

    def _add(self, tensor: Tensor) -> int:
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in self._places:
            self._places[key] = self.size
            content = tensor.contiguous().numpy().tobytes()
            self.pieces += [content, bytes(-len(content) % ALIGNMENT)]
            self.size += len(content) + -len(content) % ALIGNMENT
        return self._places[key]


def _stored_tensors(model: Model) -> dict[str, _Stored]:
    """All tensors by the names that they have in a float32 model."""
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    found: dict[str, _Stored] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, QuantizedEmbedding | QuantizedLinear):
            name = f"{path}.{'table' if isinstance(module, QuantizedEmbedding) else 'weight'}"
            found[name] = _Stored(_shape(module), tensors.pop(f"{path}.q"), tensors.pop(f"{path}.scale"))
    return {**{name: _Stored(tuple(tensor.shape), tensor.float()) for name, tensor in tensors.items()}, **found}


def _shape(module: QuantizedEmbedding | QuantizedLinear) -> tuple[int, int]:
    stored = module.stored_weight
    if not isinstance(stored, Int8):
        raise UsageError("Only int8 and float32 weights can be written. Call prepare_model first.")
    if isinstance(module, QuantizedLinear):
        return module.out_features, module.in_features
    return stored.q.shape[0], stored.q.shape[1] * stored.q.shape[2]


def _encode_header(header: Mapping[str, Any], tensors: Mapping[str, dict[str, Any]]) -> tuple[int, bytes]:
    """Where the data starts, and the header with places from the start of the file, whose length depends on them."""
    start = 0
    while True:
        moved = {
            name: {key: value + start if key in ("at", "scale_at") else value for key, value in entry.items()}
            for name, entry in tensors.items()
        }
        content = {**header, "tensors": moved}
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        opening = len(MAGIC) + 4 + len(text)
        needed = opening + -opening % ALIGNMENT
        if needed <= start:
            return start, text
        start = needed
