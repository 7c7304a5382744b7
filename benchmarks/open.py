"""Time from opening a GGUF file to the first token, compared with llama.cpp in the same run.

    pip install 'chumoku[bench]'
    python benchmarks/open.py SmolLM2-135M-Instruct.Q4_1.gguf [--rounds 9]

Each round opens the file with its tokenizer, processes a short prompt and generates one token greedily, both with
--threads threads. Imports and the compilation of our library are not measured. The file is in the page cache after an
unmeasured warm-up round. Prints one JSON line: milliseconds (quartiles), and our time / llama.cpp's time per round.
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
        for name, function in (("ours", ours), ("llama.cpp", theirs)):
            start = time.perf_counter()
            model = function()
            if number:
                seconds[name].append(time.perf_counter() - start)
            del model
            gc.collect()  # freeing memory is not measured, and must not happen in the other's time
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
