"""Many processes, by PyTorch's own engine; the model files know nothing of it.

    torchrun --nproc-per-node 8 -m chumoku train recipe.toml

    ddp     every process has the whole model; gradients are averaged
    fsdp    every process keeps a part of each weight; blocks are put together when they run (FSDP2)

The processes share out each batch. The loss of each is divided by the tokens of all and multiplied by the number of
processes, because the engine divides by it: the gradient is that of one process with the whole batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from chumoku.data.batches import Share
from chumoku.errors import UsageError
from chumoku.nn.block import Block
from chumoku.nn.plain import plain, plain_formulas
from chumoku.training.objectives import Objective
from chumoku.training.precision import DTYPES, Cast
from chumoku.training.settings import TrainSettings


@dataclass(frozen=True)
class World:
    """Which process this is, among how many, and where it computes."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> Share:
        return Share(self.rank, self.size)

    def to_device(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch where it is computed."""
        if self.device.type != "cuda":
            return batch
        return {name: table.pin_memory().to(self.device, non_blocking=True) for name, table in batch.items()}

    def sum(self, *numbers: float) -> list[float]:
        """Each number added up over all processes."""
        if self.size == 1:
            return list(numbers)
        table = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(table)
        return table.tolist()

    def barrier(self) -> None:
        """Until everyone is here."""
        if self.size > 1:
            self.sum(1.0)


@contextlib.contextmanager
def join_world(settings: TrainSettings) -> Iterator[World]:
    """This process's place: alone, or among those that torchrun started."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    device = choose_device(settings.device)
    if size == 1:
        yield World(device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    # The others wait while the first prepares the corpus, however long that takes.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=4))
    try:
        yield World(device, rank, size)
    finally:
        dist.destroy_process_group()


def choose_device(name: str | None) -> torch.device:
    """The device that was asked for, or the fastest there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        known = device.type in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise UsageError(f"train.device: there is no device '{name}' here; choose cpu or cuda, or leave it out.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("train.device: this PyTorch sees no GPU. Choose cpu, or leave it out.")
    return device


def wrap(objective: Objective, settings: TrainSettings, world: World) -> nn.Module:
    """The objective as it runs: cast, shared among processes, compiled."""
    blocks = [module for module in objective.modules() if isinstance(module, Block)]
    if settings.activation_checkpointing:
        for block in blocks:
            block.forward = _with_checkpointing(block.forward)  # type: ignore[method-assign]
    sharding = world.size > 1 and settings.parallel == "fsdp"
    module: nn.Module = objective
    if sharding:
        _shard(objective, blocks, DTYPES[settings.precision])
    elif settings.precision != "float32":
        module = Cast(objective, DTYPES[settings.precision])
    if world.size > 1 and not sharding:
        module = DistributedDataParallel(module, gradient_as_bucket_view=True)
    if settings.compile:
        # Sentence pairs come in many shapes, windows in one.
        pairs = objective.model.config.kind == "encoder-decoder"
        module = torch.compile(module, dynamic=True if pairs else None)  # type: ignore[assignment]
    return module


def _with_checkpointing(run: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            # A GPU's backward pass has its own thread, which would not know whether plain formulas run.
            chosen = plain_formulas()
            kwargs["context_fn"] = lambda: (contextlib.nullcontext(), plain(chosen))
        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    return forward


def _shard(objective: nn.Module, blocks: list[Block], dtype: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(objective, mp_policy=policy)


@contextlib.contextmanager
def gradient_sync(module: nn.Module, *, now: bool) -> Iterator[None]:
    """Gradients of what runs inside are exchanged now, or kept until a later batch of the same step."""
    inner = getattr(module, "_orig_mod", module)  # beneath torch.compile
    if isinstance(inner, DistributedDataParallel) and not now:
        with inner.no_sync():
            yield
        return
    if isinstance(inner, FSDPModule):
        inner.set_requires_gradient_sync(now)
    yield


def gather(tensor: Tensor) -> Tensor:
    """A tensor put together from all processes' parts; everyone must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor | None:
    """This process's part of a divided tensor; None where it is not divided."""
    return tensor.to_local() if isinstance(tensor, DTensor) else None


def distribute_like(model: Tensor, value: Tensor) -> Tensor:
    """A whole tensor, divided as another is."""
    if not isinstance(model, DTensor):
        return value.to(model.device)
    return distribute_tensor(value.to(model.device), model.device_mesh, model.placements)
