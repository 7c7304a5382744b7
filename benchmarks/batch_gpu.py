"""Decoding in batches on a GPU in bf16, compared with transformers and gpt-fast in the same run.

    python benchmarks/batch_gpu.py [--peer transformers|gpt-fast] [--gpt-fast PATH] [--rows 64 256] [--seconds 60]
                                   [--rounds 3] [--layers 22] [--tiny]

The model is a Llama of 1.1 B (with fewer `--layers`, a smaller one) with random weights; greedy, without an end token.

transformers  twice as many requests as rows, with prompts of 32 to 256 tokens and 32 to 96 new tokens: our scheduler,
              and transformers' continuous batching with the same number of requests at once
gpt-fast      as many requests as rows, all with a prompt of 128 tokens and 64 new tokens, because gpt-fast has no
              batches of different lengths: our scheduler, and gpt-fast's `generate`, compiled as its `main` does; PATH
              is a copy of github.com/pytorch-labs/gpt-fast
--seconds     no round starts later than this; what is not measured then is reported as missing
--tiny        a tiny model with 3 rows, also on a CPU, to try the program

They run alternately, after one run of each that is not counted; every speed is printed as it is measured. Prints one
JSON line, also when it is terminated: generated tokens per second (lowest, median, highest), how many times faster we
are in each round, and why a peer is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from decode_cpu import try_peer
from decode_gpu import CAPACITY, CHUNK, LLAMA, batch_requests, prompt_of, run_requests

import chumoku
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.gpu.engine import GpuEngine
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16
PROMPT, NEW = 128, 64  # tokens of the requests of equal lengths
PATIENCE = 60.0  # seconds that a peer may take for all requests
TINY = {"vocabulary": 151, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "feedforward_width": 96}


class TransformersBatch:
    """transformers' continuous batching with as many requests at once, and as long prompts in a step, as ours."""

    def __init__(self, config: ModelConfig, requests: Sequence[Request], rows: int) -> None:
        import transformers

        settings = getattr(transformers, "ContinuousBatchingConfig", None)
        if settings is None:
            raise RuntimeError(f"transformers {transformers.__version__} has no ContinuousBatchingConfig (5.x has).")
        model = llama_of(config)
        known = {field.name for field in fields(settings)}
        limits = {"max_requests_per_batch": rows, "num_blocks": 3 * rows, "block_size": 256, "max_batch_tokens": CHUNK}
        chosen = {**limits, "allow_block_sharing": False, "auto_switch_to_flash": False}
        if find_spec("flash_attn") is not None:
            model.set_attn_implementation("flash_attention_2")
        elif "auto_switch_to_flash" not in known:  # otherwise it would download a kernel
            model.set_attn_implementation("paged|sdpa")
        self._requests = requests
        self._manager = model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=settings(**{name: value for name, value in chosen.items() if name in known}),
        )
        self.attention = str(model.config._attn_implementation)
        self.unknown = sorted(chosen.keys() - known)
        self._manager.start()

    def run(self) -> int:
        """How many tokens all requests have generated."""
        for request in self._requests:
            self._manager.add_request(list(request.prompt), max_new_tokens=request.max_new_tokens)
        done, count, start = 0, 0, time.perf_counter()
        while done < len(self._requests):
            if time.perf_counter() - start > PATIENCE:
                raise RuntimeError(f"Only {done} of {len(self._requests)} requests were done in {PATIENCE:.0f} s.")
            result = self._manager.get_result(timeout=1)
            if result is None and not self._manager.is_running():
                raise RuntimeError("Its thread has ended. The reason is in its log.")
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                done, count = done + 1, count + len(result.generated_tokens)
        return count

    def close(self) -> None:
        self._manager.stop(block=True, timeout=30)


def llama_of(config: ModelConfig) -> Any:
    """transformers' Llama of the same shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": config.width, "intermediate_size": config.hidden, "vocab_size": config.vocabulary}
    heads = {"num_attention_heads": config.heads, "num_key_value_heads": config.key_heads}
    depth = {"num_hidden_layers": config.decoder_depth, "max_position_embeddings": config.context}
    with torch.device(DEVICE):
        return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **depth)).to(DTYPE).eval()


class GptFastBatch:
    """gpt-fast's `generate` with a compiled step, as its `main` calls it."""

    def __init__(self, config: ModelConfig, rows: int, folder: Path) -> None:
        if not (folder / "generate.py").is_file():
            raise FileNotFoundError(f"There is no generate.py in {folder}.")
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        self._program, shapes = import_module("generate"), import_module("model")
        shape = shapes.ModelArgs(
            block_size=config.context, vocab_size=config.vocabulary, n_layer=config.decoder_depth, n_head=config.heads,
            dim=config.width, intermediate_size=config.hidden, n_local_heads=config.key_heads,
        )  # fmt: skip
        with torch.device(DEVICE):
            self._model = shapes.Transformer(shape).to(DTYPE).eval()
        torch._dynamo.reset()  # another number of rows is another program
        if not hasattr(self._program, "plain_step"):
            self._program.plain_step = self._program.decode_one_token
        self._program.decode_one_token = torch.compile(self._program.plain_step, mode="reduce-overhead", fullgraph=True)
        self._rows, self._prompt = rows, torch.randint(config.vocabulary, (PROMPT,), device=DEVICE)

    def run(self) -> int:
        """How many tokens all rows have generated."""
        tokens, _ = self._program.generate(
            self._model, self._prompt, NEW, self._rows,
            interactive=False, draft_model=None, temperature=0.0, top_k=None,
        )  # fmt: skip
        return len(tokens.tolist()) * (tokens.shape[1] - PROMPT)


