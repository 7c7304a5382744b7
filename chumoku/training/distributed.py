"""Training on several processes with torch.distributed; the model code does not know about it.

    torchrun --nproc-per-node 8 -m chumoku train recipe.toml

    ddp     every process has the full model; gradients are averaged
    fsdp    every process keeps a shard of each weight; blocks are gathered when they run (FSDP2)

Each batch is divided among the processes. Each process divides its loss by the tokens of all processes and multiplies
it by their number, because PyTorch averages gradients: the result is the gradient of one process with the full batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
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
from chumoku.nn.gpu_kernels import TRITON
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.plain import plain, plain_formulas
from chumoku.training.compiler_fallbacks import register_fallbacks
from chumoku.training.objectives import Objective
from chumoku.training.objectives.token_prediction import token_loss
from chumoku.training.precision import DTYPES, Cast
from chumoku.training.settings import TrainSettings


@dataclass(frozen=True)
class World:
    """This process: its device, its rank, and the number of processes."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def is_single_gpu(self) -> bool:
        return self.size == 1 and self.device.type == "cuda"

    @property
    def share(self) -> Share:
        return Share(self.rank, self.size)

    def to_device(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch on this process's device."""
        if self.device.type != "cuda":
            return batch
        return {name: table.pin_memory().to(self.device, non_blocking=True) for name, table in batch.items()}

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over all processes."""
        if self.size == 1:
            return list(numbers)
        table = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(table)
        return table.tolist()

    def largest(self, number: Tensor) -> Tensor:
        """The maximum of this number over all processes, as a tensor on this process's device."""
        if self.size > 1:
            dist.all_reduce(number, dist.ReduceOp.MAX)
        return number

    def gather_rows(self, rows: Tensor) -> tuple[Tensor, int]:
        """The rows [n, …] of all processes, one process after another, and the place of this process's first row."""
        if self.size == 1:
            return rows, 0
        counts = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)], device=self.device))
        sizes = [int(count) for count in counts]
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        found = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return found, sum(sizes[: self.rank])

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            self.sum(1.0)


# Kept until the process ends. If DDP's reducer were the last owner of a group, its destructor would wait for gloo's
# threads with the GIL held, while such a thread may wait for the GIL to release the tensor of its last all-reduce.
_ended_groups: list[Any] = []


@contextlib.contextmanager
def join_world(settings: TrainSettings) -> Iterator[World]:
    """The world of this process: alone, or in the group that torchrun started."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    device = choose_device(settings.device)
    if size == 1:
        with single_cpu_thread(beside_gpu=device.type == "cuda"):
            yield World(device)
        return
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    # A long timeout, because the others wait while the main process prepares the corpus.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=4))
    try:
        with single_cpu_thread(beside_gpu=device.type == "cuda"):
            yield World(device, rank, size)
    finally:
        _ended_groups.append(dist.group.WORLD)
        dist.destroy_process_group()


@contextlib.contextmanager
def single_cpu_thread(*, beside_gpu: bool) -> Iterator[None]:
    """Beside a GPU, compute on the CPU with one thread: waking 16 threads to count a batch's labels took 16 ms."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if beside_gpu else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str | None) -> torch.device:
    """The named device, or the fastest available."""
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
        raise UsageError("train.device: PyTorch finds no GPU here. Choose cpu, or leave it out.")
    return device


def wrap(objective: Objective, settings: TrainSettings, world: World, *, fixed_shapes: bool = False) -> nn.Module:
    """The objective ready for training: with activation checkpointing, casting, DDP or FSDP, and torch.compile.

    fixed_shapes: all batches have one shape, as packed rows always have.
    """
    blocks = [module for module in objective.modules() if isinstance(module, Block)]
    if settings.packing and world.device.type == "cuda":
        _check_packing(settings)
    if settings.fp8_output:
        _check_fp8(objective, settings, world, fixed_shapes=fixed_shapes or settings.packing)
        objective.fp8_output = True
    sharding = world.size > 1 and settings.parallel == "fsdp"
    if settings.activation_checkpointing:
        for block in blocks:
            cast = settings.precision != "float32" and not sharding
            block.forward = _with_checkpointing(block, cast=cast)  # type: ignore[method-assign]
    module: nn.Module = objective
    if sharding:
        _shard(objective, blocks, DTYPES[settings.precision])
    elif settings.precision != "float32":
        # With several processes, gradients are sent as soon as each is computed. Pairs need all weights of a model; one
        # that is not needed would get a gradient of zeros.
        module = Cast(objective, DTYPES[settings.precision], together=world.size == 1 and settings.packing)
    if world.size > 1 and not sharding:
        module = DistributedDataParallel(module, gradient_as_bucket_view=True)
    if settings.compile and world.device.type == "cuda" and TRITON:
        register_fallbacks()
    if settings.compile and (settings.packing or fixed_shapes):
        # A step can be recorded once as a CUDA graph and replayed.
        replay = world.device.type == "cuda" and world.size == 1 and settings.gradient_accumulation == 1
        options = {"triton.cudagraphs": replay}
        module.forward = _compiled_for_training(module.forward, dynamic=False, options=options)
    elif settings.compile and objective.model.config.kind == "encoder-decoder":
        # Batches of pairs have many shapes. With sizes as variables, a whole model takes minutes to compile; one block
        # of each kind takes seconds, and the others reuse it.
        for block in blocks:
            block.forward = _compiled_for_training(block.forward, dynamic=True)  # type: ignore[method-assign]
        objective.token_loss = torch.compile(objective.token_loss, dynamic=True)
    elif settings.compile:
        module = torch.compile(module)  # type: ignore[assignment]
    return module


