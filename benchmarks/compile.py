"""Every preset through torch.compile(fullgraph=True) with inductor on the CPU, depth 2, own widths and vocabulary.

    python benchmarks/compile.py

Prints one JSON line: seconds to compile, largest difference from eager, compiled / eager time.
"""

from __future__ import annotations

import json
import time

import torch
from clock import ratio, time_alternately

import chumoku
from chumoku.models.presets import PRESETS


def measure(name: str) -> dict[str, object]:
    torch.compiler.reset()
    config = chumoku.preset(name, layers=2)
    model = chumoku.build(config)
    compiled = torch.compile(model, fullgraph=True)
    ids = torch.randint(config.vocabulary, (2, 64))
    arguments = (ids, ids) if config.kind == "encoder-decoder" else (ids,)
    with torch.inference_mode():
        start = time.perf_counter()
        output = compiled(*arguments).hidden
        seconds = time.perf_counter() - start
        difference = float((output - model(*arguments).hidden).abs().max())
        timed = time_alternately(
            {"compiled": lambda: compiled(*arguments), "eager": lambda: model(*arguments)}, rounds=9
        )
    return {
        "compile_s": round(seconds, 1),
        "difference": float(f"{difference:.1e}"),
        "compiled_over_eager": ratio(timed["compiled"], timed["eager"]),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({"benchmark": "compile", "torch": torch.__version__, **{name: measure(name) for name in PRESETS}}))
