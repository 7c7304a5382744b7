"""Decoding on a GPU in bf16: tokens per second, and at batch 1 the share of the memory bandwidth.

    python benchmarks/decode_gpu.py [--peer]

share = bytes of weights read per token · tokens/s / (bytes read and written per second by a large copy in this run).
The embedding is not counted unless it is also the output matrix, because a token reads only one row of it.

generate    `generate` with an open engine, a prompt of 128 tokens and 256 new tokens, greedy
forbidden   the same with three forbidden tokens, as `generate_texts` has them
sampled     the same at temperature 0.8 instead of greedy
step        the engine's steps alone, greedy, over the same lengths
int8, int4  the same with quantized weights
plain       `generate` in PyTorch
batch       three times as many requests as rows, with prompts of 32 to 256 tokens and 32 to 256 new tokens, through the
            scheduler (continuous batching); generated tokens per second, including the prompts
--peer      transformers' generate with a static cache, compiled, the same lengths

Every figure is the median of ROUNDS runs after one warm-up run, with minimum and maximum. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import traceback
from collections.abc import Callable, Sequence

import torch

import chumoku
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.gpu.engine import GpuEngine
from chumoku.decoding.generate import generate
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.models.model import DecoderModel
from chumoku.models.precision import to_precision

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
PROMPT, NEW, ROUNDS = 128, 256, 5
CAPACITY, CHUNK = 512, 2048  # of a batch: positions of each row, and prompt tokens in one step
LLAMA = {
    **{"kind": "decoder", "vocabulary": 32000, "context": 2048, "width": 2048, "layers": 22, "heads": 32},
    **{"kv_heads": 4, "feedforward_width": 5632, "feedforward": "swiglu", "norm": "rms", "position": "rotary"},
    **{"pairing": "half", "bias": False, "tie_output": False},
}
WIDE = {**LLAMA, "width": 4096, "layers": 8, "kv_heads": 8, "feedforward_width": 14336}
SHAPES = {
    "llama 1.1B": chumoku.ModelConfig(**LLAMA),
    "8 layers of a llama 8B": chumoku.ModelConfig(**WIDE),
    "gpt2 124M": chumoku.preset("gpt2"),
}


def rates(tokens: int, run: Callable[[], object], *, rounds: int = ROUNDS) -> dict[str, object]:
    """Tokens per second of `run`: median, minimum and maximum."""
    speeds = []
    for number in range(rounds + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number:
            speeds.append(tokens / (time.perf_counter() - start))
    return {"tokens_per_s": round(statistics.median(speeds)), "spread": [round(min(speeds)), round(max(speeds))]}


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device=DEVICE).random_()
    target = torch.empty_like(source)
    found = rates(2 * source.numel(), lambda: target.copy_(source), rounds=20)
    return float(str(found["tokens_per_s"]))


def bytes_per_token(model: DecoderModel) -> int:
    weights = sum(value.nbytes for name, value in model.named_parameters() if "position" not in name)
    return weights if model.head.weight is None else weights - model.decoder.embedding.table.nbytes


def prompt_of(model: DecoderModel, length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(model.config.vocabulary), k=length)


def generate_once(model: DecoderModel, engine: Engine, **sampling: object) -> Callable[[], object]:
    prompt, options = [prompt_of(model, PROMPT)], SamplingOptions(**{"temperature": 0.0, **sampling})
    return lambda: generate(model, prompt, max_new_tokens=NEW, sampling=options, engine=engine)


def step_repeatedly(model: DecoderModel, engine: GpuEngine) -> Callable[[], object]:
    def run() -> None:
        engine.truncate([PROMPT])
        tokens = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        for _ in range(NEW):
            engine.step(tokens)
            tokens = tokens if engine.most_likely is None else engine.most_likely

    engine.select_rows([])
    engine.add_rows(1)
    engine.prefill([prompt_of(model, PROMPT)])
    return run


def single(model: DecoderModel, copy: float) -> dict[str, object]:
    engine = GpuEngine(model, rows=1, capacity=PROMPT + NEW)
    found: dict[str, dict[str, object]] = {
        "generate": rates(NEW, generate_once(model, engine)),
        "forbidden": rates(NEW, generate_once(model, engine, forbidden=(0, 1, 2))),
        "sampled": rates(NEW, generate_once(model, engine, temperature=0.8)),
        "step": rates(NEW, step_repeatedly(model, engine)),
        "plain": rates(NEW, generate_once(model, TorchEngine(model, rows=1, capacity=PROMPT + NEW)), rounds=2),
    }
    for one in found.values():
        one["share"] = round(float(str(one["tokens_per_s"])) * bytes_per_token(model) / copy, 4)
    for precision in ("int8", "int4"):
        found[precision] = attempt(lambda precision=precision: quantized_steps(model, precision))
    return {"bytes_a_token": bytes_per_token(model), **found}


def quantized_steps(model: DecoderModel, precision: str) -> dict[str, object]:
    """Steps with quantized weights."""
    small = to_precision(model, precision)
    return rates(NEW, step_repeatedly(small, GpuEngine(small, rows=1, capacity=PROMPT + NEW)))


def batch_requests(model: DecoderModel, rows: int, *, count: int, longest: int) -> list[Request]:
    """Requests with prompts of 32 to 256 tokens and 32 to `longest` new tokens."""
    chance = random.Random(rows)
    lengths = [(chance.randint(32, 256), chance.randint(32, longest)) for _ in range(count)]
    greedy = SamplingOptions(temperature=0.0)
    return [Request(prompt_of(model, before, place), new, greedy) for place, (before, new) in enumerate(lengths)]


def run_requests(engine: Engine, requests: Sequence[Request]) -> int:
    """Run all requests through the scheduler; how many tokens they have generated."""
    scheduler, count = Scheduler(engine, chunk=CHUNK), 0
    for request in requests:
        scheduler.submit(request)
    while not scheduler.idle:
        count += sum(event.token is not None for event in scheduler.step())
    return count


def batch(model: DecoderModel, rows: int) -> dict[str, object]:
    requests = batch_requests(model, rows, count=3 * rows, longest=256)
    engine = GpuEngine(model, rows=rows, capacity=CAPACITY)
    return rates(sum(one.max_new_tokens for one in requests), lambda: run_requests(engine, requests), rounds=3)


def peer(config: chumoku.ModelConfig) -> dict[str, object]:
    """transformers with the same shape in its fastest mode: a static cache and a compiled step."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if config == SHAPES["gpt2 124M"]:
        theirs = GPT2LMHeadModel(GPT2Config())
    else:
        sizes = {"hidden_size": config.width, "intermediate_size": config.hidden, "vocab_size": config.vocabulary}
        heads = {"num_attention_heads": config.heads, "num_key_value_heads": config.key_heads}
        theirs = LlamaForCausalLM(LlamaConfig(**sizes, **heads, num_hidden_layers=config.decoder_depth))
    theirs = theirs.to(DEVICE, DTYPE).eval()
    ids = torch.randint(32000, (1, PROMPT), device=DEVICE)
    asked = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    def run() -> None:
        with torch.inference_mode():
            theirs.generate(ids, attention_mask=torch.ones_like(ids), cache_implementation="static", **asked)

    run()  # compiles
    return rates(NEW, run, rounds=3)


def attempt(run: Callable[[], dict[str, object]]) -> dict[str, object]:
    """The result of `run`, or its error, so that the other parts continue."""
    try:
        return run()
    except Exception as error:
        return {"error": repr(error)[:300], "where": traceback.format_exc()[-600:]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    chosen = parser.parse_args()
    copy = bandwidth()
    result: dict[str, object] = {"benchmark": "decode_gpu", "device": torch.cuda.get_device_name()}
    result |= {"torch": torch.__version__, "copy_gb_per_s": round(copy / 1e9)}
    for name, config in SHAPES.items():
        model = chumoku.build(config, device=DEVICE, dtype=DTYPE)
        found = attempt(lambda model=model: single(model, copy))
        for rows in (64, 256):
            found[f"batch {rows}"] = attempt(lambda model=model, rows=rows: batch(model, rows))
        if chosen.peer:
            found["transformers"] = attempt(lambda config=config: peer(config))
        result[name] = found
        del model
        torch.cuda.empty_cache()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
