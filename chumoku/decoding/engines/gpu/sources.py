"""Keys and values of the sources where a CUDA graph reads them: in one tensor, with the lengths on the device.

store     [L, 2, rows, G, S, K]; its address changes only when more rows or a longer source need a larger one
lengths   [rows]; 0 for rows without a source
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.decoding.batch import upload
from chumoku.decoding.engines.encoder_outputs import EncoderOutputs, new_size, write_rows
from chumoku.decoding.engines.gpu.launch import next_power_of_two
from chumoku.models.config import ModelConfig
from chumoku.nn.cache import KeyValue

LEAST = 64  # positions


class SourceStore(EncoderOutputs):
    """The sources of at most `rows` rows."""

    def __init__(self, config: ModelConfig, rows: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(rows)
        shape = (config.decoder_depth, 2, 0, config.key_heads, LEAST, config.key_width)
        self.store = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)

    def add_rows(self, memory: tuple[KeyValue, ...], lengths: list[int]) -> None:
        super().add_rows(memory, lengths)
        self._upload()

    def select_rows(self, rows: Sequence[int]) -> None:
        before = list(self._lengths)
        super().select_rows(rows)
        if self._lengths != before:
            self._upload()

    def _write(self, memory: tuple[KeyValue, ...], lengths: list[int]) -> None:
        first = len(self._lengths)
        self._reserve(first + len(lengths), max(lengths))
        self._memory = split_layers(self.store)  # removing all rows has emptied it
        write_rows(self._memory, memory, first)

    def _reserve(self, rows: int, length: int) -> None:
        have = self.store.shape
        if rows > have[2] or length > have[4]:
            rows, positions = new_size(have[2], rows, most=self._rows), max(have[4], next_power_of_two(length))
            larger = self.store.new_zeros(*have[:2], rows, have[3], positions, have[5])
            larger[:, :, : have[2], :, : have[4]] = self.store
            self.store, self._memory = larger, split_layers(larger)

    def _upload(self) -> None:
        numbers = self._lengths + [0] * (self._rows - len(self._lengths))
        self.lengths.copy_(upload(numbers, self.lengths.device))


def split_layers(store: Tensor) -> tuple[KeyValue, ...]:
    """The keys and values of each layer [rows, G, S, K], as views."""
    return tuple(KeyValue(*pair) for pair in store)
