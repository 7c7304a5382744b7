"""Loss curves on a GPU: the compiled step with our kernels, beside the formulas in PyTorch, on the same batches.

    python benchmarks/loss_curves.py TEXT [--steps 2000] [--batch 8] [--runs fast fp8 plain seed] [--seeds 1]

fast     the trainer's step as `benchmarks/train_gpu.py` measures it: bf16, compiled, our kernels
fp8      the same with `train.fp8_output`
plain    the same step in bf16 without compiling and without our kernels (`chumoku.plain`)
seed     the fast step from other initial weights and other batches, to show the noise

GPT-2 124M reads the bytes of TEXT in windows of 1,024. Prints one JSON line for each seed: for each run, the mean loss
of every tenth of the steps (nats per byte), the largest distance of the others from `plain` in them, seconds a step.
All runs of a seed except `seed` have the same initial weights and batches.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from contextlib import nullcontext
from pathlib import Path

import torch

import chumoku
from chumoku.config import parse_settings
from chumoku.training.distributed import World, wrap
from chumoku.training.objectives import Objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.precision import fast_kernels
from chumoku.training.settings import OptimizerSettings, TrainSettings

DEVICE, LENGTH, PEAK, WARMUP = torch.device("cuda"), 1024, 6e-4, 100
# What is added to the seed, whether with compiled kernels, and whether with train.fp8_output.
RUNS = {"fast": (0, True, False), "fp8": (0, True, True), "plain": (0, False, False), "seed": (1000, True, False)}
NO_DROPOUT = {"dropout": {"embedding": 0.0, "attention": 0.0, "sublayer": 0.0}}


def learning_rate(step: int, steps: int) -> float:
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def train(
    data: torch.Tensor, *, steps: int, batch: int, seed: int, fast: bool, fp8: bool = False
) -> tuple[list[float], float]:
    """The loss of each step, and seconds per step without the first ten."""
    torch.manual_seed(seed)
    model = chumoku.build(chumoku.preset("gpt2", vocabulary=50304, **NO_DROPOUT), device=DEVICE)
    settings = parse_settings(TrainSettings, {"precision": "bf16", "compile": fast, "fp8_output": fp8})
    module = wrap(Objective(model), settings, World(DEVICE), fixed_shapes=True).train()
    optimizer = Optimizer(model, OptimizerSettings(learning_rate=PEAK))
    chance = torch.Generator().manual_seed(seed)
    losses, start = [], 0.0
    for step in range(steps):
        starts = torch.randint(len(data) - LENGTH - 1, (batch, 1), generator=chance).to(DEVICE)
        windows = data[starts + torch.arange(LENGTH + 1, device=DEVICE)].long()
        optimizer.zero_grad()
        with fast_kernels("bf16") if fast else nullcontext(), nullcontext() if fast else chumoku.plain():
            loss = module({"tokens": windows[:, :-1].contiguous(), "labels": windows[:, 1:].contiguous()})
            (loss / windows[:, 1:].numel()).backward()
        norm = optimizer.grad_norm()
        optimizer.unscale_and_clip(norm, 1.0)
        optimizer.step(learning_rate(step, steps))
        losses.append(loss.detach() / windows[:, 1:].numel())
        if step == 9:
            torch.cuda.synchronize()
            start = time.perf_counter()
    found = torch.stack(losses).tolist()
    return found, (time.perf_counter() - start) / (steps - 10)


def tenths(losses: list[float]) -> list[float]:
    size = len(losses) // 10
    return [round(sum(losses[i * size : (i + 1) * size]) / size, 4) for i in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    chosen = parser.parse_args()
    data = torch.frombuffer(bytearray(chosen.text.read_bytes()), dtype=torch.uint8).to(DEVICE)
    for seed in chosen.seeds:
        print(json.dumps(compare(data, chosen, seed)), flush=True)


def compare(data: torch.Tensor, chosen: argparse.Namespace, seed: int) -> dict[str, object]:
    """The curves of all runs with one seed."""
    result: dict[str, object] = {"benchmark": "loss_curves", "device": torch.cuda.get_device_name(), "seed": seed}
    curves = {}
    for name in chosen.runs:
        added, fast, fp8 = RUNS[name]
        losses, seconds = train(data, steps=chosen.steps, batch=chosen.batch, seed=seed + added, fast=fast, fp8=fp8)
        curves[name] = tenths(losses)
        result[name] = {"tenths": curves[name], "last_100": sum(losses[-100:]) / 100, "s_per_step": round(seconds, 4)}
        torch.cuda.empty_cache()
    for name in chosen.runs if "plain" in curves else ():
        apart = [abs(a - b) for a, b in zip(curves[name], curves["plain"], strict=True)]
        result[f"{name}_from_plain"] = round(max(apart), 4)
    return result


if __name__ == "__main__":
    main()
