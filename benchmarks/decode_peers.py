"""The peers of `decode_cpu.py` and `translate_gpu.py`, with random weights, as functions that decode once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

SENTENCES, SOURCE, TARGET, VOCABULARY = 32, 25, 32, 16_000
PROMPT, NEW = 128, 64
PROMPTS = (256, 2000)
BEGIN, END = 1, 2
Functions = dict[str, Callable[[], object]]


def transformers_translator(source: torch.Tensor, dtype: torch.dtype = torch.float32) -> Functions:
    """On the device of the source."""
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
    model = transformers.MarianMTModel(config).eval().to(source.device, dtype)

    def run(beam: int) -> Callable[[], object]:
        return lambda: model.generate(
            source, num_beams=beam, do_sample=False, min_new_tokens=TARGET, max_new_tokens=TARGET
        )

    name = str(dtype).removeprefix("torch.")
    return {f"transformers {name} beam {beam}": run(beam) for beam in (1, 4)}


def ctranslate2_translators(
    source: torch.Tensor, folder: Path, kinds: tuple[str, ...] = ("float32", "int8")
) -> Functions:
    """On the device of the source."""
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
        device = source.device.type
        model = ctranslate2.Translator(str(folder), device=device, compute_type=kind, intra_threads=threads)
        lengths = {"min_decoding_length": TARGET, "max_decoding_length": TARGET}
        return lambda: model.translate_batch(texts, beam_size=beam, max_batch_size=len(source), **lengths)

    return {f"CTranslate2 {kind} beam {beam}": run(kind, beam) for kind in kinds for beam in (1, 4)}


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


def transformers_llama() -> torch.nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def transformers_prompts() -> Functions:
    """Prompts of every length, with the cache that generation would go on from."""
    import transformers

    model = transformers_llama().to(torch.bfloat16)

    def read(length: int) -> None:
        tokens = torch.arange(7, 7 + length)[None]
        with torch.inference_mode():
            model(tokens, past_key_values=transformers.DynamicCache(), use_cache=True, logits_to_keep=1)

    return {f"transformers bf16 {length}": lambda length=length: read(length) for length in PROMPTS}


def transformers_decoder() -> tuple[Functions, Functions]:
    import transformers

    model = transformers_llama()
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


def llama_cpp(folder: Path) -> tuple[Functions, Functions]:
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
