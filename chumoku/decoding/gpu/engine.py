"""An engine whose steps are captured graphs: the device goes through a whole step without asking the host for anything.

    step     tokens → a fixed place, the graph of so many rows again, logits ← a fixed place
    graph    embed, L × (project, attend, output, up, down), logits, the likeliest token     (`launch`)

One graph serves every length, for lengths are kept and counted on the device. There is a graph for 1, 2, 4 … 64, 128,
192 … rows; what rows beyond the live ones compute is written behind their ends, where nobody reads it. Reading pieces,
moving and forgetting are the plain engine's, in the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.decoding.engine import TorchEngine
from chumoku.decoding.gpu import launch
from chumoku.decoding.gpu.weights import Matrix, read_layers, read_norm, unsupported
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel
from chumoku.nn.tap import recording

AT_ONCE = 2 << 30  # bytes of cache that are taken before they are needed
GATES = {"geglu": "gelu", "swiglu": "silu"}


class Answer(NamedTuple):
    logits: Tensor  # [rows, V]
    likeliest: Tensor  # [rows]


class Tables(NamedTuple):
    """What depends on positions alone, for as many as the cache has."""

    places: Tensor | None  # [C, D] learned or sinusoidal
    rotation: tuple[Tensor, Tensor, str] | None  # cos and sin [C, K / 2], and the pairing

    @classmethod
    def of(cls, model: DecoderModel, capacity: int) -> Tables:
        stack = model.decoder
        positions = torch.arange(capacity, device=model.device)
        places = None if stack.position is None else stack.position(positions, capacity, model.dtype)
        if stack.rotary is None:
            return cls(places, None)
        cos, sin, pairing = stack.rotary(positions, torch.float32)
        return cls(places, (cos.contiguous(), sin.contiguous(), pairing))


class GpuEngine(TorchEngine):
    """For decoders without experts and relative positions, whose weights are plain matrices."""

    model: DecoderModel

    def __init__(self, model: DecoderModel, *, rows: int, capacity: int) -> None:
        if reason := unsupported(model):
            raise UsageError(f"This model cannot be decoded by kernels on a GPU: {reason}.")
        super().__init__(model, rows=rows, capacity=capacity)
        self._start = launch.Launcher.on(self.device)
        self._layers = read_layers(model)
        stack, head = model.decoder, model.head
        self._norm = None if stack.norm is None else read_norm(stack.norm)
        self._embedding_norm = None if stack.embedding_norm is None else read_norm(stack.embedding_norm)
        table = stack.embedding.table if head.weight is None else head.weight
        self._logits = Matrix(table.detach(), None if head.bias is None else head.bias.detach())
        self._runs: dict[int, Callable[[], Answer]] = {}
        self._stepping = 0  # rows whose lengths a step counts on
        self.likeliest = torch.empty(0, dtype=torch.int64, device=self.device)  # [n] of the last step's logits
        with torch.inference_mode():
            self._tokens, self._advance, self._at = torch.zeros(3, rows, dtype=torch.int64, device=self.device)

    def step(self, tokens: Tensor) -> Tensor:
        if recording():
            return super().step(tokens)
        count = len(tokens)
        longest = max(self.lengths[:count], default=0) + 1
        self._fits(count, longest)
        with torch.inference_mode():
            self._reserve(self.live, longest)
            self._ragged()
            self._tokens[:count] = tokens
            self._count_on(count)
            rows = min(bucket(count), self._store.shape[2])
            if rows not in self._runs:
                self._runs[rows] = self._prepare(rows)
                self._count_on(count)
            logits, likeliest = self._runs[rows]()
            # The next step writes over what this one left.
            self.likeliest = likeliest[:count].clone()
            answer = logits[:count].clone()
        self.lengths[:count] = [length + 1 for length in self.lengths[:count]]
        return answer

    def _ragged(self) -> Tensor:
        """The lengths where the graphs read them; behind the live rows, zeros."""
        if self._places is None:
            lengths = self.lengths + [0] * (self.rows - self.live)
            pinned = torch.tensor(lengths, pin_memory=self.device.type == "cuda")
            self._at.copy_(pinned, non_blocking=True)
            self._places = self._at[: self.live]
        return self._places

    def _count_on(self, count: int) -> None:
        if count != self._stepping:
            self._advance[:count] = 1
            self._advance[count:] = 0
            self._stepping = count

    def take(self, rows: Sequence[int]) -> None:
        if rows:
            super().take(rows)
        else:
            # Empty, it keeps its memory, for the graphs know where that is.
            self.lengths, self._places = [], None

    def _reserve(self, rows: int, positions: int) -> None:
        """Graphs know where the cache is, so it should not move: all of it at once, unless that is much."""
        layers, _, _, kv_heads, _, width = self._store.shape
        if self.rows * self.capacity * layers * 2 * kv_heads * width * self._store.itemsize <= AT_ONCE:
            rows, positions = self.rows, self.capacity
        before = self._store
        super()._reserve(rows, positions)
        if self._store is not before:
            self._runs.clear()
            self._tables = Tables.of(self.model, self._store.shape[4])

    def _prepare(self, rows: int) -> Callable[[], Answer]:
        """A step of so many rows, captured where there are graphs."""
        config = self.model.config
        desk = launch.Desk.empty(rows, config.heads, config.key_heads, config.head_width, device=self.device)
        if self.device.type != "cuda":
            return lambda: self._compute(rows, desk)
        # Once without counting on, so that everything is compiled: what it writes lies behind the rows' ends.
        self._count_on(0)
        self._compute(rows, desk)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = self._compute(rows, desk)

        def again(desk: launch.Desk = desk) -> Answer:
            graph.replay()  # which reads and writes the desk: it must not be given to anyone else
            return answer

        return again

    def _compute(self, rows: int, desk: launch.Desk) -> Answer:
        start, config, embedding = self._start, self.model.config, self.model.decoder.embedding
        activation, gated = GATES.get(config.feedforward, config.feedforward), config.feedforward in GATES
        pre = config.placement == "pre"
        places, rotation = self._tables
        x, positions = launch.embed(
            start,
            self._tokens[:rows],
            self._at,
            self._advance,
            table=embedding.table,
            places=places,
            factor=embedding.factor,
        )
        if self._embedding_norm is not None:
            x = launch.normalise(start, x, self._embedding_norm)
        for number, (layer, cached) in enumerate(zip(self._layers, self._store, strict=True)):
            norm = layer.attention_norm if pre else None
            projected = launch.multiply(start, x, layer.projection, norm=norm, first=not number)
            heads = launch.look(start, projected, cached, positions, rotation=rotation, desk=desk, heads=config.heads)
            x = launch.multiply(start, heads, layer.output, residual=x)
            x = x if pre else launch.normalise(start, x, layer.attention_norm)
            norm = layer.feedforward_norm if pre else None
            hidden = launch.multiply(start, x, layer.up, norm=norm, activation=activation, gated=gated)
            x = launch.multiply(start, hidden, layer.down, residual=x)
            x = x if pre else launch.normalise(start, x, layer.feedforward_norm)
        logits = launch.multiply(start, x, self._logits, norm=self._norm)
        return Answer(logits, launch.likeliest(start, logits))


def bucket(rows: int) -> int:
    """The number of rows of the graph that steps so many."""
    return launch.power(rows) if rows <= 64 else -(-rows // 64) * 64
