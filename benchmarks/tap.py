"""Cost of taps while nothing is recorded: one decoding step and one forward pass, with and without taps.

    python benchmarks/tap.py

Prints one JSON line. The ratio is noisy; `bound` is exact: number of taps × seconds per tap / seconds per pass.
"""

from __future__ import annotations

import json
import timeit

import torch
from clock import ratio, time_alternately

import chumoku
from chumoku.models import model as model_module
from chumoku.models import stack
from chumoku.nn import attention, block, feedforward, tap

HOLDERS = (attention, block, feedforward, stack, model_module)


def without_taps(run):
    """The same function with every tap replaced by the identity."""

    def replaced():
        for holder in HOLDERS:
            holder.tap = lambda module, name, tensor: tensor
        attention.is_recorded = lambda module, *names: False
        try:
            run()
        finally:
            for holder in HOLDERS:
                holder.tap = tap.tap
            attention.is_recorded = tap.is_recorded

    return replaced


def measure(config: chumoku.ModelConfig, length: int, *, repeat: int) -> dict[str, object]:
    model = chumoku.build(config)
    ids = torch.randint(config.vocabulary, (1, length))

    def run():
        for _ in range(repeat):
            model(ids)

    with torch.inference_mode():
        seconds = time_alternately({"with": run, "without": without_taps(run)}, rounds=41)
    number = 100_000
    one_tap = min(timeit.repeat(lambda: tap.tap(model, "logits", ids), number=number, repeat=5)) / number
    taps = len(chumoku.addresses(model)) + config.layers
    per_pass = sorted(seconds["with"])[len(seconds["with"]) // 2] / repeat
    return {
        "ratio": ratio(seconds["with"], seconds["without"]),
        "bound": round(taps * one_tap / per_pass, 6),
        "taps": taps,
        "nanoseconds_a_tap": round(one_tap * 1e9, 1),
        "milliseconds_a_pass": round(per_pass * 1e3, 3),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    result = {
        "benchmark": "tap",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tiny_one_token": measure(chumoku.preset("tiny-decoder"), 1, repeat=50),
        "gpt2_one_token": measure(chumoku.preset("gpt2"), 1, repeat=1),
        "gpt2_128_tokens": measure(chumoku.preset("gpt2"), 128, repeat=1),
    }
    print(json.dumps(result))
