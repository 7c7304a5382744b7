"""From a GGUF file to the first word: `chumoku.load` and `generate`, beside llama.cpp in the same run.

    pip install 'chumoku[bench]'
    python benchmarks/open.py SmolLM2-135M-Instruct.Q4_1.gguf [--rounds 9]

Each turn opens the file anew, with its tokenizer, reads a prompt of a few tokens and chooses the likeliest next one,
both with --threads threads. What does not belong to opening a file happens before, on both sides: importing the
libraries, and compiling ours, once for a machine. The file is in the system's memory, since an unmeasured turn has read
it. Prints one JSON line: milliseconds (quartiles), and how many times as long we take, turn by turn (quartiles).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch
from clock import ratio

import chumoku

PROMPT = "The capital of France is"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=2)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    import llama_cpp

    said: dict[str, str] = {}

    def ours() -> object:
        model = chumoku.load(chosen.file)
        said["ours"] = model.generate(PROMPT, max_new_tokens=1, temperature=0)
        return model

    def theirs() -> object:
        model = llama_cpp.Llama(
            str(chosen.file), n_ctx=512, n_threads=chosen.threads, n_threads_batch=chosen.threads, verbose=False
        )
        model.eval(model.tokenize(PROMPT.encode(), add_bos=False))
        said["llama.cpp"] = model.detokenize([model.sample(temp=0)]).decode()
        return model

    seconds: dict[str, list[float]] = {"ours": [], "llama.cpp": []}
    for number in range(chosen.rounds + 1):
        for name, contestant in (("ours", ours), ("llama.cpp", theirs)):
            start = time.perf_counter()
            model = contestant()
            if number:
                seconds[name].append(time.perf_counter() - start)
            del model
            gc.collect()  # giving memory back is no part of it, and must not fall into the other's turn
    found = {
        "threads": chosen.threads,
        "torch": torch.__version__,
        "milliseconds": {
            name: [round(value * 1e3, 1) for value in statistics.quantiles(times, n=4)]
            for name, times in seconds.items()
        },
        "times_as_long": ratio(seconds["ours"], seconds["llama.cpp"]),
        "said": said,
    }
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
