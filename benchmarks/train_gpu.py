"""Training on a GPU in bf16: tokens per second, and the share of the speed of a matrix product alone.

    python benchmarks/train_gpu.py [--shape gpt2] [--batch 64] [--transformers] [--nanogpt model.py] [--fp8] [--profile]

share = (6 N + 12 L D T) · tokens/s / (FLOP/s of an 8192³ product in bf16), all in one run; N without position tables.
All T keys are counted, though causal attention skips half of them. `ours` is the trainer's own step: objective, cast,
compile, clipping, fused AdamW, and the loss of each step, which is read when the gradients of the next are queued;
`ours fp8`, with `--fp8`, has `train.fp8_output`. The peers, for `gpt2` only, are compiled, with autocast; `--nanogpt`
takes nanoGPT's model.py. Their loss is never read, because nanoGPT's own loop reads it every ten steps only. All take
ten steps in turns. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import chumoku
from chumoku.config import parse_settings
from chumoku.data.batches import IGNORE
from chumoku.models.config import ModelConfig
from chumoku.training.distributed import World, wrap
from chumoku.training.log import measure_matmul_flops
from chumoku.training.objectives import Objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.precision import fast_kernels
from chumoku.training.settings import OptimizerSettings, TrainSettings

DEVICE = torch.device("cuda")
WARMUP, ROUNDS, STEPS = 5, 12, 10  # steps, and rounds of so many steps
MASKED = 0.15
Batch = dict[str, torch.Tensor]
NO_DROPOUT = {"dropout": {"embedding": 0.0, "attention": 0.0, "sublayer": 0.0}}


class Shape(NamedTuple):
    preset: str
    batch: int
    length: int
    changes: dict[str, Any]

    @property
    def config(self) -> ModelConfig:
        return chumoku.preset(self.preset, **NO_DROPOUT, **self.changes)


TINY_LLAMA = {
    **{"vocabulary": 32000, "width": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "feedforward_width": 5632},
    **{"rotary": {"base": 10000.0, "scaling": "none", "factor": 1.0}, "context": 2048, "tie_output": False},
}
SHAPES = {
    "gpt2": Shape("gpt2", 64, 1024, {"vocabulary": 50304}),  # 124 M
    "gpt2-medium": Shape("gpt2-medium", 32, 1024, {"vocabulary": 50304}),  # 355 M
    "llama-1.1b": Shape("llama-1b", 8, 2048, TINY_LLAMA),
    "bert-base": Shape("bert-base", 128, 512, {}),
}


def make_batch(config: ModelConfig, shape: Shape) -> Batch:
    size = (shape.batch, shape.length)
    batch = {name: torch.randint(config.vocabulary, size, device=DEVICE) for name in ("tokens", "labels")}
    if config.kind == "encoder":
        batch["labels"][torch.rand(size, device=DEVICE) > MASKED] = IGNORE
    return batch


def ours(config: ModelConfig, batch: Batch, *, fp8: bool = False) -> Callable[[], None]:
    model = chumoku.build(config, device=DEVICE)
    train = parse_settings(TrainSettings, {"precision": "bf16", "compile": True, "fp8_output": fp8})
    module = wrap(Objective(model), train, World(DEVICE), fixed_shapes=True).train()
    optimizer = Optimizer(model, OptimizerSettings(learning_rate=6e-4))
    tokens = int((batch["labels"] != IGNORE).sum())
    last_numbers: list[torch.Tensor] = []

    def step() -> None:
        """Raises FloatingPointError if the step before was not finite, and so not applied: its speed is no result."""
        optimizer.zero_grad()
        with fast_kernels("bf16"):
            loss = module(batch)
            (loss / tokens).backward()
        if last_numbers:
            numbers = last_numbers.pop().tolist()
            if numbers[2]:
                raise FloatingPointError(
                    f"A step was not finite: loss {numbers[0]}, norm of the gradient {numbers[1]}."
                )
        norm = optimizer.grad_norm()
        bad = (~(loss.detach() + norm).isfinite()).float()
        optimizer.unscale_and_clip(norm, 1.0)
        optimizer.step(6e-4, skip=bad)
        last_numbers.append(torch.stack([loss.detach(), norm, bad]))

    return step


def peer(model: torch.nn.Module, loss_of: Callable[[Batch], torch.Tensor], batch: Batch) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_gpt2(config: ModelConfig, batch: Batch) -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=config.vocabulary, attn_implementation="sdpa", **dropout)).to(DEVICE)

    def loss_of(batch: Batch) -> torch.Tensor:
        logits = model(batch["tokens"], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    return peer(model, torch.compile(loss_of), batch)


def nanogpt(path: Path, config: ModelConfig, batch: Batch) -> Callable[[], None]:
    spec = importlib.util.spec_from_file_location("nanogpt", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file.")
    module = sys.modules["nanogpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(module.GPTConfig(vocab_size=config.vocabulary, dropout=0.0, bias=True)).to(DEVICE)
    compiled = torch.compile(model)
    return peer(model, lambda batch: compiled(batch["tokens"], batch["labels"])[1], batch)


def seconds(step: Callable[[], None]) -> float:
    """Seconds a step, of STEPS steps."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def print_profile(step: Callable[[], None]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    print(f"{sum(row.self_device_time_total for row in rows) / 1e3:8.2f} ms in all kernels", file=sys.stderr)
    for row in rows[:30]:
        print(f"{row.self_device_time_total / 1e3:8.2f} ms {row.count:4d} × {row.key[:110]}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    shape = SHAPES[chosen.shape]
    shape = shape._replace(batch=chosen.batch or shape.batch)
    config, tokens = shape.config, shape.batch * shape.length
    batch = make_batch(config, shape)
    parameters = chumoku.build(config, device="meta").named_parameters()
    matrices = sum(each.numel() for name, each in parameters if "position" not in name)
    if not config.tie_output:
        matrices -= config.vocabulary * config.width  # the embedding is read, not multiplied
    flops = 6 * matrices + 12 * config.layers * config.width * shape.length
    contestants = {"ours": lambda: ours(config, batch)}
    if chosen.fp8:
        contestants["ours fp8"] = lambda: ours(config, batch, fp8=True)
    if chosen.shape == "gpt2" and chosen.transformers:
        contestants["transformers"] = lambda: transformers_gpt2(config, batch)
    if chosen.shape == "gpt2" and chosen.nanogpt:
        contestants["nanogpt"] = lambda: nanogpt(chosen.nanogpt, config, batch)
    steps = {name: make() for name, make in contestants.items()}
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(seconds(step))
    if chosen.profile:
        print_profile(steps["ours fp8" if chosen.fp8 else "ours"])
    rate = measure_matmul_flops(DEVICE, torch.bfloat16)
    found: dict[str, object] = {"torch": torch.__version__, "shape": chosen.shape, "batch": [shape.batch, shape.length]}
    found |= {"flops_a_token": flops, "matrix_tflops": round(rate / 1e12)}
    for name, each in times.items():
        speeds = sorted(tokens / one for one in each)
        found[name] = {
            "tokens_per_second": round(statistics.median(speeds)),
            "spread": [round(speeds[0]), round(speeds[-1])],
            "share_of_matrix_rate": round(statistics.median(speeds) * flops / rate, 4),
        }
    found["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
