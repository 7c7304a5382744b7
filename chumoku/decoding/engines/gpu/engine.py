"""An engine that runs CUDA graphs, so that a pass needs no interaction with the host.

    step     copy a token of each row to a fixed buffer, replay the graph for that many rows, copy the logits;
             one row of Llama- and GPT-2-like decoders instead in one kernel (`whole_step`)
    pack     tokens of any rows side by side, each with its row and position; used by prefill and extend
    graph    embed, the blocks (`blocks`), logits, the most likely token

One graph works for all lengths, because lengths are stored and incremented on the device. There are graphs for 1, 2, 4
… 64, 128, 192 … rows; rows beyond the live ones write behind their ends, where nothing is read. Long prompts are
prefilled by TorchEngine into the same cache: its attention does not read the past again for each token. So are passes
with a row that has an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from chumoku.decoding.batch import upload
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.gpu import launch, launch_attention
from chumoku.decoding.engines.gpu.blocks import Blocks
from chumoku.decoding.engines.gpu.sources import SourceStore
from chumoku.decoding.engines.gpu.tables import Tables
from chumoku.decoding.engines.gpu.weights import read_logits, read_norm, unsupported
from chumoku.decoding.engines.gpu.whole_step import LONGEST, StepOutput, WholeStep, prepare
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.lora import Adapter

AT_ONCE = 2 << 30  # a cache up to this many bytes is allocated at once
PACK, LEAST_PACK = 2048, 16  # maximum and minimum number of tokens in a pack
NEAR = 1 << 20  # tokens × last position; beyond this, TorchEngine is faster


T = TypeVar("T")


class GpuEngine(TorchEngine):
    """For float or quantized weights; `supported_settings` lists what the kernels lack."""

    _sources: SourceStore

    def __init__(
        self,
        model: DecoderModel | EncoderDecoderModel,
        *,
        rows: int,
        capacity: int,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> None:
        if reason := unsupported(model):
            raise UsageError(f"GpuEngine cannot run this model. {reason}")
        super().__init__(model, rows=rows, capacity=capacity, adapters=adapters)
        self._launcher = launch.Launcher.on(self.device)
        self._blocks = Blocks(model, self._launcher)
        stack, head = model.decoder, model.head
        self._norm = None if stack.norm is None else read_norm(stack.norm)
        self._embedding_norm = None if stack.embedding_norm is None else read_norm(stack.embedding_norm)
        self._logits = read_logits(head, stack.embedding.table)
        self._sources = SourceStore(model.config, rows, device=self.device, dtype=model.dtype)
        self._read_by_graphs = (self._store, self._sources.store)
        self._steps: dict[int, Callable[[], StepOutput]] = {}  # by rows
        self._open_kernel: Callable[[], WholeStep] | None = None
        self._packs: dict[int, Callable[[], Tensor]] = {}
        # All graphs share a memory pool, because one runs at a time.
        self._graph_pool: torch.cuda._POOL_HANDLE | None = None
        self._stepping = 0  # number of rows whose lengths a step increments
        with torch.inference_mode():
            self._tokens, self._advance, self._at, self._positions = self._numbers(4, rows)
            self._rows = torch.arange(rows, device=self.device)
            self._pack = self._numbers(3, PACK)  # tokens, rows, positions

    def rolling_layout(self) -> None:
        """Every layer keeps all positions, because the graphs contain the place of each."""

    def _dequantized(self) -> list[Tensor]:
        """Nothing: the kernels read quantized weights."""
        return []

    def step(self, tokens: Tensor) -> Tensor:
        count = len(tokens)
        self.check_tokens(tokens, 1)
        self.most_likely = None
        if self.has_adapter(0, count):
            return super().step(tokens)
        self.check_unobserved()
        longest = max(self.lengths[:count]) + 1
        with torch.inference_mode():
            self._reserve(self.live, longest)
            lengths = self._device_lengths()
            if self._open_kernel is not None and count == 1 and longest <= LONGEST:
                logits, most_likely = self._open_kernel().run(tokens.to(self.device, torch.int64), lengths)
            else:
                logits, most_likely = self._replay(tokens)
            # Scaling and capping round, so that the first of several equal logits may be another one.
            if not self.model.config.scale_logits and self.model.config.logit_cap is None:
                self.most_likely = most_likely
            result = self.model.scale_and_cap(logits)
        self.lengths[:count] = [length + 1 for length in self.lengths[:count]]
        return result

    def _replay(self, tokens: Tensor) -> StepOutput:
        """A step as a graph."""
        count = len(tokens)
        torch.clamp(tokens.to(self.device), min=0, out=self._tokens[:count])
        rows = min(bucket(count), self._store.shape[2])
        if rows not in self._steps:
            # Compiling runs a step that increments no length: what it writes lies behind the ends of the rows.
            self._set_advance(0)
            self._steps[rows] = self._capture(rows, lambda workspace: self._step(rows, workspace))
        self._set_advance(count)
        logits, most_likely = self._steps[rows]()
        return StepOutput(logits[:count].clone(), most_likely[:count].clone())  # the next step overwrites these buffers

    def prefill(self, prompts: Sequence[Sequence[int]], *, first: int = 0) -> Tensor:
        lengths = list(map(len, prompts))
        starts = self.lengths[first : first + len(prompts)]
        valid = bool(lengths) and min(lengths) > 0 and len(starts) == len(lengths)
        valid = valid and not self.has_adapter(first, len(prompts))
        if not valid or not self._near(sum(lengths), max(map(sum, zip(starts, lengths, strict=True)))):
            return super().prefill(prompts, first=first)
        tokens = upload([token for prompt in prompts for token in prompt], self.device)
        hidden = self._pass(tokens, first, starts, lengths)
        ends = upload([end - 1 for end in accumulate(lengths)], self.device)
        with torch.inference_mode():
            logits = launch.multiply(self._launcher, hidden[ends], self._logits, norm=self._norm, first=True)
            return self.model.scale_and_cap(logits)

    def extend(self, tokens: Tensor) -> Tensor:
        count, new = tokens.shape
        starts = self.lengths[:count]
        near = self._near(count * new, max(starts, default=0) + new)
        if len(starts) < count or not near or self.has_adapter(0, count):
            return super().extend(tokens)
        hidden = self._pass(tokens.flatten(), 0, starts, [new] * count)
        with torch.inference_mode():
            logits = launch.multiply(self._launcher, hidden.clone(), self._logits, norm=self._norm, first=True)
            return self.model.scale_and_cap(logits).view(count, new, -1)

    def select_rows(self, rows: Sequence[int]) -> None:
        origins = np.array(rows, dtype=np.int64)
        places = np.flatnonzero(origins != np.arange(len(rows)))
        right = len(rows) <= self.rows and (not rows or 0 <= origins.min() <= origins.max() < self.live)
        if not right or len(places) > launch_attention.MOST_MOVES:
            super().select_rows(rows)
            return
        with torch.inference_mode():
            if len(places):
                moved = origins[places]
                used = max(map(self.lengths.__getitem__, moved.tolist()))
                self._reserve(len(rows), used)
                launch_attention.move(self._store, upload(np.stack([places, moved], 1), self.device), used)
            self._sources.select_rows(rows)
        # The cache is kept even without rows, because the graphs contain its address.
        before = self.lengths
        self.reorder_rows(rows)
        if self.lengths != before:
            self._places = None

    def _near(self, tokens: int, furthest: int) -> bool:
        return tokens <= PACK and furthest <= self.capacity and tokens * furthest <= NEAR

    def _pass(self, tokens: Tensor, first: int, starts: Sequence[int], new: Sequence[int]) -> Tensor:
        """The last block's output for the next new[i] tokens of row first + i, side by side."""
        self.check_unobserved()
        rows = [first + row for row, count in enumerate(new) for _ in range(count)]
        positions = [start + step for start, count in zip(starts, new, strict=True) for step in range(count)]
        count = len(rows)
        size = max(LEAST_PACK, launch.next_power_of_two(count))
        with torch.inference_mode():
            self._reserve(self.live, max(positions) + 1)
            # Padded with copies of the last token, which write the same values.
            spare = size - count
            self._pack[1:, :size] = upload([rows + rows[-1:] * spare, positions + positions[-1:] * spare], self.device)
            self._pack[0, :count] = tokens
            self._pack[0, count:size] = self._pack[0, count - 1]
            if size not in self._packs:
                self._packs[size] = self._capture(size, lambda workspace: self._run_pack(size, workspace))
            hidden = self._packs[size]()[:count]
        for row, more in enumerate(new, start=first):
            self.lengths[row] += more
        self._places = None
        return hidden

    def _numbers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _device_lengths(self) -> Tensor:
        """The lengths in the buffer that the graphs read; zeros beyond the live rows."""
        if self._places is None:
            self._at.copy_(upload(self.lengths + [0] * (self.rows - self.live), self.device))
            self._places = self._at[: self.live]
        return self._places

    def _set_advance(self, count: int) -> None:
        if count != self._stepping:
            self._advance[:count] = 1
            self._advance[count:] = 0
            self._stepping = count

    def _reserve(self, rows: int, positions: int) -> None:
        """Graphs contain the address of the cache, so it is allocated at once unless it is large."""
        layers, _, _, kv_heads, _, width = self._store.shape
        if self.rows * self.capacity * layers * 2 * kv_heads * width * self._store.itemsize <= AT_ONCE:
            rows, positions = self.rows, self.capacity
        super()._reserve(rows, positions)
        now = (self._store, self._sources.store)
        if any(one is not other for one, other in zip(now, self._read_by_graphs, strict=True)):
            self._steps.clear()
            self._packs.clear()
            self._tables, self._read_by_graphs = Tables.of(self.model, self._store.shape[4]), now
            self._open_kernel = prepare(
                self.model.decoder.embedding,
                self._blocks.layers,
                self._norm,
                self._logits,
                self.model.config,
                self._store,
                self._tables,
            )

    def _capture(self, tokens: int, compute: Callable[[launch_attention.Workspace], T]) -> Callable[[], T]:
        """A function that runs a pass of `tokens` tokens, as a CUDA graph if possible."""
        config = self.model.config
        workspace = launch_attention.Workspace.empty(
            tokens, config.heads, config.key_heads, config.key_width, device=self.device
        )
        if self.device.type != "cuda":
            return lambda: compute(workspace)
        compute(workspace)  # compiles
        # PyTorch refuses a pool whose graphs are all gone.
        if self._graph_pool is None or not (self._steps or self._packs):
            self._graph_pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with new_cublas_workspace(), torch.cuda.graph(graph, pool=self._graph_pool):
                answer = compute(workspace)
        except BaseException:
            self._graph_pool = None  # it may still be recording
            raise

        def replay(workspace: launch_attention.Workspace = workspace) -> T:
            graph.replay()  # uses the workspace, which must stay allocated
            return answer

        return replay

    def _step(self, rows: int, workspace: launch_attention.Workspace) -> StepOutput:
        """One token for each of the first `rows` rows."""
        where = launch_attention.TokenPlaces(self._rows[:rows], self._positions[:rows])
        x = self._embed(self._tokens[:rows], where, counted=(self._at, self._advance))
        hidden = self._run_blocks(x, where, workspace)
        logits = launch.multiply(self._launcher, hidden, self._logits, norm=self._norm)
        return StepOutput(logits, launch.argmax(self._launcher, logits))

    def _run_pack(self, size: int, workspace: launch_attention.Workspace) -> Tensor:
        tokens, rows, positions = self._pack[:, :size]
        where = launch_attention.TokenPlaces(rows, positions)
        return self._run_blocks(self._embed(tokens, where), where, workspace, together=True)

    def _run_blocks(
        self,
        x: Tensor,
        where: launch_attention.TokenPlaces,
        workspace: launch_attention.Workspace,
        *,
        together: bool = False,
    ) -> Tensor:
        return self._blocks.run(
            x, where, workspace, cache=self._store, sources=self._sources, tables=self._tables, together=together
        )

    def _embed(
        self, tokens: Tensor, where: launch_attention.TokenPlaces, counted: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        embedding = self.model.decoder.embedding
        table, places, factor = embedding.table, self._tables.places, embedding.factor
        x = launch.embed(
            self._launcher, tokens, where.positions, table=table, places=places, factor=factor, counted=counted
        )
        return x if self._embedding_norm is None else launch.normalize(self._launcher, x, self._embedding_norm)


@contextmanager
def new_cublas_workspace() -> Iterator[None]:
    """A graph that is captured here has a cuBLAS workspace in its own memory pool.

    PyTorch keeps one workspace for each stream, and graphs contain its address. It would stay in the pool of the graph
    that was captured first, perhaps by another engine, and would be freed when that graph is gone and all workspaces
    are cleared, as here and in `torch.compile`.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def bucket(rows: int) -> int:
    """The number of rows of the graph that is used for this many rows."""
    return launch.next_power_of_two(rows) if rows <= 64 else -(-rows // 64) * 64
