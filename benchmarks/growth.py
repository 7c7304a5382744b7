"""How cost grows with length and batch size: milliseconds, and the exponent from each size to the next.

    python benchmarks/growth.py [--device cuda|cpu] [--longest 32768] [--largest 256] [--rounds 5] [--past 1024]
    python benchmarks/growth.py --device cpu --layers 1 --rounds 1 --past 256        on a slow or busy CPU

prompt    `prefill` of one prompt of T tokens
step      the next token after these T tokens
batch     the next token of B rows, each after `--past` tokens

exponent = log(cost ratio) / log(size ratio): 0 is constant, 1 linear, 2 quadratic. On a GPU the model is a Llama of
1.1 B in bf16, on a CPU SmolLM2-135M's shape in int8 (`--layers` of its 30), both with random weights and the engine
that `generate` uses. Every figure is the median of `--rounds` after one warm-up; on a CPU it is the processor time of
all threads, which grows with the work and not with that of other programs. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import chumoku
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.models.model import DecoderModel
from chumoku.models.precision import to_precision

LLAMA = {
    **{"kind": "decoder", "vocabulary": 32000, "width": 2048, "layers": 22, "heads": 32, "kv_heads": 4},
    **{"feedforward_width": 5632, "feedforward": "swiglu", "norm": "rms", "position": "rotary", "pairing": "half"},
    **{"bias": False, "tie_output": False},
}


def build(device: str, longest: int, layers: int) -> DecoderModel:
    if device == "cuda":
        config = chumoku.ModelConfig(**LLAMA, context=longest + 8)
        return chumoku.build(config, device=torch.device("cuda"), dtype=torch.bfloat16)
    return to_precision(chumoku.build(chumoku.preset("smollm2-135m", layers=layers, context=longest + 8)), "int8")


def milliseconds(run: Callable[[], object], before: Callable[[], object], rounds: int) -> float:
    """The median time of `run`; `before` is called before each and not counted."""
    times = []
    for number in range(rounds + 1):
        before()
        start = read_clock()
        run()
        if number:
            times.append((read_clock() - start) * 1e3)
    return round(statistics.median(times), 3)


def read_clock() -> float:
    """Seconds: when all work on the GPU is done, or else the processor time of all threads."""
    if not torch.cuda.is_initialized():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def exponents(sizes: Sequence[int], costs: Sequence[float]) -> list[float]:
    pairs = zip(zip(sizes, costs, strict=True), zip(sizes[1:], costs[1:], strict=False), strict=False)
    return [round(math.log(more / less) / math.log(large / small), 2) for (small, less), (large, more) in pairs]


def tokens_of(model: DecoderModel, count: int) -> list[int]:
    return torch.randint(model.config.vocabulary, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def restart(engine: Engine) -> None:
    engine.select_rows([])
    engine.add_rows(1)


def lengths(model: DecoderModel, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    engine = open_engine(model, rows=1, capacity=max(sizes) + 8)
    token = torch.zeros(1, dtype=torch.int64, device=model.device)
    prompt, step = [], []
    for size in sizes:
        text = [tokens_of(model, size)]
        prompt.append(milliseconds(lambda text=text: engine.prefill(text), lambda: restart(engine), rounds))
        step.append(milliseconds(lambda: engine.step(token), lambda size=size: engine.truncate([size]), rounds))
    found: dict[str, Any] = {"tokens": list(sizes), "prompt_ms": prompt, "prompt_exponent": exponents(sizes, prompt)}
    return found | {"step_ms": step, "step_exponent": exponents(sizes, step)}


def batches(model: DecoderModel, sizes: Sequence[int], rounds: int, past: int) -> dict[str, Any]:
    costs = []
    text = tokens_of(model, past)
    for size in sizes:
        engine = open_engine(model, rows=size, capacity=past + 8)
        engine.add_rows(size)
        for row in range(size):
            engine.prefill([text], first=row)
        token = torch.zeros(size, dtype=torch.int64, device=model.device)
        restart = [past] * size
        run, before = (lambda e=engine, t=token: e.step(t)), (lambda e=engine, r=restart: e.truncate(r))
        costs.append(milliseconds(run, before, rounds))
        del engine
    return {"rows": list(sizes), "past": past, "step_ms": costs, "exponent": exponents(sizes, costs)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--largest", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--past", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=30, help="of the model on a CPU")
    chosen = parser.parse_args()
    model = build(chosen.device, chosen.longest, chosen.layers)
    sizes = [1024 << i for i in range(20) if 1024 << i <= chosen.longest]
    rows = [4**i for i in range(10) if 4**i <= chosen.largest]
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    result: dict[str, object] = {"benchmark": "growth", "device": device, "torch": torch.__version__}
    with torch.inference_mode():
        result |= {"length": lengths(model, sizes, chosen.rounds)}
        result |= {"batch": batches(model, rows, chosen.rounds, chosen.past)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
