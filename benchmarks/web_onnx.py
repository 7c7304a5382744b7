"""Decoding in a browser, compared with onnxruntime-web, the engine of transformers.js, in the same page.

    npm pack onnxruntime-web && tar xzf onnxruntime-web-*.tgz
    pip install onnx onnxruntime onnxscript
    python benchmarks/web_onnx.py package/dist [--rounds 7]

The model is a Llama of 15 million parameters (the shape of stories15M) with random weights: a prompt of 64 tokens, then
64 tokens one by one, greedy. The same weights are exported to ONNX with a key/value cache, as float32 and as int8 with
onnxruntime's dynamic quantization (8-bit inputs, where ours have 16 bits). Both engines have one thread and run
alternately. Prints one JSON line: milliseconds of the prompt and tokens per second, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import web
from torch import Tensor, nn

import chumoku
from chumoku.models.model import Model
from chumoku.web.container import prepare_model

LAYERS, WIDTH, HEADS = 6, 288, 6
HEAD = WIDTH // HEADS
PROMPT, NEW = 64, 64
CACHE = [f"past{number}" for number in range(2 * LAYERS)]
SCRIPT = f"""
import * as ort from "/ort.mjs";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = {{ wasm: "/ort.wasm", mjs: "/ort_wasm.mjs" }};
const names = {json.dumps(CACHE)};

globalThis.openOnnx = async () => {{
  const model = await (await fetch("/model.onnx")).arrayBuffer();
  globalThis.onnx = await ort.InferenceSession.create(model, {{ executionProviders: ["wasm"] }});
}};
globalThis.decodeOnnx = async (prompt, count) => {{
  const empty = () => new ort.Tensor("float32", new Float32Array(0), [1, {HEADS}, 0, {HEAD}]);
  let cache = Object.fromEntries(names.map((name) => [name, empty()]));
  const step = async (tokens) => {{
    const ids = new ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [1, tokens.length]);
    const {{ logits, ...found }} = await onnx.run({{ tokens: ids, ...cache }});
    cache = Object.fromEntries(names.map((name) => [name, found[`${{name}}_next`]]));
    return logits.data.reduce((best, value, token, all) => (value > all[best] ? token : best), 0);
  }};
  const start = performance.now();
  let token = await step(prompt);
  const begin = performance.now();
  for (let place = 0; place < count; place++) token = await step([token]);
  return [(begin - start) / 1000, (performance.now() - begin) / 1000];
}};
"""


class Step(nn.Module):
    """The model as one function: tokens [1, T] and keys and values of each layer → logits, and the longer cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.stack = model.decoder

    def forward(self, tokens: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        x, longer = self.stack.embedding.table[tokens], []
        count, past = tokens.shape[1], cache[0].shape[2]
        positions = torch.arange(count) + past
        angles = positions[:, None].float() / 10000 ** (torch.arange(0, HEAD, 2).float() / HEAD)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        hidden = torch.arange(count + past)[None] > positions[:, None]
        for layer, block in enumerate(self.stack.blocks):
            y, attention, feed = rms_norm(block.attention_norm, x), block.attention, block.feedforward
            query, key, value = (
                part(y).view(1, count, HEADS, HEAD).transpose(1, 2)
                for part in (attention.query, attention.key, attention.value)
            )
            query, key = (part * cos + turn(part) * sin for part in (query, key))
            key, value = (
                torch.cat(pair, 2) for pair in zip(cache[2 * layer : 2 * layer + 2], (key, value), strict=True)
            )
            longer += [key, value]
            scores = (query @ key.transpose(-1, -2) * HEAD**-0.5).masked_fill(hidden, -1e9)
            x = x + attention.output((scores.softmax(-1) @ value).transpose(1, 2).reshape(1, count, WIDTH))
            y = rms_norm(block.feedforward_norm, x)
            x = x + feed.down(F.silu(feed.gate(y)) * feed.up(y))
        return rms_norm(self.stack.norm, x[:, -1:]) @ self.stack.embedding.table.T, *longer


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    return norm.gamma * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + norm.epsilon)  # type: ignore[no-any-return]


def turn(x: Tensor) -> Tensor:
    return torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1)


def export(model: Model, folder: Path) -> dict[str, bytes]:
    """The model as ONNX files, float32 and int8; its logits are checked."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    step, tokens = Step(model).eval(), torch.tensor([[5, 6, 7]])
    empty = [torch.zeros(1, HEADS, 0, HEAD)] * len(CACHE)
    torch.testing.assert_close(step(tokens, *empty)[0][0, -1], model(tokens).logits[0, -1], atol=1e-4, rtol=1e-4)
    outputs = ["logits", *(f"{name}_next" for name in CACHE)]
    torch.onnx.export(
        step,
        (tokens, *(torch.zeros(1, HEADS, 2, HEAD) for _ in CACHE)),
        str(folder / "float32.onnx"),
        input_names=["tokens", *CACHE],
        output_names=outputs,
        dynamic_axes={
            "tokens": {1: "T"},
            **{name: {2: "past"} for name in CACHE},
            **{name: {2: "all"} for name in outputs[1:]},
        },
        opset_version=17,
        dynamo=False,
    )
    quantize_dynamic(folder / "float32.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)
    return {name: (folder / f"{name}.onnx").read_bytes() for name in ("float32", "int8")}


def compare(model: Model, contents: dict[str, bytes], rounds: int) -> dict[str, object]:
    prompt = list(range(7, 7 + PROMPT))
    calls = {
        "ours": "([prompt, count]) => decode(1, [], prompt, count, [0])",
        "onnxruntime-web": "([prompt, count]) => decodeOnnx(prompt, count)",
    }
    times: dict[str, list[web.Times]] = {name: [] for name in calls}
    with web.open_page(model, contents, SCRIPT) as page:
        page.evaluate("openOnnx()")
        for number in range(rounds + 1):
            for name, call in calls.items():
                found = page.evaluate(call, [prompt, NEW])
                times[name] += [found] if number else []  # the first round compiles
    return {
        name: {
            "prompt ms": round(1000 * statistics.median(each[0] for each in all_times), 1),
            "tokens/s": round(NEW / statistics.median(each[1] for each in all_times), 1),
        }
        for name, all_times in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="the folder dist of onnxruntime-web")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sizes = {"vocabulary": 32000, "width": WIDTH, "heads": HEADS, "layers": LAYERS, "feedforward_width": 768}
    choices = {"feedforward": "swiglu", "norm": "rms", "pairing": "half", "bias": False}
    model = chumoku.build(chumoku.ModelConfig(**sizes, **choices)).eval()
    files = {"/ort.mjs": "ort.wasm.min.mjs", "/ort_wasm.mjs": "ort-wasm-simd-threaded.mjs"}
    files["/ort.wasm"] = "ort-wasm-simd-threaded.wasm"
    contents = {path: (options.dist / name).read_bytes() for path, name in files.items()}
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        exported = export(model, Path(folder))
        for precision, content in exported.items():
            page_model = prepare_model(model, precision)
            results[precision] = compare(page_model, {**contents, "/model.onnx": content}, options.rounds)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
