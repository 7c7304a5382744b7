"""Training an encoder-decoder on sentence pairs on a GPU: tokens per second, and the share of the matrix peak.

    python benchmarks/train_translation.py [--width 384] [--layers 6 3] [--eager] [--padded] [--peers] [--seconds 20]

`ours` is `chumoku.train` itself with packed rows: data loader, compiled step, clipping, AdamW, logging. The peers, with
`--peers`, are transformers' Marian and torch.nn.Transformer with the same sizes, optimizer and pairs in padded batches,
in bf16 by autocast; each runs as it comes and compiled with dynamic shapes. Lengths are log-normal, about 25 tokens, up
to 128; the target is as long as the source, give or take a fifth. Only real tokens count, so padding is lost speed.

    share = 6 · Σ (weights × real tokens they read) · steps/s / (FLOP/s of an 8192³ product in bf16)

Prints one JSON line; tokens are target tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import chumoku
from chumoku.data.batches import IGNORE, PairBatches, source_mask
from chumoku.data.packed_pairs import PackedPairBatches
from chumoku.data.prepared import Pairs
from chumoku.data.ragged_array import RaggedArray, RaggedArrayWriter
from chumoku.text import train as train_tokenizer
from chumoku.text.special_tokens import Roles
from chumoku.training.log import measure_matmul_flops

DEVICE = torch.device("cuda")
PAIRS, VOCABULARY, TOKENS, WARMUP = 400_000, 16000, 49152, 20
Batch = dict[str, Tensor]


class Enough(Exception):
    """Raised by a callback to end a run."""


def make_batches(folder: Path) -> PairBatches:
    random = np.random.default_rng(0)
    source = np.clip(random.lognormal(np.log(22), 0.55, PAIRS), 3, 126).astype(int)
    target = np.clip(source * random.normal(1, 0.2, PAIRS), 3, 126).astype(int)
    words = random.integers(8, VOCABULARY, 126)  # which tokens they are does not matter
    sides = []
    for name, lengths in (("source", source), ("target", target)):
        with RaggedArrayWriter(folder / name, np.dtype(np.uint16)) as writer:
            for length in lengths:
                writer.add(words[:length])
            sides.append(RaggedArray(folder, writer.close()))
    return PairBatches(Pairs(*sides), tokens=TOKENS, source_roles=Roles(pad=0, begin=1, end=2))


def weights_read(width: int, layers: tuple[int, int]) -> tuple[int, int]:
    """The weights of matrices that each source token and each target token is multiplied with."""
    encoder, decoder = layers
    source = encoder * 12 * width**2 + decoder * 2 * width**2  # and the keys and values of cross-attention
    return source, decoder * 14 * width**2 + VOCABULARY * width


def ours(
    batches: PairBatches | PackedPairBatches, config: Any, folder: Path, seconds: float, *, compiled: bool
) -> float:
    """Steps per second of chumoku.train, after WARMUP steps."""
    times: list[float] = []

    def note(event: Any) -> None:  # after the step's loss has arrived from the GPU
        times.append(time.perf_counter())
        if len(times) > WARMUP and times[-1] - times[WARMUP] > seconds:
            raise Enough

    note.uses_model = False  # type: ignore[attr-defined]
    recipe = {
        "train": {"out": str(folder / "run"), "steps": 10**6, "precision": "bf16", "compile": compiled}
        | {
            "save_every": 10**6,
            "validate_every": 10**6,
            "label_smoothing": 0.1,
            "samples": 0,
            "log_every": 100,
            "workers": 4,
            "packing": isinstance(batches, PackedPairBatches),
        },
        "optimizer": {"learning_rate": 1e-4},
    }
    model = chumoku.Pipeline(chumoku.build(config), train_tokenizer(["a"], kind="byte"))
    with contextlib.suppress(Enough):
        chumoku.train(recipe, model=model, train_data=batches, validation_data=batches, callbacks=[note])
    return (len(times) - 1 - WARMUP) / (times[-1] - times[WARMUP])


class Marian(nn.Module):
    def __init__(self, width: int, layers: tuple[int, int]) -> None:
        from transformers import MarianConfig, MarianMTModel

        super().__init__()
        sizes = {"d_model": width, "encoder_layers": layers[0], "decoder_layers": layers[1]}
        for side in ("encoder", "decoder"):
            sizes |= {f"{side}_attention_heads": width // 64, f"{side}_ffn_dim": 4 * width}
        tokens = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "decoder_start_token_id": 1}
        config = MarianConfig(vocab_size=VOCABULARY, dropout=0.1, attn_implementation="sdpa", **sizes, **tokens)
        self.model = MarianMTModel(config)

    def forward(self, batch: Batch) -> Tensor:
        inputs = {"input_ids": batch["source"], "attention_mask": batch["source_mask"]}
        return self.model(**inputs, decoder_input_ids=batch["target"], use_cache=False).logits


class TorchTransformer(nn.Module):
    def __init__(self, width: int, layers: tuple[int, int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        sizes = {"num_encoder_layers": layers[0], "num_decoder_layers": layers[1], "dim_feedforward": 4 * width}
        self.model = nn.Transformer(width, width // 64, batch_first=True, norm_first=True, **sizes)

    def forward(self, batch: Batch) -> Tensor:
        length, empty = batch["target"].shape[1], ~batch["source_mask"]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=DEVICE)
        hidden = self.model(
            self.embedding(batch["source"]),
            self.embedding(batch["target"]),
            tgt_mask=causal,
            src_key_padding_mask=empty,
            memory_key_padding_mask=empty,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T


def peer(batches: PairBatches, model: nn.Module, seconds: float, *, compiled: bool) -> float:
    """Steps per second of a peer with a plain training loop."""
    model = model.to(DEVICE).train()

    def loss_of(batch: Batch) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(batch)
            return nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE, label_smoothing=0.1
            )

    step_loss: Callable[[Batch], Tensor] = torch.compile(loss_of, dynamic=True) if compiled else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    start, done = 0.0, 0
    for number, batch in enumerate(endless(batches)):
        if number == WARMUP:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = step_loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # a trainer shows and checks the loss
        done = number + 1 - WARMUP
        if number > WARMUP and time.perf_counter() - start > seconds:
            break
    torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def endless(batches: PairBatches) -> Iterator[Batch]:
    from chumoku.data.loader import load

    for _, batch in load(batches, workers=4):
        masked = {**batch, "source_mask": source_mask(batch)}
        yield {name: table.to(DEVICE, non_blocking=True) for name, table in masked.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, nargs=2, default=(6, 3))
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--eager", action="store_true", help="do not compile ours")
    parser.add_argument("--padded", action="store_true", help="padded batches for ours too")
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    width, layers = given.width, tuple(given.layers)
    with tempfile.TemporaryDirectory() as name:
        batches = make_batches(Path(name))
        packed = batches if given.padded else PackedPairBatches(batches)
        totals = (batches.source_lengths.sum(), batches.target_lengths.sum())
        flops = 6 * sum(weights * tokens for weights, tokens in zip(weights_read(width, layers), totals, strict=True))
        peak = measure_matmul_flops(DEVICE, torch.bfloat16)
        config = chumoku.preset(
            "transformer-base", vocabulary=VOCABULARY, width=width, heads=width // 64, feedforward_width=4 * width,
            encoder_layers=layers[0], layers=layers[1], placement="pre", position="rotary", pairing="half",
            norm="rms", bias=False, context=128,
        )  # fmt: skip
        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda: ours(packed, config, Path(name), given.seconds, compiled=not given.eager)
        }
        if given.peers:
            for title, kind in (("Marian", Marian), ("nn.Transformer", TorchTransformer)):
                for compiled in (False, True):
                    contestants[f"{title}{', compiled' * compiled}"] = lambda kind=kind, compiled=compiled: peer(  # type: ignore[misc]
                        batches, kind(width, layers), given.seconds, compiled=compiled
                    )
        found: dict[str, Any] = {"torch": torch.__version__, "width": width, "layers": layers}
        found |= {
            "padding": [round(each.padding, 4) for each in (packed, batches)],
            "matrix_tflops": round(peak / 1e12),
        }
        for title, run in contestants.items():
            try:
                steps = run()
            except Exception as error:  # a peer that does not run is a result too
                if title == "ours":
                    raise
                found[title] = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            epochs = steps / len(packed if title == "ours" else batches)  # per second
            found[title] = {"tokens_per_second": round(epochs * totals[1]), "share": round(epochs * flops / peak, 4)}
            print(title, found[title], file=sys.stderr, flush=True)
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