def _check_fp8(objective: Objective, settings: TrainSettings, world: World, *, fixed_shapes: bool) -> None:
    """Refuse train.fp8_output where the loss would be computed without it."""
    model = objective.model
    if settings.precision != "bf16" or not settings.compile or settings.plain or not fixed_shapes:
        raise UsageError(
            "train.fp8_output needs train.precision = bf16, train.compile = true and batches of one shape: texts, or "
            "packed pairs. Leave this key out."
        )
    if world.device.type != "cuda" or not TRITON or torch.cuda.get_device_capability(world.device) < (8, 9):
        raise UsageError("train.fp8_output needs an NVIDIA GPU with 8-bit floats: Ada, Hopper or later.")
    product = model.output_product(torch.empty(0, model.config.width, dtype=model.dtype, device=model.device))
    if model.config.width % 16 or product is None or objective.token_loss is not token_loss or objective.reads_logits:
        raise UsageError(
            "train.fp8_output needs a width that is a multiple of 16, and a loss of logits that are neither scaled nor "
            "capped. Leave this key out."
        )


def _check_packing(settings: TrainSettings) -> None:
    """Refuse packing on a GPU without its kernel: one call of attention for each sentence would be very slow."""
    if settings.precision == "float32":
        raise UsageError("train.packing on a GPU needs 16 bits: set train.precision to bf16 or fp16, or leave it out.")
    if not TRITON:
        raise UsageError("train.packing on a GPU needs Triton: pip install triton, or leave train.packing out.")


def _compiled_for_training(run: Any, *, dynamic: bool, options: dict[str, Any] | None = None) -> Any:
    """Compile `run` for training; in validation, whose shapes differ, it runs as it is."""
    compiled = torch.compile(run, dynamic=dynamic, options=options)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else run)(*args, **kwargs)

    return forward


def _with_checkpointing(block: Block, *, cast: bool) -> Any:
    """The block's forward with activation checkpointing. `cast`: its weights are replaced during the forward pass."""
    run = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            # The backward pass on a GPU runs in another thread, which does not inherit the plain-formulas setting.
            use_plain, weights = plain_formulas(), dict(block.named_parameters()) if cast else {}
            kwargs["context_fn"] = lambda: (contextlib.nullcontext(), _recomputing(block, weights, use_plain=use_plain))
        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    return forward


@contextlib.contextmanager
def _recomputing(block: Block, weights: Mapping[str, Tensor], *, use_plain: bool) -> Iterator[None]:
    """The state in which the backward pass computes a block again: the forward pass's cast weights and formulas."""
    owners = {name: block.get_submodule(name.rpartition(".")[0])._parameters for name in weights}
    before = {name: owners[name][name.rpartition(".")[2]] for name in weights}
    try:
        for name, tensor in weights.items():
            owners[name][name.rpartition(".")[2]] = tensor  # type: ignore[assignment]
        with plain(use_plain):
            yield
    finally:
        for name, parameter in before.items():
            owners[name][name.rpartition(".")[2]] = parameter


def _shard(objective: nn.Module, blocks: list[Block], dtype: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(objective, mp_policy=policy)


@contextlib.contextmanager
def gradient_sync(module: nn.Module, *, now: bool) -> Iterator[None]:
    """Synchronize gradients across processes in the block if `now`; else only accumulate them locally."""
    inner = unwrap_compiled(module)
    if isinstance(inner, DistributedDataParallel) and not now:
        with inner.no_sync():
            yield
        return
    if isinstance(inner, FSDPModule):
        inner.set_requires_gradient_sync(now)
    yield


def gather(tensor: Tensor) -> Tensor:
    """The full tensor, gathered from all processes; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor | None:
    """This process's shard of a tensor; None if the tensor is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else None


def distribute_like(like: Tensor, value: Tensor) -> Tensor:
    """A full tensor on the device of `like`, and sharded like it."""
    if not isinstance(like, DTensor):
        return value.to(like.device)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
