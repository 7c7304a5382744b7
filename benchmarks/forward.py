"""Forward, and forward with backward, compared with the same shapes in transformers on a CPU.

    python benchmarks/forward.py

Prints one JSON line; ratios are ours / theirs per round; below 1 means ours is faster.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F
import transformers
from clock import ratio, time_alternately

import chumoku
from chumoku.models.count import count

BATCH, LENGTH = 4, 128


def peers() -> dict[str, tuple[chumoku.ModelConfig, torch.nn.Module]]:
    layers = 4
    none = {"dropout": {"embedding": 0.0, "attention": 0.0, "sublayer": 0.0}}
    gpt2 = transformers.GPT2Config(n_layer=layers, embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    llama = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    bert = transformers.BertConfig(num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return {
        "gpt2": (chumoku.preset("gpt2", layers=layers, **none), transformers.GPT2LMHeadModel(gpt2)),
        "smollm2": (chumoku.preset("smollm2-135m", layers=layers), transformers.LlamaForCausalLM(llama)),
        "bert": (chumoku.preset("bert-base", layers=layers, **none), transformers.BertForMaskedLM(bert)),
    }


def measure(config: chumoku.ModelConfig, theirs: torch.nn.Module, rounds: int) -> dict[str, object]:
    ours = chumoku.build(config)
    theirs.eval()
    ids = torch.randint(config.vocabulary, (BATCH, LENGTH))

    def forward(model: torch.nn.Module):
        def run():
            with torch.inference_mode():
                model(ids)

        return run

    def train(model: torch.nn.Module):
        def run():
            model.zero_grad(set_to_none=True)
            F.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()

        return run

    inference = time_alternately({"ours": forward(ours), "theirs": forward(theirs)}, rounds=rounds)
    training = time_alternately({"ours": train(ours), "theirs": train(theirs)}, rounds=rounds)
    counted = count(config, length=LENGTH)
    median = sorted(inference["ours"])[rounds // 2]
    return {
        "forward": ratio(inference["ours"], inference["theirs"]),
        "forward_backward": ratio(training["ours"], training["theirs"]),
        "forward_gflops": round(BATCH * LENGTH * counted.forward_flops / median / 1e9, 1),
    }


def matrix_peak() -> float:
    """GFLOP/s of a large float32 product, the limit for the figures above."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    seconds = time_alternately({"product": lambda: a @ b}, rounds=9)["product"]
    return round(2 * 2048**3 / min(seconds) / 1e9, 1)


if __name__ == "__main__":
    torch.manual_seed(0)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    result: dict[str, object] = {
        "benchmark": "forward",
        "batch": BATCH,
        "length": LENGTH,
        "layers": 4,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "matrix_peak_gflops": matrix_peak(),
    }
    for name, (config, theirs) in peers().items():
        result[name] = measure(config, theirs, rounds)
    print(json.dumps(result))