def engine_for(model: DecoderModel, rows: int) -> Engine:
    """Our engine for a GPU; on a CPU, where only tiny models are run, PyTorch's."""
    kind = GpuEngine if DEVICE.type == "cuda" else TorchEngine
    return kind(model, rows=rows, capacity=CAPACITY)


class Contest:
    """Programs that generate the same number of tokens, in turns, until `end`."""

    def __init__(self, title: str, tokens: int, end: float) -> None:
        self._title, self._tokens, self._end = title, tokens, end
        self._programs: dict[str, Callable[[], int]] = {}
        self._speeds: dict[str, list[float]] = {}

    def add(self, name: str, program: Callable[[], int]) -> None:
        """Add a program, which is run once without being counted."""
        self._run(name, program, "warm-up")
        self._programs[name], self._speeds[name] = program, []

    def _run(self, name: str, program: Callable[[], int], round_name: str) -> float:
        start = time.perf_counter()
        count = program()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        speed = count / (time.perf_counter() - start)
        print(f"{self._title}: {name}, {round_name}: {speed:.0f} tokens/s", file=sys.stderr, flush=True)
        if count != self._tokens:
            raise RuntimeError(f"It has generated {count} tokens instead of {self._tokens}.")
        return speed

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            if time.perf_counter() < self._end:
                for name, program in self._programs.items():
                    self._speeds[name].append(self._run(name, program, f"round {number + 1}"))

    def result(self) -> dict[str, object]:
        speeds = {name: list(values) for name, values in self._speeds.items() if values}
        found: dict[str, object] = {"tokens": self._tokens}
        for name, values in speeds.items():
            found[name] = [round(value) for value in (min(values), statistics.median(values), max(values))]
            if name != "chumoku":
                ratios = [a / b for a, b in zip(speeds["chumoku"], values, strict=False)]
                found[f"chumoku / {name}"] = [round(value, 2) for value in sorted(ratios)]
        return found


def compare_transformers(model: DecoderModel, rows: int, chosen: argparse.Namespace, found: dict[str, Any]) -> None:
    requests, engine = batch_requests(model, rows, count=2 * rows, longest=96), engine_for(model, rows)
    title = f"transformers, {rows} rows"
    contest = Contest(title, sum(one.max_new_tokens for one in requests), chosen.end)
    found[title] = contest
    contest.add("chumoku", lambda: run_requests(engine, requests))
    peer = TransformersBatch(model.config, requests, rows)
    found[f"transformers' attention, {rows} rows"] = peer.attention
    try:
        contest.add("transformers", peer.run)
        contest.run(chosen.rounds)
    finally:
        peer.close()


def compare_gpt_fast(model: DecoderModel, rows: int, chosen: argparse.Namespace, found: dict[str, Any]) -> None:
    greedy, engine = SamplingOptions(temperature=0.0), engine_for(model, rows)
    requests = [Request(prompt_of(model, PROMPT, row), NEW, greedy) for row in range(rows)]
    title = f"gpt-fast, {rows} rows"
    contest = found[title] = Contest(title, rows * NEW, chosen.end)
    contest.add("chumoku", lambda: run_requests(engine, requests))
    contest.add("gpt-fast", GptFastBatch(model.config, rows, chosen.gpt_fast).run)
    contest.run(chosen.rounds)


PEERS = {"transformers": compare_transformers, "gpt-fast": compare_gpt_fast}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, nargs="+", default=list(PEERS))
    parser.add_argument("--gpt-fast", type=Path, default=Path("gpt-fast"))
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=LLAMA["layers"])
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    if not chosen.tiny and DEVICE.type == "cpu":
        parser.error("There is no GPU. --tiny runs on a CPU.")
    chosen.end = time.perf_counter() + chosen.seconds
    return chosen


def main() -> None:
    chosen = read_arguments()
    found: dict[str, Any] = {"benchmark": "batch_gpu", "torch": torch.__version__, "layers": chosen.layers}
    found["device"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    missing: list[str] = []

    def report() -> None:
        values = {name: value.result() if isinstance(value, Contest) else value for name, value in found.items()}
        print(json.dumps({**values, "missing": missing}), flush=True)

    def stop(number: int, frame: object) -> None:
        missing.append("Terminated before all was measured.")
        report()
        os._exit(1)  # without waiting for the threads of peers

    signal.signal(signal.SIGTERM, stop)
    config = ModelConfig(**{**LLAMA, "layers": chosen.layers, **(TINY if chosen.tiny else {})})
    model = chumoku.build(config, device=DEVICE, dtype=DTYPE)
    for rows in [3] if chosen.tiny else chosen.rows:
        for name in chosen.peer:
            if time.perf_counter() > chosen.end:
                missing.append(f"{name}, {rows} rows: no time was left.")
            else:
                compare = PEERS[name]
                try_peer(
                    f"{name}, {rows} rows",
                    lambda rows=rows, compare=compare: compare(model, rows, chosen, found),
                    missing,
                )
    report()


if __name__ == "__main__":
    main()
