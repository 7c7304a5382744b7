"""An engine whose passes are captured graphs: the device goes through one without asking the host for anything.

    step     a token for each row → a fixed place, the graph of so many rows again, logits ← a fixed place
    pack     tokens of any rows, side by side, each with its row and position; so prompts are read, and rows extended
    graph    embed, L × (project, attend, output, up, down), logits, the likeliest token     (`launch`)

One graph serves every length, for lengths are kept and counted on the device. There is a graph for 1, 2, 4 … 64, 128,
192 … rows; what rows beyond the live ones compute is written behind their ends, where nobody reads it. Long prompts are
read by the plain engine, whose attention does not look up the past anew for each token, into the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.gpu import launch
from chumoku.decoding.engines.gpu.weights import read_layers, read_logits, read_norm, unsupported
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel

AT_ONCE = 2 << 30  # bytes of cache that are taken before they are needed
PACK, LEAST_PACK = 2048, 16  # tokens side by side
NEAR = 1 << 20  # tokens × the furthest position: beyond, the plain engine is faster
GATES = {"geglu": "gelu", "swiglu": "silu"}


T = TypeVar("T")


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
    """For decoders without experts and relative positions, of floats or of whole numbers."""

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
        self._logits = read_logits(head, stack.embedding.table)
        self._steps: dict[int, Callable[[], Answer]] = {}
        self._packs: dict[int, Callable[[], Tensor]] = {}
        self._stepping = 0  # rows whose lengths a step counts on
        self.likeliest = torch.empty(0, dtype=torch.int64, device=self.device)  # [n] of the last step's logits
        with torch.inference_mode():
            self._tokens, self._advance, self._at, self._positions = self._numbers(4, rows)
            self._rows = torch.arange(rows, device=self.device)
            self._pack = self._numbers(3, PACK)  # tokens, rows, positions

    def _dequantized(self) -> list[Tensor]:
        """None: its kernels read the quantized numbers."""
        return []

    def step(self, tokens: Tensor) -> Tensor:
        count = len(tokens)
        self.check_tokens(tokens, 1)
        self.check_unobserved()
        longest = max(self.lengths[:count]) + 1
        with torch.inference_mode():
            self._reserve(self.live, longest)
            self._device_lengths()
            self._tokens[:count] = tokens
            rows = min(bucket(count), self._store.shape[2])
            if rows not in self._steps:
                # Compiling takes a step that counts nothing on: what it writes lies behind the rows' ends.
                self._count_on(0)
                self._steps[rows] = self._captured(rows, lambda desk: self._step(rows, desk))
            self._count_on(count)
            logits, likeliest = self._steps[rows]()
            # The next step writes over what this one left.
            self.likeliest = likeliest[:count].clone()
            answer = logits[:count].clone()
        self.lengths[:count] = [length + 1 for length in self.lengths[:count]]
        return answer

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        lengths = list(map(len, prompts))
        starts = self.lengths[first : first + len(prompts)]
        whole = bool(lengths) and min(lengths) > 0 and len(starts) == len(lengths)
        if not whole or not self._near(sum(lengths), max(map(sum, zip(starts, lengths, strict=True)))):
            return super().prefill(prompts, first=first)
        tokens = torch.tensor([token for prompt in prompts for token in prompt], pin_memory=self._pinned)
        hidden = self._pass(tokens, first, starts, lengths)
        ends = self._upload([end - 1 for end in accumulate(lengths)])
        with torch.inference_mode():
            return launch.multiply(self._start, hidden[ends], self._logits, norm=self._norm, first=True)

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        starts = self.lengths[:count]
        if len(starts) < count or not self._near(count * new, max(starts, default=0) + new):
            return super().extend(tokens)
        hidden = self._pass(tokens.flatten(), 0, starts, [new] * count)
        with torch.inference_mode():
            logits = launch.multiply(self._start, hidden.clone(), self._logits, norm=self._norm, first=True)
        return logits.view(count, new, -1)

    def select_rows(self, rows: Sequence[int]) -> None:
        moves = [(place, row) for place, row in enumerate(rows) if place != row]
        apart = not {place for place, _ in moves} & {row for _, row in moves}
        right = len(rows) <= self.rows and all(0 <= row < self.live for row in rows)
        if not right or not apart:
            super().select_rows(rows)
            return
        if moves:
            used = max(self.lengths[row] for _, row in moves)
            with torch.inference_mode():
                self._reserve(len(rows), used)
                launch.move(self._store, self._upload(moves), used)
        # Without rows it keeps its memory, for the graphs know where that is.
        self.lengths, self._places = [self.lengths[row] for row in rows], None

    def _near(self, tokens: int, furthest: int) -> bool:
        return tokens <= PACK and furthest <= self.capacity and tokens * furthest <= NEAR

    def _pass(self, tokens: Tensor, first: int, starts: Sequence[int], new: Sequence[int]) -> Tensor:
        """The last block's output for the next new[i] tokens of row first + i, side by side."""
        self.check_unobserved()
        rows = [first + row for row, count in enumerate(new) for _ in range(count)]
        positions = [start + step for start, count in zip(starts, new, strict=True) for step in range(count)]
        count = len(rows)
        size = max(LEAST_PACK, launch.power(count))
        with torch.inference_mode():
            self._reserve(self.live, max(positions) + 1)
            # Filled up with the last token again, which then is computed and kept several times.
            spare = size - count
            self._pack[1:, :size] = self._upload([rows + rows[-1:] * spare, positions + positions[-1:] * spare])
            self._pack[0, :count].copy_(tokens, non_blocking=True)
            self._pack[0, count:size] = self._pack[0, count - 1]
            if size not in self._packs:
                self._packs[size] = self._captured(size, lambda desk: self._packed(size, desk))
            hidden = self._packs[size]()[:count]
        for row, more in enumerate(new, start=first):
            self.lengths[row] += more
        self._places = None
        return hidden

    def _numbers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    @property
    def _pinned(self) -> bool:
        return self.device.type == "cuda"

    def _upload(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, pin_memory=self._pinned).to(self.device, non_blocking=True)

    def _device_lengths(self) -> Tensor:
        """The lengths where the graphs read them; behind the live rows, zeros."""
        if self._places is None:
            self._at.copy_(self._upload(self.lengths + [0] * (self.rows - self.live)))
            self._places = self._at[: self.live]
        return self._places

    def _count_on(self, count: int) -> None:
        if count != self._stepping:
            self._advance[:count] = 1
            self._advance[count:] = 0
            self._stepping = count

    def _reserve(self, rows: int, positions: int) -> None:
        """Graphs know where the cache is, so it should not move: all of it at once, unless that is much."""
        layers, _, _, kv_heads, _, width = self._store.shape
        if self.rows * self.capacity * layers * 2 * kv_heads * width * self._store.itemsize <= AT_ONCE:
            rows, positions = self.rows, self.capacity
        before = self._store
        super()._reserve(rows, positions)
        if self._store is not before:
            self._steps.clear()
            self._packs.clear()
            self._tables = Tables.of(self.model, self._store.shape[4])

    def _captured(self, tokens: int, compute: Callable[[launch.Desk], T]) -> Callable[[], T]:
        """A pass of so many tokens as a graph, where there are graphs."""
        config = self.model.config
        desk = launch.Desk.empty(tokens, config.heads, config.key_heads, config.head_width, device=self.device)
        if self.device.type != "cuda":
            return lambda: compute(desk)
        compute(desk)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = compute(desk)

        def again(desk: launch.Desk = desk) -> T:
            graph.replay()  # which reads and writes the desk: it must not be given to anyone else
            return answer

        return again

    def _step(self, rows: int, desk: launch.Desk) -> Answer:
        """A token for each of the first rows."""
        sight = launch.Sight(self._rows[:rows], self._positions[:rows], self._tables.rotation)
        x = self._embed(self._tokens[:rows], sight, counted=(self._at, self._advance))
        logits = launch.multiply(self._start, self._blocks(x, sight, desk), self._logits, norm=self._norm)
        return Answer(logits, launch.likeliest(self._start, logits))

    def _packed(self, size: int, desk: launch.Desk) -> Tensor:
        tokens, rows, positions = self._pack[:, :size]
        sight = launch.Sight(rows, positions, self._tables.rotation)
        return self._blocks(self._embed(tokens, sight), sight, desk, together=True)

    def _embed(self, tokens: Tensor, sight: launch.Sight, counted: tuple[Tensor, Tensor] | None = None) -> Tensor:
        embedding = self.model.decoder.embedding
        table, places, factor = embedding.table, self._tables.places, embedding.factor
        x = launch.embed(
            self._start, tokens, sight.positions, table=table, places=places, factor=factor, counted=counted
        )
        return x if self._embedding_norm is None else launch.normalize(self._start, x, self._embedding_norm)

    def _blocks(self, x: Tensor, sight: launch.Sight, desk: launch.Desk, *, together: bool = False) -> Tensor:
        """Vectors [n, D] through the blocks; `together`, those of one row see each other."""
        start, config = self._start, self.model.config
        activation, gated = GATES.get(config.feedforward, config.feedforward), config.feedforward in GATES
        pre = config.placement == "pre"
        for number, (layer, cached) in enumerate(zip(self._layers, self._store, strict=True)):
            norm = layer.attention_norm if pre else None
            projected = launch.multiply(start, x, layer.projection, norm=norm, first=not number)
            if together:
                launch.keep(start, projected, cached, sight, heads=config.heads)
            heads = launch.look(start, projected, cached, sight, desk, heads=config.heads, first=together)
            x = launch.multiply(start, heads, layer.output, residual=x)
            x = x if pre else launch.normalize(start, x, layer.attention_norm)
            norm = layer.feedforward_norm if pre else None
            hidden = launch.multiply(start, x, layer.up, norm=norm, activation=activation, gated=gated)
            x = launch.multiply(start, hidden, layer.down, residual=x)
            x = x if pre else launch.normalize(start, x, layer.feedforward_norm)
        return x


def bucket(rows: int) -> int:
    """The number of rows of the graph that steps so many."""
    return launch.power(rows) if rows <= 64 else -(-rows // 64) * 64
