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

import numpy as np
import torch
from clock import turns

import chumoku
from chumoku.decoding.beam import search
from chumoku.decoding.engine import TorchEngine, open_engine
from chumoku.models.precision import at_precision

SENTENCES, SOURCE, TARGET, VOCABULARY = 32, 25, 32, 16_000
PROMPT, NEW = 128, 64
BEGIN, END = 1, 2
Contestants = dict[str, Callable[[], object]]


def our_translators(source: torch.Tensor) -> Contestants:
    base = chumoku.build(chumoku.preset("transformer-base", vocabulary=VOCABULARY))

    def run(model: torch.nn.Module, beam: int) -> Callable[[], object]:
        return lambda: search(model, source, begin=BEGIN, end=END, beam=beam, limit=TARGET, least=TARGET - 1)

    models = {"float32": base, "bf16": at_precision(base, "bf16"), "int8": at_precision(base, "int8")}
    return {f"ours {name} beam {beam}": run(model, beam) for name, model in models.items() for beam in (1, 4)}


def transformers_translator(source: torch.Tensor) -> Contestants:
    import transformers

    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 6), ("attention_heads", 8), ("ffn_dim", 2048))
    }
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=512, pad_token_id=0, eos_token_id=END, decoder_start_token_id=BEGIN,
        forced_eos_token_id=None, **sides,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()

    def run(beam: int) -> Callable[[], object]:
        return lambda: model.generate(
            source, num_beams=beam, do_sample=False, min_new_tokens=TARGET, max_new_tokens=TARGET
        )

    return {f"transformers float32 beam {beam}": run(beam) for beam in (1, 4)}


def ctranslate2_translators(source: torch.Tensor, folder: Path) -> Contestants:
    import ctranslate2

    spec = ctranslate2.specs.TransformerSpec.from_config((6, 6), 8, pre_norm=False, ffn_glu=False)
    fill_ctranslate2(spec)
    words = [f"w{number}" for number in range(VOCABULARY)]
    words[:3] = ["<blank>", "<s>", "</s>"]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.save(str(folder))
    texts = [[words[token] for token in row] for row in source.tolist()]

    def run(kind: str, beam: int) -> Callable[[], object]:
        threads = torch.get_num_threads()
        model = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind, intra_threads=threads)
        lengths = {"min_decoding_length": TARGET, "max_decoding_length": TARGET}
        return lambda: model.translate_batch(texts, beam_size=beam, max_batch_size=SENTENCES, **lengths)

    return {f"CTranslate2 {kind} beam {beam}": run(kind, beam) for kind in ("float32", "int8") for beam in (1, 4)}


def fill_ctranslate2(spec: object) -> None:
    """Random weights of the base shape."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * shape[-1] ** -0.5

    def linear(part: object, outputs: int, inputs: int) -> None:
        part.weight, part.bias = normal(outputs, inputs), np.zeros(outputs, dtype=np.float32)

    def norm(part: object) -> None:
        part.gamma, part.beta = np.ones(512, dtype=np.float32), np.zeros(512, dtype=np.float32)

    def attention(part: object, shapes: list[int]) -> None:
        for place, outputs in enumerate(shapes):
            linear(part.linear[place], outputs, 512)
        norm(part.layer_norm)

    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embedding = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embedding.weight = normal(VOCABULARY, 512)
        for layer in stack.layer:
            attention(layer.self_attention, [1536, 512])
            if side == "decoder":
                attention(layer.attention, [512, 1024, 512])
            linear(layer.ffn.linear_0, 2048, 512)
            linear(layer.ffn.linear_1, 512, 2048)
            norm(layer.ffn.layer_norm)
    linear(spec.decoder.projection, VOCABULARY, 512)


def our_decoders() -> tuple[Contestants, dict[str, Callable[[], object]]]:
    base = chumoku.build(chumoku.preset("smollm2-135m"))
    prompt = [number % 49000 for number in range(7, 7 + PROMPT)]
    steps: Contestants = {}
    reads: Contestants = {}
    for name in ("float32", "bf16", "int8", "int4"):
        engine = open_engine(at_precision(base, name), rows=1, capacity=PROMPT + NEW + 1)
        steps[f"ours {name}"], reads[f"ours {name}"] = contestants(engine, prompt)
    plain = TorchEngine(base, rows=1, capacity=PROMPT + NEW + 1)
    steps["ours float32, PyTorch alone"], reads["ours float32, PyTorch alone"] = contestants(plain, prompt)
    return steps, reads


def contestants(engine: object, prompt: list[int]) -> tuple[Callable[[], object], Callable[[], object]]:
    engine.enter(1)
    engine.read([prompt])

    def step() -> None:
        engine.forget([PROMPT])
        token = torch.tensor([7])
        for _ in range(NEW):
            token = engine.step(token).argmax(-1)

    def read() -> None:
        engine.forget([0])
        engine.read([prompt])

    return step, read


def transformers_decoder() -> tuple[Contestants, Contestants]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.arange(7, 7 + PROMPT)[None]
    past = transformers.DynamicCache()

    def step() -> None:
        past.crop(min(0, PROMPT - past.get_seq_length()))
        token = torch.tensor([[7]])
        with torch.inference_mode():
            for _ in range(NEW):
                token = model(token, past_key_values=past, use_cache=True).logits[:, -1:].argmax(-1)

    def read() -> None:
        nonlocal past
        past = transformers.DynamicCache()
        with torch.inference_mode():
            model(prompt, past_key_values=past, use_cache=True, logits_to_keep=1)

    read()
    return {"transformers float32": step}, {"transformers float32": read}


def llama_cpp(folder: Path) -> tuple[Contestants, Contestants]:
    import llama_cpp

    path = folder / "shape.gguf"
    write_gguf(path)
    threads = torch.get_num_threads()
    model = llama_cpp.Llama(
        str(path),
        n_ctx=PROMPT + NEW + 8,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=512,
        verbose=False,
        logits_all=False,
    )
    prompt = list(range(7, 7 + PROMPT))

    def read() -> None:
        model.reset()
        model.eval(prompt)

    def step() -> None:
        model.n_tokens = PROMPT
        token = 7
        for _ in range(NEW):
            model.eval([token])
            token = int(np.argmax(model._scores[-1]))

    read()
    return {"llama.cpp Q4_1": step}, {"llama.cpp Q4_1": read}


def write_gguf(path: Path) -> None:
    """SmolLM2's shape with random weights, every matrix in Q4_1."""
    import gguf

    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(576)
    writer.add_block_count(30)
    writer.add_feed_forward_length(1536)
    writer.add_head_count(9)
    writer.add_head_count_kv(3)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(49152)
    writer.add_tokenizer_model("none")
    kind = gguf.GGMLQuantizationType.Q4_1

    def matrix(name: str, outputs: int, inputs: int) -> None:
        weight = random.standard_normal((outputs, inputs), dtype=np.float32) * inputs**-0.5
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)

    matrix("token_embd.weight", 49152, 576)
    writer.add_tensor("output_norm.weight", np.ones(576, dtype=np.float32))
    for layer in range(30):
        for name, outputs, inputs in (
            *(("attn_q", 576, 576), ("attn_k", 192, 576), ("attn_v", 192, 576), ("attn_output", 576, 576)),
            *(("ffn_gate", 1536, 576), ("ffn_up", 1536, 576), ("ffn_down", 576, 1536)),
        ):
            matrix(f"blk.{layer}.{name}.weight", outputs, inputs)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(576, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
