"""Decoding in batches on a GPU in bf16, compared with transformers and gpt-fast in the same run.

    python benchmarks/batch_gpu.py [--rows 64 256] [--rounds 3] [--gpt-fast PATH] [--tiny]

The model is a Llama of 1.1 B with random weights; greedy, without an end token.

requests   the requests of `decode_gpu.py` (three times as many as rows; prompts of 32 to 256 tokens, 32 to 256 new
           tokens): our scheduler, and transformers' continuous batching with the same number of requests at once
equal      as many requests as rows, all with a prompt of 128 tokens and 128 new tokens, because gpt-fast has no batches
           of different lengths: our scheduler, and gpt-fast's `generate`, compiled as its `main` does
--gpt-fast a copy of github.com/pytorch-labs/gpt-fast; without it, it is not measured
--tiny     a tiny model with 3 rows, also on a CPU, to try the program

They run alternately, after one run of each that is not counted. Prints one JSON line: generated tokens per second
(quartiles), how many times faster we are (quartiles), and why a peer is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from clock import time_alternately
from decode_cpu import rates, times_faster, try_peer
from decode_gpu import CAPACITY, CHUNK, LLAMA, batch_requests, prompt_of, run_requests
from decode_peers import Functions

import chumoku
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.gpu.engine import GpuEngine
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16
PROMPT, NEW = 128, 128  # tokens of the requests of equal lengths
PATIENCE = 180.0  # seconds that a peer may take for all requests
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


def compare(functions: Functions, tokens: int, rounds: int) -> dict[str, object]:
    seconds = time_alternately(functions, rounds=rounds)
    faster = {peer: times_faster(seconds, "chumoku", peer) for peer in seconds if peer != "chumoku"}
    return {"tokens": tokens, "tokens_per_second": rates(seconds, tokens), "times_faster": faster}


def checked(run: Any, tokens: int) -> Any:
    """`run`, after one call; every call must generate this many tokens."""

    def check() -> None:
        count = run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if count != tokens:
            raise RuntimeError(f"It has generated {count} tokens instead of {tokens}.")

    check()
    return check


def compare_requests(model: DecoderModel, rows: int, rounds: int, missing: list[str]) -> dict[str, object]:
    requests, engine = batch_requests(model, rows), engine_for(model, rows)
    tokens, found = sum(one.max_new_tokens for one in requests), {}
    functions: Functions = {"chumoku": checked(lambda: run_requests(engine, requests), tokens)}
    with ExitStack() as stack:

        def transformers() -> Any:
            peer = TransformersBatch(model.config, requests, rows)
            stack.callback(peer.close)
            found.update(attention=peer.attention, without=peer.unknown)
            return checked(peer.run, tokens)

        run = try_peer(f"transformers, {rows} rows", transformers, missing)
        functions |= {} if run is None else {"transformers": run}
        return {**compare(functions, tokens, rounds), "transformers": found}


def compare_equal(
    model: DecoderModel, rows: int, rounds: int, folder: Path | None, missing: list[str]
) -> dict[str, object]:
    greedy, engine = SamplingOptions(temperature=0.0), engine_for(model, rows)
    requests = [Request(prompt_of(model, PROMPT, row), NEW, greedy) for row in range(rows)]
    tokens = rows * NEW
    functions: Functions = {"chumoku": checked(lambda: run_requests(engine, requests), tokens)}
    if folder is not None:
        run = try_peer(
            f"gpt-fast, {rows} rows", lambda: checked(GptFastBatch(model.config, rows, folder).run, tokens), missing
        )
        functions |= {} if run is None else {"gpt-fast": run}
    return compare(functions, tokens, rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpt-fast", type=Path)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    if not chosen.tiny and DEVICE.type == "cpu":
        parser.error("There is no GPU. --tiny runs on a CPU.")
    config = ModelConfig(**{**LLAMA, **(TINY if chosen.tiny else {})})
    model, missing = chumoku.build(config, device=DEVICE, dtype=DTYPE), []
    found: dict[str, object] = {"benchmark": "batch_gpu", "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    for rows in [3] if chosen.tiny else chosen.rows:
        for name, run in (
            ("requests", lambda rows=rows: compare_requests(model, rows, chosen.rounds, missing)),
            ("equal", lambda rows=rows: compare_equal(model, rows, chosen.rounds, chosen.gpt_fast, missing)),
        ):
            print(f"{name}, {rows} rows …", file=sys.stderr, flush=True)
            found[f"{name}, {rows} rows"] = try_peer(f"{name}, {rows} rows", run, missing)
    print(json.dumps({**found, "missing": missing}))


if __name__ == "__main__":
    main()
