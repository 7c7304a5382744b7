"""Translating on a GPU in bf16, compared with PyTorch alone, transformers and CTranslate2 in the same run.

    python benchmarks/translate_gpu.py [--rounds 5] [--sentences 1 32 256]

The model is `transformer-base` (6 + 6 layers, D = 512) with a vocabulary of 16,000 and random weights; sources of 25
tokens, 32 new tokens each; greedy and beam 4.

ours            `search` with an open engine
ours, a call    `search` that opens its engine, as a call of `translate` does
PyTorch         `search` with the model's own modules
CTranslate2     in float16

They run alternately. Prints one JSON line: target tokens per second (quartiles), and how many times faster we are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from clock import time_alternately
from decode_cpu import rates, times_faster, try_peer
from decode_peers import (
    BEGIN,
    END,
    SOURCE,
    TARGET,
    VOCABULARY,
    Functions,
    ctranslate2_translators,
    transformers_translator,
)

import chumoku
from chumoku.decoding.beam import search
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.gpu.engine import GpuEngine

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16


def ours(source: torch.Tensor) -> Functions:
    model = chumoku.build(chumoku.preset("transformer-base", vocabulary=VOCABULARY), device=DEVICE, dtype=DTYPE)

    def run(beam: int, engine: Engine | None) -> Callable[[], object]:
        def translate() -> None:
            if engine is not None:
                engine.select_rows([])
            asked = {"begin": BEGIN, "end": END, "limit": TARGET, "min_new_tokens": TARGET - 1}
            search(model, source, beam=beam, engine=engine, **asked)

        return translate

    functions: Functions = {}
    for beam in (1, 4):
        sizes = {"rows": len(source) * beam, "capacity": TARGET}
        functions[f"ours beam {beam}"] = run(beam, GpuEngine(model, **sizes))
        functions[f"ours, a call, beam {beam}"] = run(beam, None)
        functions[f"PyTorch beam {beam}"] = run(beam, TorchEngine(model, **sizes))
    return functions


def compare(sentences: int, rounds: int, missing: list[str]) -> dict[str, object]:
    numbers = torch.Generator().manual_seed(0)
    source = torch.randint(3, VOCABULARY, (sentences, SOURCE), generator=numbers).to(DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        functions = ours(source)
        for name, make in (
            ("transformers", lambda: transformers_translator(source, DTYPE)),
            ("CTranslate2", lambda: ctranslate2_translators(source, Path(folder), ("float16",))),
        ):
            functions |= try_peer(name, lambda make=make: run_once(make()), missing) or {}
        seconds = time_alternately(functions, rounds=rounds)
    peers = ("PyTorch", "transformers bfloat16", "CTranslate2 float16")
    return {
        "tokens_per_second": rates(seconds, sentences * TARGET),
        "times_faster": {
            f"{peer} beam {beam}": times_faster(seconds, f"ours beam {beam}", f"{peer} beam {beam}")
            for peer in peers
            for beam in (1, 4)
        },
    }


def run_once(functions: Functions) -> Functions:
    """The functions, after one call that shows whether the peer finds its libraries."""
    next(iter(functions.values()))()
    return functions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 32, 256])
    chosen = parser.parse_args()
    missing: list[str] = []
    found: dict[str, object] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for sentences in chosen.sentences:
        found[f"{sentences} sentences"] = compare(sentences, chosen.rounds, missing)
    print(json.dumps({**found, "missing": missing}))


if __name__ == "__main__":
    main()
