"""Decoding on a CPU, compared with transformers, CTranslate2 and llama.cpp in the same run.

    pip install 'chumoku[bench]'
    python benchmarks/decode_cpu.py [--rounds 5] [--only translator|decoder|prompts]

    translator   6 + 6 layers, D = 512, vocabulary 16,000; 32 sentences of 25 tokens → 32 tokens each; greedy and beam 4
    decoder      SmolLM2-135M's shape, batch 1: a prompt of 128 tokens, then 64 tokens one by one, greedy
    prompts      the same shape: prompts of 256 and 2,000 tokens, beside transformers in bf16

Weights are random, because speed does not depend on them; the end token is forbidden, so that all programs generate the
same number of tokens. They run alternately. Prints one JSON line: tokens per second (quartiles), how many times faster
we are than each peer (quartiles), and the share of the read bandwidth for reading every weight once per token.
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
from clock import time_alternately
from decode_peers import (
    BEGIN,
    END,
    NEW,
    PROMPT,
    PROMPTS,
    SENTENCES,
    SOURCE,
    TARGET,
    VOCABULARY,
    Functions,
    ctranslate2_translators,
    llama_cpp,
    transformers_decoder,
    transformers_prompts,
    transformers_translator,
)

import chumoku
from chumoku.decoding.beam import search
from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.models.precision import to_precision


def our_translators(source: torch.Tensor) -> Functions:
    base = chumoku.build(chumoku.preset("transformer-base", vocabulary=VOCABULARY))

    def run(model: torch.nn.Module, beam: int) -> Callable[[], object]:
        return lambda: search(model, source, begin=BEGIN, end=END, beam=beam, limit=TARGET, min_new_tokens=TARGET - 1)

    models = {"float32": base, "bf16": to_precision(base, "bf16"), "int8": to_precision(base, "int8")}
    return {f"ours {name} beam {beam}": run(model, beam) for name, model in models.items() for beam in (1, 4)}


def our_decoders() -> tuple[Functions, dict[str, Callable[[], object]]]:
    base = chumoku.build(chumoku.preset("smollm2-135m"))
    prompt = [number % 49000 for number in range(7, 7 + PROMPT)]
    steps: Functions = {}
    reads: Functions = {}
    for name in ("float32", "bf16", "int8", "int4"):
        engine = open_engine(to_precision(base, name), rows=1, capacity=PROMPT + NEW + 1)
        steps[f"ours {name}"], reads[f"ours {name}"] = step_and_read(engine, prompt)
    plain = TorchEngine(base, rows=1, capacity=PROMPT + NEW + 1)
    steps["ours float32, PyTorch alone"], reads["ours float32, PyTorch alone"] = step_and_read(plain, prompt)
    return steps, reads


def step_and_read(engine: object, prompt: list[int]) -> tuple[Callable[[], object], Callable[[], object]]:
    engine.add_rows(1)
    engine.prefill([prompt])

    def step() -> None:
        engine.truncate([PROMPT])
        token = torch.tensor([7])
        for _ in range(NEW):  # as in generation: the engine's own choice, if it has one
            logits = engine.step(token)
            token = logits.argmax(-1) if engine.most_likely is None else engine.most_likely

    def read() -> None:
        engine.truncate([0])
        engine.prefill([prompt])

    return step, read


def try_peer(name: str, make: Callable[[], object], missing: list[str]) -> object | None:
    """The functions of a peer, or None with the reason in `missing`."""
    try:
        return make()
    except Exception as error:  # of any kind: the other programs are still measured
        missing.append(f"{name}: {type(error).__name__}: {str(error)[:400]}")
        return None


def rates(seconds: dict[str, list[float]], tokens: int) -> dict[str, list[float]]:
    """Tokens per second: lower quartile, median, upper quartile."""
    return {
        name: [round(tokens / value, 1) for value in reversed(statistics.quantiles(times, n=4))]
        for name, times in seconds.items()
    }


def times_faster(seconds: dict[str, list[float]], ours: str, peer: str) -> list[float] | None:
    """How many times faster we are per round: quartiles."""
    if ours not in seconds or peer not in seconds:
        return None
    pairs = [b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)]
    return [round(value, 3) for value in statistics.quantiles(pairs, n=4)]


def read_bandwidth(megabytes: int) -> float:
    """GB/s of reading so many megabytes repeatedly with all threads: the limit for decoding at batch 1."""
    numbers = torch.ones(megabytes << 18)
    return round(numbers.nbytes / min(time_alternately({"sum": numbers.sum}, rounds=20)["sum"]) / 1e9, 1)


def translator(rounds: int, missing: list[str]) -> dict[str, object]:
    source = torch.randint(3, VOCABULARY, (SENTENCES, SOURCE), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        functions = our_translators(source)
        for name, make in (
            ("transformers", lambda: transformers_translator(source)),
            ("CTranslate2", lambda: ctranslate2_translators(source, Path(folder))),
        ):
            functions |= try_peer(name, make, missing) or {}
        seconds = time_alternately(functions, rounds=rounds)
    pairs = [("float32", "transformers float32"), ("float32", "CTranslate2 float32"), ("int8", "CTranslate2 int8")]
    return {
        "tokens_per_second": rates(seconds, SENTENCES * TARGET),
        "times_faster": {
            f"{ours} / {peer} beam {beam}": times_faster(seconds, f"ours {ours} beam {beam}", f"{peer} beam {beam}")
            for ours, peer in pairs
            for beam in (1, 4)
        },
    }


def decoder(rounds: int, missing: list[str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        steps, reads = our_decoders()
        for name, make in (("transformers", transformers_decoder), ("llama.cpp", lambda: llama_cpp(Path(folder)))):
            more = try_peer(name, make, missing) or ({}, {})
            steps, reads = steps | more[0], reads | more[1]
        # After reading the prompt, each model is where its steps begin.
        read_seconds = time_alternately(reads, rounds=rounds)
        seconds = time_alternately(steps, rounds=rounds)
    parameters = chumoku.count(chumoku.preset("smollm2-135m")).parameters
    sizes = {"float32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.625}
    limit = {name: read_bandwidth(int(parameters * size) >> 20) for name, size in sizes.items()}
    median = {name: statistics.median(times) / NEW for name, times in seconds.items()}
    return {
        "tokens_per_second": rates(seconds, NEW),
        "prompt_tokens_per_second": rates(read_seconds, PROMPT),
        "times_faster": {
            f"{ours} / {peer}": times_faster(seconds, f"ours {ours}", peer)
            for ours, peer in (("int4", "llama.cpp Q4_1"), ("float32", "transformers float32"))
        },
        "read_gb_per_second": limit,
        "share_of_reading": {
            name: round(parameters * size / median[f"ours {name}"] / 1e9 / limit[name], 3)
            for name, size in sizes.items()
        },
    }


def prompts(rounds: int, missing: list[str]) -> dict[str, object]:
    base = chumoku.build(chumoku.preset("smollm2-135m"))
    precisions = ("float32", "bf16", "int8", "int4")
    engines = {name: open_engine(to_precision(base, name), rows=1, capacity=max(PROMPTS) + 1) for name in precisions}
    for engine in engines.values():
        engine.add_rows(1)

    def read(engine: object, length: int) -> None:
        engine.truncate([0])
        engine.prefill([list(range(7, 7 + length))])

    peers = try_peer("transformers", transformers_prompts, missing) or {}
    found = {}
    for length in PROMPTS:
        peer = f"transformers bf16 {length}"
        reads = {
            f"ours {name}": lambda engine=engine, length=length: read(engine, length)
            for name, engine in engines.items()
        }
        reads |= {peer: peers[peer]} if peers else {}
        seconds = time_alternately(reads, rounds=rounds)
        faster = {name: times_faster(seconds, f"ours {name}", peer) for name in precisions}
        found[str(length)] = {"tokens_per_second": rates(seconds, length), "times_faster_than_transformers": faster}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=("translator", "decoder", "prompts"))
    chosen = options.parse_args()
    missing: list[str] = []
    parts = {"translator": translator, "decoder": decoder, "prompts": prompts}
    found = {name: part(chosen.rounds, missing) for name, part in parts.items() if chosen.only in (None, name)}
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, **found, "missing": missing}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
