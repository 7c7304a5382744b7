"""Training GPT-2 124M on a GPU: tokens per second, and the share of the speed of a matrix product alone.

    python benchmarks/train_gpu.py [--batch 64] [--peer]

share = (6 N + 12 L D T) · tokens/s / (FLOP/s of an 8192³ product in bf16), all in one run. It uses the trainer's
own step: objective, cast, compile, clipping, fused AdamW. `--peer` times transformers' GPT-2, compiled, with autocast.
Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import chumoku
from chumoku.config import parse_settings
from chumoku.training.distributed import World, wrap
from chumoku.training.log import measure_matmul_flops
from chumoku.training.objectives import Objective
from chumoku.training.optimizer import Optimizer
from chumoku.training.settings import OptimizerSettings, TrainSettings

DEVICE = torch.device("cuda")
LENGTH, VOCABULARY, ROUNDS = 1024, 50304, 8
NO_DROPOUT = {"embedding": 0.0, "attention": 0.0, "sublayer": 0.0}


def step_of(module: torch.nn.Module, optimizer: Optimizer, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    tokens = batch["labels"].numel()

    def step() -> None:
        optimizer.zero_grad()
        (module(batch) / tokens).backward()
        norm = optimizer.grad_norm()
        norm.item()  # the trainer checks every norm before it applies a step
        optimizer.unscale_and_clip(norm, 1.0)
        optimizer.step(6e-4)

    return step


def ours(batch: dict[str, torch.Tensor], **settings: object) -> Callable[[], None]:
    config = chumoku.preset("gpt2", vocabulary=VOCABULARY, dropout=NO_DROPOUT)
    model = chumoku.build(config, device=DEVICE)
    train = parse_settings(TrainSettings, {"precision": "bf16", "compile": True, **settings})
    module = wrap(Objective(model), train, World(DEVICE)).train()
    return step_of(module, Optimizer(model, OptimizerSettings(learning_rate=6e-4)), batch)


def peer(batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, attn_implementation="sdpa", **dropout)).to(DEVICE)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                logits = self.model(batch["tokens"], use_cache=False).logits
                return torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"
                )

    return step_of(torch.compile(Loss()), Optimizer(model, OptimizerSettings(learning_rate=6e-4)), batch)


def seconds(step: Callable[[], None]) -> list[float]:
    for _ in range(4):
        step()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peer", action="store_true")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    shape = (chosen.batch, LENGTH)
    batch = {name: torch.randint(50257, shape, device=DEVICE) for name in ("tokens", "labels")}
    config = chumoku.preset("gpt2", vocabulary=VOCABULARY)
    matrices = sum(p.numel() for n, p in chumoku.build(config, device="meta").named_parameters() if "position" not in n)
    flops = 6 * matrices + 12 * config.layers * config.width * LENGTH
    contestants = {"ours": lambda: ours(batch)} | ({"transformers": lambda: peer(batch)} if chosen.peer else {})
    found: dict[str, object] = {"torch": torch.__version__, "batch": chosen.batch, "flops_a_token": flops}
    for name, make in contestants.items():
        step = make()
        times = seconds(step)
        rate = measure_matmul_flops(DEVICE, torch.bfloat16)
        speeds = sorted(chosen.batch * LENGTH / one for one in times)
        found[name] = {
            "tokens_per_second": round(statistics.median(speeds)),
            "spread": [round(speeds[0]), round(speeds[-1])],
            "share_of_matrix_rate": round(statistics.median(speeds) * flops / rate, 4),
            "matrix_tflops": round(rate / 1e12),
        }
        del step
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    found["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
