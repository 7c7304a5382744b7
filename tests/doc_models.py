"""What readers of a page have from elsewhere, very small and random: `<!-- given: PATH=KIND … -->`.

runs/novel=decoder               the last and the best model of a run
smollm2.gguf=decoder             a GGUF file
hf:owner/name=encoder            a folder of transformers in the cache of the Hub
ja-en=translator                 any other path: a model's folder
runs/lora/last=adapter           a LoRA adapter of smollm2.gguf
novels/kokoro.txt=text           paragraphs
pairs.tsv=pairs                  sentences and their translations
test.tsv=labels                  sentences and their labels
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from bundles import byte_tokenizer, make_bundle
from chats import tokenizer_for
from doc_blocks import DOCS, read_blocks
from hub_stand_in import make_hub_cache

from chumoku import lora
from chumoku.data import grammar
from chumoku.lora import LoraSettings
from chumoku.weights.bundle import Bundle, Tokenizers
from chumoku.weights.formats.gguf_model import write_gguf_model
from chumoku.weights.formats.transformers_folder import write_folder
from chumoku.weights.open_model import load

HUB_CACHE = ".hub"
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "feedforward": "swiglu", "bias": False}
BERT: dict[str, Any] = {"kind": "encoder", "position": "learned", "placement": "post", "embedding_norm": True}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"kind": "decoder", **LLAMA},
    "gpt2": {"kind": "decoder", "position": "learned", "feedforward": "gelu_tanh"},
    "translator": {"kind": "encoder-decoder", "context": 89},
    "encoder": {**BERT, "feedforward": "gelu", "segments": 2, "head": "vector"},
    "classifier": {**BERT, "head": "classes", "labels": ("bad", "good")},
}


def make_given(folder: Path, note: str) -> None:
    """Make each PATH=KIND of a marker in the page's folder, unless an earlier block made it."""
    for word in note.split():
        path, kind = word.split("=")
        if path.startswith("hf:"):
            write_to_hub(folder, path.removeprefix("hf:"), kind)
        elif not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (write_model if kind in MODELS else write_data)(folder / path, kind)


def write_model(path: Path, kind: str) -> None:
    if path.suffix == ".gguf":
        bundle = make_small(path.with_name(f".{path.name}"), kind)
        write_gguf_model(path, bundle.model, Tokenizers(bundle.tokenizer, bundle.tokenizer), kind="f32")
    elif path.parent.name == "runs":
        make_small(path / "last", kind)
        make_small(path / "best", kind, seed=11)
    else:
        make_small(path, kind)


def make_small(folder: Path, kind: str, *, seed: int = 7) -> Bundle:
    tokenizer = tokenizer_for() if MODELS[kind]["kind"] == "decoder" else byte_tokenizer()
    sizes = {"width": 32, "heads": 2, "context": 139}
    return load(make_bundle(folder, tokenizer=tokenizer, seed=seed, **{**sizes, **MODELS[kind]}))


def write_to_hub(folder: Path, name: str, kind: str) -> None:
    bundle = make_small(folder / f".{name}", kind)
    written = folder / f".{name}-transformers"
    written.mkdir()
    write_folder(written, bundle.model, Tokenizers(bundle.tokenizer, bundle.tokenizer))
    files = {str(file.relative_to(written)): file.read_bytes() for file in written.rglob("*") if file.is_file()}
    make_hub_cache(folder / HUB_CACHE, files, name)


def write_data(path: Path, kind: str) -> None:
    if kind.endswith(".md"):
        blocks = read_blocks((DOCS / "en" / kind).read_text(encoding="utf-8"))
        path.write_text(
            next(block.code for block in blocks if block.markers.get("file") == path.name), encoding="utf-8"
        )
        return
    if kind == "tokenizer":
        path.mkdir()
        tokenizer_for().save(path / "tokenizer.json")
        return
    if kind == "adapter":
        base = path.parents[2] / "smollm2.gguf"
        model = load(base).model
        lora.attach(model, LoraSettings(rank=3), seed=5)
        lora.save(model, path, base=str(base))
        return
    pairs = grammar.generate(31)
    texts = {
        "text": "\n\n".join(pair.target for pair in pairs) + "\n",
        "records": "".join(f"{json.dumps({'text': pair.target})}\n" for pair in pairs),
        "pairs": "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs),
        "labels": "".join(f"{pair.target}\t{('bad', 'good')[len(pair.target) % 2]}\n" for pair in pairs),
    }
    content = texts[kind].encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
