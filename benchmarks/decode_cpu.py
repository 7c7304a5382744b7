"""Decoding on this machine's processor, beside transformers, CTranslate2 and llama.cpp in the same run.

    pip install 'chumoku[bench]'
    python benchmarks/decode_cpu.py [--rounds 5] [--only translator|decoder]

    translator   6 + 6 layers, D = 512, vocabulary 16,000; 32 sentences of 25 tokens → 32 tokens each; greedy and beam 4
    decoder      SmolLM2-135M's shape, batch 1: a prompt of 128 tokens read, then 64 tokens one by one, greedy

Weights are random, as speed does not ask what they say; ends are forbidden, so that everyone writes the same number of
tokens. Contestants take turns. Prints one JSON line: tokens a second (quartiles), how many times faster we are than a
peer turn by turn (quartiles), and what share of mere reading's speed it is to read every weight once for each token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch
from clock import turns
from decode_peers import (
    BEGIN,
    END,
    NEW,
    PROMPT,
    SENTENCES,
    SOURCE,
    TARGET,
    VOCABULARY,
    Contestants,
    ctranslate2_translators,
    llama_cpp,
    transformers_decoder,
    transformers_translator,
)

import chumoku
from chumoku.decoding.beam import search
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.models.precision import to_precision


def our_translators(source: torch.Tensor) -> Contestants:
    base = chumoku.build(chumoku.preset("transformer-base", vocabulary=VOCABULARY))

    def run(model: torch.nn.Module, beam: int) -> Callable[[], object]:
        return lambda: search(model, source, begin=BEGIN, end=END, beam=beam, limit=TARGET, min_new_tokens=TARGET - 1)

    models = {"float32": base, "bf16": to_precision(base, "bf16"), "int8": to_precision(base, "int8")}
    return {f"ours {name} beam {beam}": run(model, beam) for name, model in models.items() for beam in (1, 4)}


def our_decoders() -> tuple[Contestants, dict[str, Callable[[], object]]]:
    base = chumoku.build(chumoku.preset("smollm2-135m"))
    prompt = [number % 49000 for number in range(7, 7 + PROMPT)]
    steps: Contestants = {}
    reads: Contestants = {}
    for name in ("float32", "bf16", "int8", "int4"):
        engine = open_engine(to_precision(base, name), rows=1, capacity=PROMPT + NEW + 1)
        steps[f"ours {name}"], reads[f"ours {name}"] = contestants(engine, prompt)
    plain = TorchEngine(base, rows=1, capacity=PROMPT + NEW + 1)
    steps["ours float32, PyTorch alone"], reads["ours float32, PyTorch alone"] = contestants(plain, prompt)
    return steps, reads


def contestants(engine: object, prompt: list[int]) -> tuple[Callable[[], object], Callable[[], object]]:
    engine.add_rows(1)
    engine.prefill([prompt])

    def step() -> None:
        engine.truncate([PROMPT])
        token = torch.tensor([7])
        for _ in range(NEW):
            token = engine.step(token).argmax(-1)

    def read() -> None:
        engine.truncate([0])
        engine.prefill([prompt])

    return step, read


def present(name: str, make: Callable[[], object], missing: list[str]) -> object | None:
    """What a peer brings, or None and a word on why not."""
    try:
        return make()
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        missing.append(f"{name}: {str(error)[:200]}")
        return None


def rates(seconds: dict[str, list[float]], tokens: int) -> dict[str, list[float]]:
    """Tokens a second: lower quartile, median, upper quartile."""
    return {
        name: [round(tokens / value, 1) for value in reversed(statistics.quantiles(times, n=4))]
        for name, times in seconds.items()
    }


def against(seconds: dict[str, list[float]], ours: str, peer: str) -> list[float] | None:
    """How many times faster we are, turn by turn: quartiles."""
    if ours not in seconds or peer not in seconds:
        return None
    pairs = [b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)]
    return [round(value, 3) for value in statistics.quantiles(pairs, n=4)]


def reading(megabytes: int) -> float:
    """GB/s of reading so many megabytes again and again, with all threads: the limit of one token at a time."""
    numbers = torch.ones(megabytes << 18)
    return round(numbers.nbytes / min(turns({"sum": numbers.sum}, rounds=20)["sum"]) / 1e9, 1)


def translator(rounds: int, missing: list[str]) -> dict[str, object]:
    source = torch.randint(3, VOCABULARY, (SENTENCES, SOURCE), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = our_translators(source)
        for name, make in (
            ("transformers", lambda: transformers_translator(source)),
            ("CTranslate2", lambda: ctranslate2_translators(source, Path(folder))),
        ):
            all_of_them |= present(name, make, missing) or {}
        seconds = turns(all_of_them, rounds=rounds)
    pairs = [("float32", "transformers float32"), ("float32", "CTranslate2 float32"), ("int8", "CTranslate2 int8")]
    return {
        "tokens_per_second": rates(seconds, SENTENCES * TARGET),
        "times_faster": {
            f"{ours} / {peer} beam {beam}": against(seconds, f"ours {ours} beam {beam}", f"{peer} beam {beam}")
            for ours, peer in pairs
            for beam in (1, 4)
        },
    }


def decoder(rounds: int, missing: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        steps, reads = our_decoders()
        for name, make in (("transformers", transformers_decoder), ("llama.cpp", lambda: llama_cpp(Path(folder)))):
            more = present(name, make, missing) or ({}, {})
            steps, reads = steps | more[0], reads | more[1]
        # Reading leaves each at the end of the prompt, where its steps begin.
        read_seconds = turns(reads, rounds=rounds)
        seconds = turns(steps, rounds=rounds)
    parameters = chumoku.count(chumoku.preset("smollm2-135m")).parameters
    sizes = {"float32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.625}
    limit = {name: reading(int(parameters * size) >> 20) for name, size in sizes.items()}
    median = {name: statistics.median(times) / NEW for name, times in seconds.items()}
    return {
        "tokens_per_second": rates(seconds, NEW),
        "prompt_tokens_per_second": rates(read_seconds, PROMPT),
        "times_faster": {
            f"{ours} / {peer}": against(seconds, f"ours {ours}", peer)
            for ours, peer in (("int4", "llama.cpp Q4_1"), ("float32", "transformers float32"))
        },
        "read_gb_per_second": limit,
        "share_of_reading": {
            name: round(parameters * size / median[f"ours {name}"] / 1e9 / limit[name], 3)
            for name, size in sizes.items()
        },
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=("translator", "decoder"))
    chosen = options.parse_args()
    missing: list[str] = []
    parts = {"translator": translator, "decoder": decoder}
    found = {name: part(chosen.rounds, missing) for name, part in parts.items() if chosen.only in (None, name)}
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, **found, "missing": missing}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
